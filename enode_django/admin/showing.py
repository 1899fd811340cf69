"""Parts that the pages of the admin share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import BadRequest, PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db import DataError, connections
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.module_loading import import_string
from django.utils.safestring import SafeString

from enode_django.exceptions import shown
from enode_django.jobs.error_texts import message_of

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    Pages = admin.ModelAdmin[Any]
    Counting = Paginator[Any]
else:  # for the type checker only, Django's class is generic, and mixins are admin classes
    ModelAdmin, Pages, Counting = admin.ModelAdmin, object, Paginator

STYLES = {"all": ("enode_django/operate.css",)}
"""The style sheets for the ``Media`` of an admin class."""
SCRIPTS: tuple[str, ...] = ("enode_django/tables.js", "enode_django/times.js")
"""The scripts for the ``Media`` of an admin class with a list."""
VIEW_PAYLOAD = "enode_django.view_payload"
HIDDEN = "It may quote contents of events, which you may not view."
ASKED = ("", "exact", "in", "isnull", "isempty")
"""The lookups of Django's filters for a list."""
MOST_TEXT = 200_000
ESTIMATED_FROM = 100_000
"""Lists of more rows show the database's estimate of their number."""
_TYPE = re.compile(r"[A-Za-z_][\w.<>]*(?=: |:?$)")


class Listing(ChangeList):
    """Offer *Show all* only if a search or a filter leaves rows out."""

    def get_filters(self, request: HttpRequest) -> Any:
        try:
            return super().get_filters(request)
        except (OverflowError, ValueError) as error:  # Django's drill-down raises them for years that no calendar has
            raise IncorrectLookupParameters(error) from error

    @property
    def is_filtered(self) -> bool:
        return bool(self.query or self.get_filters_params())

    def get_results(self, request: HttpRequest) -> None:
        try:
            super().get_results(request)
        except DataError as error:  # such as a malformed regular expression in a lookup
            raise IncorrectLookupParameters(error) from error
        if not self.is_filtered:
            self.full_result_count = self.result_count


class Estimated(Counting):
    """Takes the database's estimate for the number of rows of a whole table, if that is above `ESTIMATED_FROM`:
    PostgreSQL reads each row that it counts. Whoever comes to the last page gets the exact number, since to read that
    page costs as much as to count, and the estimate may hide rows. A page behind the last one is the last one."""

    is_estimate = False

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        query = rows.query
        estimate = 0 if query.where or query.is_sliced or query.combinator else _estimate(rows)
        self.is_estimate = estimate > ESTIMATED_FROM
        return estimate if self.is_estimate else int(super().count)

    def validate_number(self, number: Any) -> int:
        if not isinstance(number, int):  # a history hands the text of the URL on, for Django to read or refuse
            return super().validate_number(number)
        if self.num_pages <= number and self.is_estimate:
            rows: Any = self.object_list
            self.count, self.is_estimate = rows.count(), False
            del self.num_pages
        return super().validate_number(min(number, self.num_pages))


def _estimate(rows: QuerySet[Any]) -> int:
    """Return how many rows the table had at its last ``VACUUM`` or ``ANALYZE``; below 1 if that is unknown."""
    connection = connections[rows.db]
    if connection.vendor != "postgresql":
        return 0
    with connection.cursor() as cursor:
        table = connection.ops.quote_name(rows.model._meta.db_table)
        cursor.execute("SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)", [table])
        return sum(count for (count,) in cursor.fetchall())


class NamedValues(admin.AllValuesFieldListFilter):
    """Show an option for rows whose field is empty as *none*."""

    def choices(self, changelist: Any) -> Iterator[Any]:
        for choice in super().choices(changelist):
            is_empty = str(choice["display"])[:1] in ("", " ")  # a number of rows may follow
            yield {**choice, "display": f"none{choice['display']}"} if is_empty else choice


class IndexedValues(admin.AllValuesFieldListFilter):
    """A filter for a field that is never null and begins an index. It asks the index once for each value; Django's own
    filter reads all rows."""

    lookup_choices: Any

    def __init__(self, field: Any, *arguments: Any, **named: Any) -> None:
        super().__init__(field, *arguments, **named)
        self.lookup_choices = [*self.values(self.lookup_choices.model, self.lookup_choices.db, field.name)]

    def values(self, model: Any, alias: str, name: str) -> Iterator[Any]:
        return _leaps(model, alias, name)


class IndexedTexts(IndexedValues):
    """A filter like `IndexedValues`, for texts whose index leaves out the rows without one. Those are found by
    ``index_of_others``, the field that begins the index of the rest."""

    index_of_others: ClassVar[str]

    def values(self, model: Any, alias: str, name: str) -> Iterator[Any]:
        others = model.objects.using(alias).filter(**{name: ""}).order_by(self.index_of_others).values_list(name)
        yield from ([""] if others.first() else [])
        yield from _leaps(model, alias, name, after="")


def _leaps(model: Any, alias: str, name: str, after: Any = None) -> Iterator[Any]:
    """Yield the values of a column in their order, those above ``after``, each found from the one before it."""
    values = model.objects.using(alias).order_by(name).values_list(name, flat=True)
    while (found := (values if after is None else values.filter(**{f"{name}__gt": after})).first()) is not None:
        yield found
        after = found


