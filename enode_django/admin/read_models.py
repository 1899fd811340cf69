"""Admin pages for read models. They are read-only, since only events change read models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.checks import CheckMessage, Warning
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html

from enode_django.admin.linking import STREAMS
from enode_django.admin.showing import Estimated, ModelAdmin, ReadOnly, is_storable
from enode_django.models import EventStream


class ReadModelAdmin(ReadOnly, ModelAdmin):
    """List, search and show the rows of a projection. Nobody adds, changes or deletes them, not even superusers.

    By default the list shows all fields, and a search finds the id of an aggregate. For users who may view event
    streams, each row has a link to the page of its aggregate. ``aggregate_field`` is the attribute of a row with the
    aggregate's id; None if the rows belong to no single aggregate, like those of a `MultiProjection`.
    """

    aggregate_field: str | None = "aggregate_root_id"
    show_full_result_count = False
    paginator = Estimated

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        return is_storable(value) and admin.ModelAdmin.lookup_allowed(self, lookup, value, request)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        return super().get_object(request, object_id, from_field) if is_storable(object_id) else None

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        return [*super().check(**kwargs), *self._check_aggregate_field()]

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        declared = super().get_list_display(request)
        chosen = self._field_names() if declared == ("__str__",) else declared
        return [*chosen, *self._links(request)]

    def get_search_fields(self, request: HttpRequest) -> list[str]:
        default = [f"{self.aggregate_field}__exact"] if self.aggregate_field else []
        return [*super().get_search_fields(request)] or default

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        linked = [field.name for field in self.opts.many_to_many]
        return [*(self.fields or [*self._field_names(), *linked]), *self._links(request)]

    @admin.display(description="history")
    def aggregate_link(self, row: Any) -> str:
        return format_html('<a href="{}">events</a>', self._address_of(row))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Redirect to the aggregate's page, for users who may view it; otherwise show Django's history."""
        row = self.get_object(request, unquote(object_id)) if self._links(request) else None
        if row is None or not self.has_view_permission(request, row):
            return super().history_view(request, object_id, extra_context)
        return HttpResponseRedirect(self._address_of(row))

    def _check_aggregate_field(self) -> Iterator[CheckMessage]:
        name, is_annotated = self.aggregate_field, type(self).get_queryset is not ReadModelAdmin.get_queryset
        if name is not None and not hasattr(self.model, name) and not is_annotated:
            yield Warning(
                f"The rows of {self.opts.label} have no attribute {name!r} with the id of their aggregate.",
                hint="Name the attribute in aggregate_field; or set it to None, if rows belong to no single aggregate.",
                obj=type(self),
                id="enode_django.W174",
            )

    def _field_names(self) -> list[str]:
        return [field.name for field in self.opts.concrete_fields]

    def _links(self, request: HttpRequest) -> tuple[str, ...]:
        is_followed = self.aggregate_field is not None and self.admin_site.is_registered(EventStream)
        return ("aggregate_link",) if is_followed and request.user.has_perm(STREAMS) else ()

    def _address_of(self, row: Any) -> str:
        from enode_django.admin.links import aggregate_url  # see the package

        assert self.aggregate_field is not None  # otherwise there are no links
        return aggregate_url(str(getattr(row, self.aggregate_field)), self.admin_site.name)
