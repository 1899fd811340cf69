"""The event store, to look at and never to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils.safestring import SafeString

from enode_django.admin.showing import ReadOnly, as_json, preformatted
from enode_django.exceptions import MessageError
from enode_django.models import EventStream
from enode_django.serialization.codec import StoredRefusal, read_stored
from enode_django.serialization.plain import unpack

if TYPE_CHECKING:
    StreamBase = admin.ModelAdmin[EventStream]
else:  # generic for the type checker only
    StreamBase = admin.ModelAdmin


@admin.register(EventStream)
class EventStreamAdmin(ReadOnly, StreamBase):
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

    @admin.display(description="events")
    def decoded_events(self, stream: EventStream) -> SafeString:
        try:
            stored = read_stored(bytes(stream.events))
        except MessageError as error:
            return preformatted(str(error))
        if isinstance(stored, StoredRefusal):
            return preformatted(as_json({"refused": stored.type_name, "message": stored.message, **stored.fields}))
        shown: dict[str, Any] = {"events": [{event.type_name: event.fields} for event in stored.events]}
        if stored.result is not None:
            shown["result"] = stored.result
        return preformatted(as_json(shown))

    @admin.display(description="metadata")
    def decoded_metadata(self, stream: EventStream) -> SafeString:
        metadata = bytes(stream.metadata)
        try:
            return preformatted(as_json(unpack(metadata) if metadata else {}))
        except MessageError as error:
            return preformatted(str(error))
