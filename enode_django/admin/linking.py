"""Links in the admin's columns and fields: to aggregates, versions, commands and subscribers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import slugify

from enode_django.admin.showing import Pages

STREAMS, SUBSCRIBERS = "enode_django.view_eventstream", "enode_django.view_subscriber"
LINKED: Mapping[str, tuple[str, str]] = {
    "aggregate_root_id": ("linked_aggregate", STREAMS),
    "version": ("linked_version", STREAMS),
    "command_id": ("linked_command", STREAMS),
    "shown_subscriber": ("linked_subscriber", SUBSCRIBERS),
}
"""By field: the method of `WithLinks` that replaces it, and the permission for the linked page."""


class WithLinks(Pages):
    """Mixin for an admin class: fields and columns become links for users who may see the linked page, except for the
    first column of a list, which leads to the row's own page."""

    @admin.display(description="aggregate root id", ordering="aggregate_root_id")
    def linked_aggregate(self, row: Any) -> SafeString | str:
        from enode_django.admin.links import aggregate_url  # see the package

        id = row.aggregate_root_id
        return link(aggregate_url(id), id) if id else "-"

    @admin.display(description="version", ordering="version")
    def linked_version(self, row: Any) -> SafeString | str:
        from enode_django.admin.links import version_url  # see the package

        if row.version is None:
            return "-"
        url = version_url(row.aggregate_root_id, row.version)
        title = f"The causes and effects of version {row.version}"
        return format_html('<a href="{}" title="{}">{}</a>', url, title, row.version)

    @admin.display(description="command id", ordering="command_id")
    def linked_command(self, row: Any) -> SafeString | str:
        from enode_django.admin.links import command_url, search_url  # see the package

        is_refusal = getattr(row, "version", 0) is None
        url = command_url(row.aggregate_root_id, row.command_id) if is_refusal else search_url(row.command_id)
        return link(url, row.command_id) if row.command_id else "-"

    @admin.display(description="subscriber", ordering="subscriber")
    def linked_subscriber(self, row: Any) -> SafeString:
        from enode_django.eventing.registry import subscribers  # see the package

        name = subscribers.name_of(row.subscriber)
        return link(subscriber_url(name), name)

    def get_list_display(self, request: HttpRequest) -> Any:
        first, *rest = super().get_list_display(request)
        return (first, *_with_links(rest, request))

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return _with_links(super().get_fields(request, obj), request)


def _with_links(names: Iterable[Any], request: HttpRequest) -> tuple[str, ...]:
    """Replace fields by the methods that link them, if the user may see the linked page. Return all names."""
    return tuple(LINKED[name][0] if name in LINKED and may_open(request, LINKED[name][1]) else name for name in names)


def may_open(request: HttpRequest, permission: str) -> bool:
    """Return True if the user has this permission for a model, and the admin site has pages for the model."""
    return request.user.has_perm(permission) and has_pages(permission.rpartition("_")[2])


def has_pages(model: str) -> bool:
    """Return True if the admin site has pages for this model: a project may leave some out."""
    try:
        return bool(reverse(f"admin:enode_django_{model}_changelist"))
    except NoReverseMatch:
        return False


def link(url: str, text: object) -> SafeString:
    return format_html('<a href="{}">{}</a>', url, text)


def subscriber_url(name: str) -> str:
    return reverse("admin:enode_django_subscriber_changelist", fragment=subscriber_anchor(name))


def subscriber_anchor(name: str) -> str:
    """Return the id of the subscriber's row on the subscribers' page."""
    return f"subscriber-{slugify(name.replace('.', '-'))}"


def group_url(topic: str, group: str) -> str:
    return reverse("admin:enode_django_topic_change", args=[quote(topic)], fragment=group_anchor(group))


def group_anchor(group: str) -> str:
    """Return the id of the group's section on a topic's page."""
    return f"group-{slugify(group.replace('.', '-'))}"


def list_url(model: str, **query: str) -> str:
    """Return the URL of a model's list with this query."""
    return reverse(f"admin:enode_django_{model}_changelist", query=query)
