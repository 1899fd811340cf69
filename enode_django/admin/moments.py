"""Show times on all pages alike: as ISO 8601 with seconds and UTC offset, in the site's time zone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

from django.contrib import admin
from django.core.exceptions import FieldDoesNotExist
from django.db.models import DateTimeField
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from enode_django.admin.showing import Pages


def shown_moment(value: datetime | None) -> SafeString | str:
    """Return a ``time`` element, whose title ``times.js`` sets to the time in the browser's zone; a dash for None."""
    if value is None:
        return "-"
    local = _local(value)
    return format_html('<time datetime="{}">{}</time>', local.isoformat(), local.isoformat(" ", "seconds"))


def _local(value: datetime) -> datetime:
    if timezone.is_naive(value):  # without USE_TZ
        return timezone.make_aware(value)
    try:
        return timezone.localtime(value)
    except OverflowError:  # such as the end of the year 9999, which other zones do not have
        return value


@cache
def _column(name: str, description: str) -> Callable[[Any], SafeString | str]:
    @admin.display(description=description, ordering=name)
    def column(row: Any) -> SafeString | str:
        return shown_moment(getattr(row, name))

    column.__name__ = name  # Django names the cells after it
    return column


class WithMoments(Pages):
    """Mixin for a read-only admin class: `shown_moment` shows its times."""

    def get_list_display(self, request: HttpRequest) -> Any:
        return tuple(map(self._shown, super().get_list_display(request)))

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        sets = super().get_fieldsets(request, obj)
        return [(title, {**given, "fields": tuple(map(self._shown, given["fields"]))}) for title, given in sets]

    def _shown(self, name: Any) -> Any:
        try:
            field = self.opts.get_field(name) if isinstance(name, str) else None
        except FieldDoesNotExist:
            return name
        return _column(name, str(field.verbose_name)) if isinstance(field, DateTimeField) else name
