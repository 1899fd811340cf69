"""The event store in the admin: to look at, never to change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from enode_django.exceptions import MessageError
from enode_django.models import EventStream
from enode_django.serialization.codec import StoredRefusal, read_stored
from enode_django.serialization.plain import unpack

if TYPE_CHECKING:
    ReadOnlyBase = admin.ModelAdmin[EventStream]
else:  # generic for the type checker only
    ReadOnlyBase = admin.ModelAdmin


@admin.register(EventStream)
class EventStreamAdmin(ReadOnlyBase):
    """Read-only for everybody. Searching is by exact id, which the unique indexes answer."""

    list_display = ("sequence", "created_at", "aggregate_root_type", "aggregate_root_id", "version", "command_type")
    list_display_links = ("sequence",)
    search_fields = ("aggregate_root_id__exact", "command_id__exact")
    search_help_text = "an aggregate root id or a command id, whole"
    ordering = ("-sequence",)
    show_full_result_count = False
    fields = (
        "sequence",
        "created_at",
        "aggregate_root_type",
        "aggregate_root_id",
        "version",
        "command_type",
        "command_id",
        "decoded_events",
        "decoded_metadata",
        "transaction_id",
    )
    readonly_fields = fields

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: EventStream | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: EventStream | None = None) -> bool:
        return False

    @admin.display(description="events")
    def decoded_events(self, stream: EventStream) -> SafeString:
        try:
            stored = read_stored(bytes(stream.events))
        except MessageError as error:
            return _preformatted(str(error))
        if isinstance(stored, StoredRefusal):
            return _preformatted(_json({"refused": stored.type_name, "message": stored.message, **stored.fields}))
        shown: dict[str, Any] = {"events": [{event.type_name: event.fields} for event in stored.events]}
        if stored.result is not None:
            shown["result"] = stored.result
        return _preformatted(_json(shown))

    @admin.display(description="metadata")
    def decoded_metadata(self, stream: EventStream) -> SafeString:
        metadata = bytes(stream.metadata)
        try:
            return _preformatted(_json(unpack(metadata) if metadata else {}))
        except MessageError as error:
            return _preformatted(str(error))


def _json(value: Any) -> str:
    return json.dumps(_with_text_keys(value), indent=2, ensure_ascii=False, default=str)


def _with_text_keys(value: Any) -> Any:
    """JSON knows no other keys than text."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


def _preformatted(text: str) -> SafeString:
    return format_html('<pre style="white-space: pre-wrap; margin: 0">{}</pre>', text)
