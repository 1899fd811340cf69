"""Rows of the event store as JSON, pages of the feed over all shards, and their cursors."""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC
from functools import partial
from typing import Any, NamedTuple

from enode_django.eventstore.base import Shard, StreamRecord
from enode_django.eventstore.positions import BEGINNING, Position
from enode_django.exceptions import error_text, shown
from enode_django.serialization.json_text import contents, json_value

PAGE_BYTES = 16 * 2**20
"""A page of rows ends with the piece that reaches it."""
FIRST_PIECE = 10
LARGEST_PIECE = 50
"""The most rows that are read at once, since large ones may follow any number of small ones. With pieces of 10, a page
of 500 small rows takes four times as long; with larger ones than 50, little less."""

Places = Mapping[int, Position]
"""Positions by the number of the shard. A missing shard is at its beginning."""


def stream_body(record: StreamRecord, with_payload: bool) -> dict[str, Any]:
    """Return the row as JSON. Without the payload it says that a command took effect or was refused, but not how."""
    body = {
        "aggregate_root_type": record.aggregate_root_type,
        "aggregate_root_id": record.aggregate_root_id,
        "version": record.version,
        "command_id": record.command_id,
        "command_type": record.command_type,
        "created_at": record.created_at.astimezone(UTC).isoformat(),
    }
    return {**body, **_payload(record)} if with_payload else body


def _payload(record: StreamRecord) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json_value(contents(record.events, record.metadata))
    except Exception as error:  # a row that cannot be shown (nested too deeply, say) must not hide the others
        return {"unreadable": f"{type(error).__name__}: {error_text(error)}"}
    return found


def write_cursor(places: Places) -> str:
    """
    >>> read_cursor(write_cursor({0: Position(0, 5321, 88412)}))
    {0: Position(generation=0, transaction_id=5321, sequence=88412)}
    """
    text = ",".join(f"{number}:{position}" for number, position in sorted(places.items()))
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> Places:
    """Read a cursor of `write_cursor`. Raises ValueError for a malformed one."""
    try:
        text = b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
        pairs = (part.split(":", 1) for part in text.split(","))
        return {_number(number): Position.parse(position) for number, position in pairs}
    except ValueError:
        raise ValueError(f"{shown(cursor)} is not a cursor; send one that a page or an event gave you") from None


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(text)
    return int(text)


class FeedRow(NamedTuple):
    """``cursor`` is the place after the row."""

    cursor: str
    record: StreamRecord


class FeedPart(NamedTuple):
    """A page of the feed. ``places`` are those after it. ``more``: more rows may be settled by now."""

    rows: Sequence[FeedRow]
    places: Places
    more: bool


def read_feed(shards: Sequence[Shard], places: Places, limit: int) -> FeedPart:
    """Return the next rows: at most ``limit`` of about `PAGE_BYTES`, but up to one from each shard. Blocks. Raises
    `StoreUnavailable`."""
    share, size = max(1, limit // len(shards)), PAGE_BYTES // len(shards)
    now = dict(places)
    rows: list[FeedRow] = []
    more = False
    for shard in shards:
        more = read_in_pieces(partial(_read_piece, shard, now, rows), share, size) or more
    return FeedPart(rows, now, more)


def _read_piece(shard: Shard, now: dict[int, Position], rows: list[FeedRow], limit: int) -> Sequence[StreamRecord]:
    """Add the next rows of a shard to ``rows``, and their places to ``now``."""
    page = shard.feed(now.get(shard.number, BEGINNING), limit=limit)
    for entry in page.entries:
        now[shard.number] = entry.position
        rows.append(FeedRow(write_cursor(now), entry.record))
    now[shard.number] = page.position
    return [entry.record for entry in page.entries]


def read_in_pieces(read: Callable[[int], Sequence[StreamRecord]], limit: int, size: int) -> bool:
    """Call ``read`` with the number of rows to read next, until it returns fewer, or ``limit`` rows or ``size`` bytes
    are read. Return False if it returned fewer. The rows before tell how many of the next ones the bytes allow."""
    many, read_bytes, piece = 0, 0, min(FIRST_PIECE, LARGEST_PIECE)
    while True:
        wanted = min(piece, limit - many)
        found = read(wanted)
        many += len(found)
        read_bytes += sum(len(record.events) + len(record.metadata) for record in found)
        if len(found) < wanted:
            return False
        if many == limit or read_bytes >= size:
            return True
        piece = max(1, min(LARGEST_PIECE, (size - read_bytes) * many // (read_bytes + 1)))


def places_now(shards: Sequence[Shard]) -> Iterator[tuple[int, Position]]:
    for shard in shards:
        yield shard.number, shard.position()
