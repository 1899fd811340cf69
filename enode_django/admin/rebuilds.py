"""Rebuilds of projections in the admin: view them, and undo the last one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.safestring import SafeString

from enode_django.admin.auditing import Audited
from enode_django.admin.databases import ByDatabase, DatabaseFilter
from enode_django.admin.jobs import start
from enode_django.admin.linking import WithLinks, link, list_url, may_open
from enode_django.admin.moments import WithMoments
from enode_django.admin.showing import ModelAdmin, WithSubscriber, as_json, page_at, preformatted
from enode_django.models import Rebuild

SETTLED = "settled: it can no longer be undone"


class StateFilter(admin.ChoicesFieldListFilter):
    def choices(self, changelist: Any) -> Iterator[Any]:
        for choice in super().choices(changelist):
            is_settled = choice["display"] == Rebuild.State.SETTLED.label
            yield {**choice, "display": SETTLED} if is_settled else choice


@admin.register(Rebuild)
class RebuildAdmin(WithMoments, WithLinks, ByDatabase, Audited, WithSubscriber, ModelAdmin):
    """Users with ``change_rebuild`` undo rebuilds whose tables are in use. Nothing else can be changed."""

    when_empty = "No projection was rebuilt. Start a rebuild under Jobs, or by manage.py rebuildprojection."
    list_display = ("id", "shown_subscriber", "build", "replaced", "shown_state", "started_at", "swapped_at", "undoing")
    list_filter = (DatabaseFilter, ("state", StateFilter))
    search_fields = ("subscriber__exact",)
    search_help_text = "the whole name of a projection"
    ordering = ("-id",)
    fields = (
        *("shown_subscriber", "build", "replaced", "shown_state", "started_at", "swapped_at"),
        *("shown_tables", "shown_migrations", "shown_positions", "undoing"),
    )

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        names = super().get_list_display(request)
        return tuple(name for name in names if name != "undoing" or self.has_undo_permission(request))

    def get_fields(self, request: HttpRequest, obj: Rebuild | None = None) -> tuple[str, ...]:
        names = super().get_fields(request, obj)
        jobs = ["jobs"] if may_open(request, "enode_django.view_job") else []
        return (*(name for name in names if name != "undoing" or self.has_undo_permission(request)), *jobs)

    def get_urls(self) -> list[URLPattern]:
        undo = page_at(self, "<path:object_id>/undo/", self.undo, "undo", self.has_undo_permission)
        return [undo, *super().get_urls()]

    def has_undo_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("enode_django.change_rebuild"))

    def object_id_of(self, row: Rebuild) -> str:
        return row.subscriber

    @admin.display(description="build", ordering="generation")
    def build(self, rebuild: Rebuild) -> int:
        return rebuild.generation

    @admin.display(description="replaces build", ordering="replaces")
    def replaced(self, rebuild: Rebuild) -> int:
        return rebuild.replaces

    @admin.display(description="state", ordering="state")
    def shown_state(self, rebuild: Rebuild) -> str:
        return SETTLED if rebuild.state == Rebuild.State.SETTLED else rebuild.get_state_display()

    @admin.display(description="undo")
    def undoing(self, rebuild: Rebuild) -> str | SafeString:
        if rebuild.state != Rebuild.State.SWAPPED:
            return "-"
        return link(self.url_of(rebuild, "undo"), "Put back the former tables")

    @admin.display(description="jobs")
    def jobs(self, rebuild: Rebuild) -> SafeString:
        return link(list_url("job", q=rebuild.subscriber), "The jobs of this projection")

    @admin.display(description="tables")
    def shown_tables(self, rebuild: Rebuild) -> SafeString:
        return preformatted("\n".join(rebuild.tables) or "-")

    @admin.display(description="migrations")
    def shown_migrations(self, rebuild: Rebuild) -> SafeString:
        return preformatted("\n".join(map(str, rebuild.migrations)) or "-")

    @admin.display(description="positions")
    def shown_positions(self, rebuild: Rebuild) -> SafeString:
        return preformatted(as_json(rebuild.positions))

    def undo(self, request: HttpRequest, object_id: str) -> HttpResponse:
        from enode_django.admin.job_operations import UndoRebuild  # see the package

        rebuild = self.get_object(request, unquote(object_id))
        if rebuild is None or rebuild.state != Rebuild.State.SWAPPED:
            raise Http404("no rebuild with this number can be undone")
        crumbs = [(self.list_url_of(rebuild), "Rebuilds")]
        return start(self, request, UndoRebuild, rebuild, crumbs=crumbs, initial={"projection": rebuild.subscriber})
