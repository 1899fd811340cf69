"""Stored values as JSON, for readers without this package. One way only: values without a JSON type become text.

================================  =================
Decimal, UUID, an infinite float  as ``str`` has it
datetime, date                    ISO 8601
bytes                             base64
an int that Python does not       hexadecimal: ``0x1f…``
write (of over 4,300 digits)
keys of a dictionary              the same, as text
================================  =================
"""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import date
from math import isfinite
from typing import Any

from enode_django.serialization.codec import StoredStream, decode_command, decode_metadata, read_stored


def json_text(value: Any) -> str:
    """
    >>> from decimal import Decimal
    >>> json_text({"amount": Decimal("1.50"), "rates": {1: b"ab"}})
    '{"amount":"1.50","rates":{"1":"YWI="}}'
    """
    try:
        return _encode(value)
    except (TypeError, ValueError):  # keys, floats and ints, for which the encoder does not call its default
        return _encode(json_value(value))


def json_value(value: Any) -> Any:
    """Return the value as types of `json.dumps`: None, bool, int, finite float, str, list, and dict with text keys.

    >>> from decimal import Decimal
    >>> json_value({"amount": Decimal("1.50"), "rates": {1: b"ab"}})
    {'amount': '1.50', 'rates': {'1': 'YWI='}}
    """
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        return _number(value)
    if kind is dict:
        return {_key(key): json_value(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [json_value(item) for item in value]
    if kind is float:
        return value if isfinite(value) else str(value)
    return _scalar(value)


_ALWAYS_WRITTEN = 2_000
"""Bits of an int that Python always writes, even at the lowest limit of digits, which is 640."""


def _number(value: int) -> int | str:
    """Return the number, or its hexadecimal digits if Python refuses to write the decimal ones (quadratic time)."""
    if value.bit_length() > _ALWAYS_WRITTEN:
        try:
            str(value)
        except ValueError:
            return hex(value)
    return value


def _scalar(value: Any) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value.isoformat() if isinstance(value, date) else str(value)


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_scalar).encode


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    return _scalar(key) if isinstance(key, bytes | date) else json_text(key).strip('"')


def described(events: bytes, metadata: bytes) -> tuple[list[str], str]:
    """Return the type names of a stored row's events (none for a refusal), and the whole row as JSON.

    The row is ``{"events": [{"type", "schema_version", "fields"}], "result", "metadata"}`` or ``{"refusal": {"type",
    "schema_version", "message", "fields"}, "metadata"}``. A stream with sent commands also has ``"sent": [{"type",
    "id", "aggregate_root_id", "fields"}]``. Raises `MalformedMessage`.
    """
    found = contents(events, metadata)
    return [event["type"] for event in found.get("events", ())], json_text(found)


def event_types(events: bytes) -> list[str]:
    """Return the type names of a stored row's events (none for a refusal). Raises `MalformedMessage`."""
    stored = read_stored(events)
    return [event.type_name for event in stored.events] if isinstance(stored, StoredStream) else []


def contents(events: bytes, metadata: bytes) -> dict[str, Any]:
    """Return the row as in `described`, before it is encoded as JSON. Raises `MalformedMessage`."""
    stored, about = read_stored(events), {"metadata": decode_metadata(metadata).as_map()}
    if isinstance(stored, StoredStream):
        values = [
            {"type": event.type_name, "schema_version": event.schema_version, "fields": event.fields}
            for event in stored.events
        ]
        sent = {"sent": sent_contents(stored)} if stored.sent else {}
        return {"events": values, "result": stored.result, **sent, **about}
    refusal = {
        "type": stored.type_name,
        "schema_version": stored.schema_version,
        "message": stored.message,
        "fields": stored.fields,
    }
    return {"refusal": refusal, **about}


def sent_contents(stored: StoredStream) -> list[dict[str, Any]]:
    """Return the commands sent with a stream, decoded without their classes. Raises `MalformedMessage`."""
    return [
        {"type": wire.type_name, "id": wire.id, "aggregate_root_id": wire.aggregate_root_id, "fields": wire.fields}
        for wire in (decode_command(body) for _, body in stored.sent)
    ]
