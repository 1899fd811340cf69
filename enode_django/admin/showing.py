"""Parts that the pages of the admin share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.module_loading import import_string
from django.utils.safestring import SafeString

STYLES = {"all": ("enode_django/operate.css",)}
"""The style sheets for the ``Media`` of an admin class."""
SCRIPTS = ("enode_django/tables.js", "enode_django/times.js")
"""The scripts for the ``Media`` of an admin class with a list."""
VIEW_PAYLOAD = "enode_django.view_payload"
MOST_TEXT = 200_000
_TYPE = re.compile(r"[A-Za-z_][\w.<>]*(?=: |:?$)")


class ReadOnly:
    """Nobody adds, changes or deletes, superusers neither."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """By what filters are offered for, and nothing else: addresses could find out what a page does not show."""
        offered = getattr(self, "list_filter", ())
        return lookup.partition("__")[0] in offered and "\0" not in str(value)


def on_demand(path: str) -> Callable[..., HttpResponse]:
    """Return a view for an admin class that calls the function at ``path`` with the admin and what the view is given.
    The function is imported by the first call."""

    def view(admin: Any, *arguments: Any, **named: Any) -> HttpResponse:
        response: HttpResponse = import_string(path)(admin, *arguments, **named)
        return response

    return view


def as_json(value: Any) -> str:
    """Cut after `MOST_TEXT` characters: what is nested deeply has many times its size in blanks."""
    text = ""
    for part in json.JSONEncoder(indent=2, ensure_ascii=False, default=str).iterencode(_with_text_keys(value)):
        text += part
        if len(text) > MOST_TEXT:
            return f"{text[:MOST_TEXT]} …"
    return text


def _with_text_keys(value: Any) -> Any:
    """JSON knows no other keys than text, and Python writes no number of more than some thousand digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        from enode_django.serialization.json_text import json_value  # no check of the settings needs it

        return json_value(int(value))
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


class WithError:
    """Shows the ``error`` of rows. Its text may quote events, so only users who may view payloads see it."""

    @admin.display(description="error")
    def shown_error(self, row: Any) -> SafeString:
        return preformatted(row.error or "-")

    @admin.display(description="error")
    def hidden_error(self, row: Any) -> str:
        return "It may quote contents of events, which you may not view." if row.error else "-"


class WithSubscriber:
    """Shows the name of the subscriber whose key rows are stored under."""

    @admin.display(description="subscriber", ordering="subscriber")
    def shown_subscriber(self, row: Any) -> str:
        from enode_django.eventing.registry import subscribers  # see the package

        return subscribers.name_of(row.subscriber)


def without_hidden(fields: Iterable[str], request: HttpRequest) -> tuple[str, ...]:
    """The fields of a page, with the error as far as the user may see it."""
    error = "shown_error" if request.user.has_perm(VIEW_PAYLOAD) else "hidden_error"
    return tuple(error if name == "shown_error" else name for name in fields)


def type_of_error(text: str) -> str:
    """
    >>> type_of_error("ValueError: no amount 'x'"), type_of_error("no amount")
    ('ValueError', '-')
    """
    found = _TYPE.match(text)
    return found[0] if found else "-"


def preformatted(text: str) -> SafeString:
    """Return the text as a preformatted block, for pages with `STYLES`."""
    return format_html('<pre class="enode-text">{}</pre>', text)
