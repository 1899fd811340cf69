"""The live tail: a page that shows events as they are stored, and the server-sent events that it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django import forms
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone

from enode_django.admin import links
from enode_django.admin.packed import SMALL
from enode_django.admin.stream_contents import ShownEvent, contents_of
from enode_django.admin.stream_list import NO_CONTENTS, known_types
from enode_django.admin.stream_pages import only_looks
from enode_django.admin.values import text_of
from enode_django.api.streams import Places, places_now, read_cursor
from enode_django.api.tail import Tail, is_async
from enode_django.conf import conf
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import MalformedMessage
from enode_django.ids import MAX_ID_LENGTH
from enode_django.runtime import make_store
from enode_django.serialization.codec import StoredRefusal, read_stored

if TYPE_CHECKING:
    from enode_django.admin.streams import EventStreamAdmin

MOST_ROWS = 300
"""The most rows that the page keeps."""
MOST_EVENTS = 10
MOST_TEXT = 500
"""The most characters of the fields of one event."""


class Wanted(forms.Form):
    """The filters in the URL of the page. The filter by event is for users who ``may_read`` events."""

    type = forms.CharField(required=False, max_length=MAX_ID_LENGTH, label="Aggregate type")
    id = forms.CharField(required=False, max_length=MAX_ID_LENGTH, label="Aggregate id")
    event = forms.CharField(required=False, max_length=MAX_ID_LENGTH, label="Event or refusal type")

    def __init__(self, data: Any, *, may_read: bool) -> None:
        super().__init__(data)
        self.may_read = may_read

    def clean_event(self) -> str:
        event: str = self.cleaned_data["event"]
        if event and not self.may_read:
            raise forms.ValidationError(NO_CONTENTS)
        return event

    def body_of(self, record: StreamRecord) -> Mapping[str, Any] | None:
        """Return the part of a stream that the page shows; None if the filters exclude the stream."""
        asked = self.cleaned_data
        if asked["type"] not in ("", record.aggregate_root_type) or asked["id"] not in ("", record.aggregate_root_id):
            return None
        if asked["event"] and asked["event"] not in _type_names(record):
            return None
        return {**_envelope(record), **(_contents(record) if self.may_read else {})}


@only_looks
def page(admin: EventStreamAdmin, request: HttpRequest) -> HttpResponse:
    form = Wanted(request.GET, may_read=admin.may_read(request))
    feed = reverse("admin:enode_django_eventstream_feed")
    context = {
        "form": form,
        "types": known_types(),
        "feed": f"{feed}?{request.GET.urlencode()}" if form.is_valid() else "",
        "most": MOST_ROWS,
    }
    return admin.render(request, "live_tail", "Live tail", context)


@only_looks
def feed(admin: EventStreamAdmin, request: HttpRequest) -> HttpResponseBase:
    """Send the streams stored from now on, or after ``Last-Event-ID`` or ``cursor``, as server-sent events.

    Under ASGI a response lasts for ``STREAM_SECONDS``. Under WSGI, where it would hold a thread, it ends at once. It
    lasts up to 2 seconds longer while the browser is behind. Then the browser requests the next one.
    """
    form = Wanted(request.GET, may_read=admin.may_read(request))
    places = _places(request.headers.get("Last-Event-ID") or request.GET.get("cursor", ""))
    if places is None or not form.is_valid():
        return HttpResponseBadRequest("the filters or the cursor are not valid; open the page of the live tail again")
    seconds = conf().API.STREAM_SECONDS if is_async(request) else 0.0
    return Tail(places, form.body_of, seconds=seconds).response(request)


def _places(cursor: str) -> Places | None:
    """Return the places of a cursor, the present ones for an empty text, None for a text that is not a cursor."""
    try:
        return read_cursor(cursor) if cursor else dict(places_now(make_store().shards))
    except ValueError:
        return None


def _envelope(record: StreamRecord) -> Mapping[str, Any]:
    return {
        "time": timezone.localtime(record.created_at).isoformat(" ", "seconds"),
        "type": record.aggregate_root_type,
        "id": record.aggregate_root_id,
        "url": links.step_url(record),
        "version": record.version,
        "command": record.command_type,
    }


def _contents(record: StreamRecord) -> Mapping[str, Any]:
    if len(record.events) > SMALL:
        return {"events": [{"name": name, "text": "many bytes"} for name in _type_names(record)[:MOST_EVENTS]]}
    contents = contents_of(record.events, record.metadata)
    shown = [contents.refusal] if contents.refusal else contents.events
    events = [{"name": one.type_name, "text": _text(one)} for one in shown[:MOST_EVENTS]]
    if len(shown) > MOST_EVENTS:
        events.append({"name": f"… and {len(shown) - MOST_EVENTS:,} more", "text": ""})
    return {"events": events, "trouble": "; ".join(contents.trouble)}


def _text(event: ShownEvent) -> str:
    text = ", ".join(f"{line.path}: {line.text}" for line in event.lines)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} …"


def _type_names(record: StreamRecord) -> Sequence[str]:
    try:
        stored = read_stored(record.events)
    except MalformedMessage:
        return []
    return [text_of(one.type_name) for one in ([stored] if isinstance(stored, StoredRefusal) else stored.events)]