class ReadOnly:
    """Mixin for an admin class: nobody adds, changes or deletes, not even superusers, unless a subclass allows it."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_changelist(self, request: HttpRequest, **options: Any) -> type[ChangeList]:
        return Listing

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow what filters ask only: other lookups in a URL could reveal what a page does not show, or ask the
        database for what it refuses, such as a malformed regular expression."""
        filters = getattr(self, "list_filter", ())
        offered = [one[0] if isinstance(one, tuple) else one for one in filters]
        field, _, how = lookup.partition("__")
        return field in offered and how in ASKED and is_storable(value)


def is_storable(value: Any) -> bool:
    """Return False for a text, or a list of texts, that PostgreSQL refuses: one with a NUL."""
    return not any("\0" in str(one) for one in (value if isinstance(value, list | tuple) else [value]))


class Listed(ReadOnly, Pages):
    """Mixin for an admin class with a list. ``when_empty`` is shown if it has no rows."""

    change_list_template = "enode_django/admin/list.html"
    show_full_result_count = False
    when_empty: ClassVar[str]

    class Media:
        css = STYLES
        js = SCRIPTS

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any], *more: Any, **options: Any) -> Any:
        for key in request.POST.getlist(ACTION_CHECKBOX_NAME):
            try:
                self.opts.pk.to_python(key)
            except ValidationError as error:
                raise BadRequest(f"{shown(key)} is not the key of a row; choose rows in the list") from error
        return super().response_action(request, queryset, *more, **options)  # later versions of Django pass more


def page_at(
    admin: Pages, route: str, view: Callable[..., HttpResponseBase], name: str, may: Callable[[HttpRequest], bool]
) -> URLPattern:
    """Return the pattern of a page of an admin class, which is named as Django names its own. Users for whom ``may``
    returns False get the status 403."""

    @wraps(view)  # Django's documentation of views shows its name, and decorators leave their marks in it
    def allowed(request: HttpRequest, *arguments: Any, **named: Any) -> HttpResponseBase:
        if not may(request):
            raise PermissionDenied
        return view(request, *arguments, **named)

    model = f"{admin.opts.app_label}_{admin.opts.model_name}"
    return path(route, admin.admin_site.admin_view(allowed), name=f"{model}_{name}")


def rendered(
    admin: Pages, request: HttpRequest, template: str, title: str, context: Mapping[str, Any], status: int = 200
) -> TemplateResponse:
    """Return a page of an admin class."""
    shared = {**admin.admin_site.each_context(request), "opts": admin.opts, "title": title}
    return TemplateResponse(request, f"enode_django/admin/{template}.html", {**shared, **context}, status=status)


def on_demand(path: str) -> Callable[..., HttpResponse]:
    """Return a view for an admin class that calls the function at ``path`` with the admin and the arguments of the
    view. The function is imported by the first call."""

    def view(admin: Any, *arguments: Any, **named: Any) -> HttpResponse:
        response: HttpResponse = import_string(path)(admin, *arguments, **named)
        return response

    return view


def as_json(value: Any) -> str:
    """Return a value as indented JSON, cut after `MOST_TEXT` characters: the indents of deeply nested values are many
    times their size."""
    text = ""
    for part in json.JSONEncoder(indent=2, ensure_ascii=False, default=str).iterencode(_with_text_keys(value)):
        text += part
        if len(text) > MOST_TEXT:
            return f"{text[:MOST_TEXT]} …"
    return text


def _with_text_keys(value: Any) -> Any:
    """Make keys text, which JSON requires, and huge integers, which Python does not write, values that it does."""
    if isinstance(value, int) and not isinstance(value, bool):
        from enode_django.serialization.json_text import json_value  # see the package

        return json_value(int(value))
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


class WithTexts(Pages):
    """Mixin for an admin class: labels and help texts of its page that replace those of the model, by field."""

    labels: Mapping[str, str] = {}
    help_texts: Mapping[str, str] = {}

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **options: Any) -> Any:
        texts = {"labels": self.labels, "help_texts": self.help_texts}
        return super().get_form(request, obj, change=change, **{**texts, **options})


class WithError(Pages):
    """Mixin for an admin class: columns for the ``error`` of rows. It may quote events, so only users who may view
    payloads see it."""

    @admin.display(description="error")
    def shown_error(self, row: Any) -> SafeString:
        """Return what the error says, and its traceback folded below."""
        message = message_of(row.error)
        if message == row.error.strip():
            return preformatted(message or "-")
        return format_html(
            '{}<details class="enode-folded"><summary>Traceback</summary>{}</details>',
            preformatted(message),
            preformatted(row.error),
        )

    @admin.display(description="error")
    def hidden_error(self, row: Any) -> str:
        return HIDDEN if row.error else "-"

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[Any, ...]:
        error = "shown_error" if request.user.has_perm(VIEW_PAYLOAD) else "hidden_error"
        return tuple(error if name == "shown_error" else name for name in super().get_fields(request, obj))


class WithSubscriber:
    """Mixin for an admin class: a column with the name of the subscriber under whose key a row is stored."""

    @admin.display(description="subscriber", ordering="subscriber")
    def shown_subscriber(self, row: Any) -> str:
        from enode_django.eventing.registry import subscribers  # see the package

        return subscribers.name_of(row.subscriber)


def type_of_error(text: str) -> str:
    """Return the type of the error at the beginning of a text.

    >>> type_of_error("ValueError: no amount 'x'"), type_of_error("no amount")
    ('ValueError', '-')
    """
    found = _TYPE.match(text)
    return found[0] if found else "-"


def preformatted(text: str) -> SafeString:
    """Return the text as a preformatted block, for pages with `STYLES`."""
    return format_html('<pre class="enode-text">{}</pre>', text)
