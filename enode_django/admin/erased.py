"""Erased events in the admin: those that a failover lost after subscribers had handled them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import F
from django.http import HttpRequest

from enode_django.admin.auditing import Audited
from enode_django.admin.databases import ByDatabase, DatabaseFilter
from enode_django.admin.linking import WithLinks
from enode_django.admin.moments import WithMoments
from enode_django.admin.showing import ModelAdmin, WithSubscriber
from enode_django.models import GenerationCheck

if TYPE_CHECKING:
    from django.db.models import QuerySet


@admin.register(GenerationCheck)
class ErasedEventAdmin(WithMoments, WithLinks, ByDatabase, Audited, WithSubscriber, ModelAdmin):
    """Users with ``delete_generationcheck`` delete rows whose consequences are settled. Nobody changes rows."""

    when_empty = "No failover has erased events that a subscriber had handled."
    fields = list_display = (
        "aggregate_root_id",
        "shown_subscriber",
        "stored_version",
        "handled_version",
        "taken_back",
        "checked_at",
    )
    list_filter = (DatabaseFilter, "subscriber", "taken_back")
    search_fields = ("aggregate_root_id__exact",)
    search_help_text = "a whole aggregate root id"
    ordering = ("-checked_at",)

    def object_id_of(self, row: GenerationCheck) -> str:
        return row.aggregate_root_id

    def get_queryset(self, request: HttpRequest) -> QuerySet[GenerationCheck]:
        return super().get_queryset(request).filter(handled_version__gt=F("stored_version"))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("enode_django.delete_generationcheck"))
