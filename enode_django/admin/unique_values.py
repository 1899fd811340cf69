"""Unique values in the admin: to look at. Workers settle them, and ``manage.py enode unique rebuild`` mends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

from enode_django.admin.databases import ByDatabase, ShardFilter, shards
from enode_django.admin.linking import WithLinks, with_links
from enode_django.admin.moments import WithMoments
from enode_django.admin.showing import SCRIPTS, STYLES, NamedValues
from enode_django.models import UniqueValue

if TYPE_CHECKING:
    ValueBase = admin.ModelAdmin[UniqueValue]
else:  # generic for the type checker only
    ValueBase = admin.ModelAdmin


@admin.register(UniqueValue)
class UniqueValueAdmin(WithMoments, WithLinks, ByDatabase, ValueBase):
    """Nobody changes rows. The values are digests."""

    offered = staticmethod(shards)
    change_list_template = "enode_django/admin/list.html"
    when_empty = "No aggregate holds a unique value in this database. The first shard has them all."
    list_display = ("short_digest", "name", "aggregate_root_id", "state", "version", "changed_at")
    list_filter = (ShardFilter, ("name", NamedValues))
    search_fields = ("aggregate_root_id__exact",)
    search_help_text = "a whole aggregate root id"
    ordering = ("-pk",)  # the table can be as long as that of aggregates, and has no index by time
    show_full_result_count = False

    class Media:
        css = STYLES
        js = SCRIPTS

    def get_fields(self, request: HttpRequest, obj: UniqueValue | None = None) -> tuple[str, ...]:
        names = ("name", "short_digest", "aggregate_root_id", "state", "claims", "releases", "version", "changed_at")
        return with_links(names, request)

    def get_readonly_fields(self, request: HttpRequest, obj: UniqueValue | None = None) -> tuple[str, ...]:
        return self.get_fields(request, obj)

    @admin.display(description="digest", ordering="digest")
    def short_digest(self, row: Any) -> str:
        return bytes(row.digest).hex()[:16]

    @admin.display(description="state")
    def state(self, row: Any) -> str:
        if row.claims:
            return "claimed by a command under way"
        return "held, may be given up" if row.releases else "held"
