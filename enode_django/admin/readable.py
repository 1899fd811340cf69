"""Messages of the queue as readable text, with their kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.utils.safestring import SafeString

from enode_django.admin.showing import MOST_TEXT, as_json, preformatted
from enode_django.bus.messages import decode_published
from enode_django.equeue.retrying import Failed
from enode_django.equeue.retrying import decode as decode_set_aside
from enode_django.exceptions import EnodeError
from enode_django.ids import made_at
from enode_django.serialization.codec import StoredRefusal, decode_command, decode_metadata, read_stored
from enode_django.serialization.plain import unpack

MOST_BYTES = 4_096


class Readable(NamedTuple):
    kind: str
    text: str


class Origin(NamedTuple):
    """The aggregate of a message, and when the message was made; empty and None if the message does not say."""

    key: str = ""
    made_at: datetime | None = None


def readable(body: bytes) -> Readable:
    """Return the kind of a message and its content as text. Never raises: messages of other programs are shown as JSON,
    text or bytes."""
    for kind, read in _READERS.items():
        try:
            return Readable(kind, _cut(read(body)))
        except Exception:  # noqa: S112 - the body may be anything
            continue
    shown = body[:MOST_BYTES].hex(" ")
    return Readable(f"{len(body)} bytes", shown if len(body) <= MOST_BYTES else f"{shown} …")


def preformatted_message(body: bytes) -> SafeString:
    """Return the kind of a message and its content as a block for a page."""
    kind, text = readable(body)
    return preformatted(f"{kind}\n{text}")


def origin_of(body: bytes) -> Origin:
    """Return the origin of a command or an event stream, also in a dead letter or retry. Never raises."""
    inner = put_aside(body)
    with suppress(Exception):
        wire = decode_command(inner)
        made = made_at(wire.id)
        return Origin(wire.aggregate_root_id, None if made is None else datetime.fromtimestamp(made, UTC))
    with suppress(Exception):
        record = decode_published(inner).record
        return Origin(record.aggregate_root_id, record.created_at)
    return Origin()


def put_aside(body: bytes) -> bytes:
    """Return the body of the message in a dead letter or retry, of a command or of another message; otherwise the same
    bytes."""
    with suppress(EnodeError):
        entry = decode_set_aside(body)
        return entry.message.body if isinstance(entry, Failed) else body
    with suppress(EnodeError, ValueError, TypeError):
        _, (_, _), inner = unpack(body)
        return inner if isinstance(inner, bytes) else body
    return body


def _command(body: bytes) -> str:
    wire = decode_command(body)
    return as_json(
        {
            "type": wire.type_name,
            "id": wire.id,
            "aggregate_root_id": wire.aggregate_root_id,
            "fields": wire.fields,
            "metadata": decode_metadata(wire.metadata).as_map(),
        }
    )


def _events(body: bytes) -> str:
    record = decode_published(body).record
    shown: dict[str, Any] = {
        "type": record.aggregate_root_type,
        "aggregate_root_id": record.aggregate_root_id,
        "version": record.version,
        "command_id": record.command_id,
        "command_type": record.command_type,
        "created_at": record.created_at,
    }
    if not record.events:
        shown["events"] = f"too large to be decoded here ({len(body)} bytes); look into the event store"
        return as_json(shown)
    stored = read_stored(record.events)
    if isinstance(stored, StoredRefusal):
        shown["refused"] = {"type": stored.type_name, "message": stored.message, "fields": stored.fields}
    else:
        shown["events"] = [{event.type_name: event.fields} for event in stored.events]
    return as_json(shown)


def _dead_command(body: bytes) -> str:
    """Return the text of a dead letter of a command."""
    place, (error_type, error), inner = unpack(body)
    topic, queue, offset = place or ("?", 0, 0)
    content = readable(bytes(memoryview(inner)))
    return f"from queue {queue} of {topic}, offset {offset}\n{error_type}: {error}\n\n{content.kind}\n{content.text}"


def _set_aside(body: bytes) -> str:
    entry = decode_set_aside(body)
    if not isinstance(entry, Failed):
        return "settled: " + ", ".join(map(str, sorted(entry.offsets)))
    message, content = entry.message, readable(entry.message.body)
    place = f"from queue {message.queue} of {message.topic}, offset {message.offset}, attempt {message.attempt}"
    return f"{place}\n{entry.error}\n\n{content.kind}\n{content.text}"


def _json(body: bytes) -> str:
    value = json.loads(body)
    if not isinstance(value, dict | list):
        raise TypeError(value)
    return as_json(value)


def _text(body: bytes) -> str:
    text = body.decode()
    if not all(sign.isprintable() or sign in "\n\r\t" for sign in text):
        raise ValueError(text)
    return text


def _cut(text: str) -> str:
    text = text.encode(errors="backslashreplace").decode()  # JSON may have surrogates, UTF-8 may not
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} …"


_READERS: Mapping[str, Callable[[bytes], str]] = {
    "a command": _command,
    "an event stream": _events,
    "a command that was put aside": _dead_command,
    "a message that was put aside": _set_aside,
    "JSON": _json,
    "text": _text,
}
