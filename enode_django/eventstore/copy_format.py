"""Encoding of event streams for PostgreSQL's binary COPY.

The format is a header, the rows and a trailer, in network byte order. A row is the number of its fields, then each
field's length and bytes (NULL: -1 and no bytes). See "Binary Format" on PostgreSQL's page about COPY.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from struct import Struct

from enode_django.eventstore.base import StreamRecord
from enode_django.ids import MAX_ID_LENGTH

COLUMNS = (
    "version",
    "created_at",
    "aggregate_root_id",
    "command_id",
    "aggregate_root_type",
    "command_type",
    "events",
    "metadata",
)
"""The order of the fields in a row: fixed lengths first, so that one call packs them all."""

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

# Field count, version, created_at, and the length of the aggregate root id, which comes next.
_stream_head = Struct("!hiqiqi").pack
_refusal_head = Struct("!hiiqi").pack
_length = Struct("!i").pack

_LENGTHS = [_length(length) for length in range(1_024)]
"""Those of nearly all events and metadata: looking one up takes a third of the time of packing it."""

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

_types: dict[tuple[str, str], bytes] = {}
_TYPES_LIMIT = 10_000


def encode(records: Sequence[StreamRecord]) -> bytes:
    """Return the input of ``COPY … FROM STDIN (FORMAT BINARY)`` for these records and `COLUMNS`.

    Raises `ValueError` for text that is not UTF-8 or longer than its column (the database would silently cut off
    spaces), and `struct.error` for a version that needs more than 64 bits. The database checks the rest.
    """
    return b"".join(chunks(records, max(len(records), 1)))


def chunks(records: Sequence[StreamRecord], size: int) -> Iterator[bytes]:
    """Yield the bytes of `encode` in pieces of ``size`` records, so that the server works on one while the next is
    encoded."""
    parts = [HEADER]
    for start in range(0, len(records), size):
        _encode_rows(records[start : start + size], parts)
        yield b"".join(parts)
        parts.clear()
    parts.append(TRAILER)
    yield b"".join(parts)


def _encode_rows(records: Iterable[StreamRecord], parts: list[bytes]) -> None:
    add = parts.extend
    known_types = _types
    lengths, known_lengths = _LENGTHS, len(_LENGTHS)
    for root_id, version, command_id, root_type, command_type, created_at, events, metadata in records:
        if len(root_id) > MAX_ID_LENGTH or len(command_id) > MAX_ID_LENGTH:
            raise ValueError(f"ids {root_id!r} and {command_id!r} must have up to {MAX_ID_LENGTH} characters")
        age = created_at - _EPOCH
        microseconds = (age.days * 86_400 + age.seconds) * 1_000_000 + age.microseconds
        root = root_id.encode()
        command = command_id.encode()
        if version is None:
            head = _refusal_head(8, -1, 8, microseconds, len(root))
        else:
            head = _stream_head(8, 8, version, 8, microseconds, len(root))
        types = known_types.get((root_type, command_type)) or _encode_types(root_type, command_type)
        size, more = len(events), len(metadata)
        events_length = lengths[size] if size < known_lengths else _length(size)
        metadata_length = lengths[more] if more < known_lengths else _length(more)
        add((head, root, lengths[len(command)], command, types, events_length, events, metadata_length, metadata))


def _encode_types(root_type: str, command_type: str) -> bytes:
    """Return both type fields. The result is cached, because a program has few types."""
    if len(root_type) > MAX_ID_LENGTH or len(command_type) > MAX_ID_LENGTH:
        raise ValueError(f"types {root_type!r} and {command_type!r} must have up to {MAX_ID_LENGTH} characters")
    root, command = root_type.encode(), command_type.encode()
    encoded = _length(len(root)) + root + _length(len(command)) + command
    if len(_types) >= _TYPES_LIMIT:
        _types.clear()
    _types[root_type, command_type] = encoded
    return encoded
