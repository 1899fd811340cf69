"""Decoders of the framework's formats, written a second time from their description.

For bytes that cannot be decoded they raise `Undecodable`, and nothing else.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar
from uuid import UUID

import msgpack

STREAM, REFUSAL = 1, 2
DECIMAL, UNIQUE_ID, DATE, BIG_INTEGER = 1, 2, 3, 4
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

P = ParamSpec("P")
T = TypeVar("T")


class Undecodable(Exception):
    """Bytes that cannot be decoded."""


class Event(NamedTuple):
    type_name: str
    schema_version: int
    fields: Mapping[str, Any]


class Stream(NamedTuple):
    """The events of one command for one aggregate, and the result of its handler."""

    events: Sequence[Event]
    result: Any


class Refusal(NamedTuple):
    type_name: str
    schema_version: int
    message: str
    fields: Mapping[str, Any]


Contents: TypeAlias = Stream | Refusal


class PublishedBody(NamedTuple):
    aggregate_root_type: str
    aggregate_root_id: str
    version: int | None
    command_id: str
    command_type: str
    created_at: int
    payload: bytes
    metadata: bytes


def _strict(decode: Callable[P, T]) -> Callable[P, T]:
    """Convert all errors of a decoder into `Undecodable`."""

    @wraps(decode)
    def decoded(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return decode(*arguments, **named)
        except Undecodable:
            raise
        except Exception as error:
            raise Undecodable(f"{decode.__name__}: {type(error).__name__}: {error}") from error

    return decoded


def _extension(code: int, data: bytes) -> Any:
    if code == DECIMAL:
        return Decimal(data.decode())
    if code == UNIQUE_ID:
        return UUID(bytes=data)
    if code == DATE:
        return date.fromisoformat(data.decode())
    if code == BIG_INTEGER:
        return int.from_bytes(data, "big", signed=True)
    raise Undecodable(f"unknown extension type {code}")


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_extension, timestamp=3, strict_map_key=False)


@_strict
def read_contents(payload: bytes) -> Contents:
    """Decode the events value of a stored row."""
    kind, value = payload[0], _unpack(payload[1:])
    if kind == STREAM:
        events, result = value
        return Stream([_event(*event) for event in events], result)
    if kind == REFUSAL:
        return _refusal(*value)
    raise Undecodable(f"unknown format {kind} of a stored row")


def _event(type_name: Any, schema_version: Any, fields: Any) -> Event:
    if not isinstance(type_name, str) or not isinstance(schema_version, int) or not isinstance(fields, dict):
        raise Undecodable(f"no event: {type_name!r}, {schema_version!r}, {fields!r}")
    return Event(type_name, schema_version, fields)


def _refusal(type_name: Any, schema_version: Any, message: Any, fields: Any) -> Refusal:
    _event(type_name, schema_version, fields)
    if not isinstance(message, str):
        raise Undecodable(f"a refusal's message is {message!r}")
    return Refusal(type_name, schema_version, message, fields)


@_strict
def read_published(body: bytes) -> PublishedBody:
    """Decode a message of the event topic. After a failover of the store it ends with the store's generation."""
    form, kind, id, version, command_id, command_type, created_at, payload, metadata, _reply_to, *rest = _unpack(body)
    texts, contents = (kind, id, command_id, command_type), (payload, metadata)
    if form != 1 or not all(isinstance(text, str) for text in texts):
        raise Undecodable(f"unknown format {form!r} of a published stream")
    if not all(isinstance(content, bytes) for content in contents) or not isinstance(version, int | None):
        raise Undecodable(f"version {version!r} of {id!r} is not a published stream")
    if rest and not (len(rest) == 1 and isinstance(rest[0], int) and rest[0] > 0):
        raise Undecodable(f"{rest!r} is not a generation of a store")
    return PublishedBody(kind, id, version, command_id, command_type, microseconds(created_at), payload, metadata)


@_strict
def read_command_key(body: bytes) -> tuple[str, str]:
    """Return the command id and the aggregate root id of a message of the command topic."""
    form, _type_name, id, aggregate_root_id, *_rest = _unpack(body)
    if form != 1 or not isinstance(id, str) or not isinstance(aggregate_root_id, str):
        raise Undecodable(f"unknown format {form!r} of a command")
    return id, aggregate_root_id


@_strict
def read_records(body: bytes) -> list[bytes]:
    """Return the messages in the body of a batch of the broker."""
    records = msgpack.unpackb(unsealed(body))
    if not isinstance(records, list) or not all(isinstance(record, bytes) for record in records):
        raise Undecodable("a batch holds something else than byte strings")
    return records


@_strict
def read_control(body: bytes) -> tuple[str, Sequence[Any], Mapping[str, Any]]:
    """Return the name, arguments and named arguments of a control record of the broker."""
    name, arguments, named = msgpack.unpackb(unsealed(body), strict_map_key=False)
    return name, arguments, named


@_strict
def unsealed(body: bytes) -> bytes:
    """Return the bytes after the leading CRC-32, which must match."""
    (check,) = struct.unpack_from("<I", body)
    if zlib.crc32(memoryview(body)[4:]) != check:
        raise Undecodable(f"{len(body)} bytes do not match their CRC")
    return body[4:]


def microseconds(moment: datetime) -> int:
    """Return the microseconds since 1970 of an aware datetime."""
    return (moment - EPOCH) // MICROSECOND


def text_of(value: Any) -> str | None:
    """Return a result as clients log it: as text, or None."""
    return None if value is None else str(value)
