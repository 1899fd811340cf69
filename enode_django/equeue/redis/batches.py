"""Split messages and commits into small steps, and parse entries of a stream. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from enode_django.equeue.messages import Commit, PulledBatch, Receipt
from enode_django.equeue.portions import portions

# One script call blocks every other client of the server.
MESSAGES_PER_CALL = 500
BYTES_PER_CALL = 1_000_000
RECEIPTS_PER_CALL = 1_000


Entries = Sequence[tuple[bytes, Sequence[bytes]]]
"""The entries of one stream in an answer of XREAD, like ``[(b"43-0", [b"b", body])]``."""

_MOST_MESSAGES = 10**12
"""More than any queue gets. Ids assigned by XADD, in milliseconds since 1970, are above it."""


def parse_entries(queue: int, entries: Entries) -> PulledBatch:
    """Return the messages of a queue, without foreign entries."""
    first, last = _offset(entries[0][0]), _offset(entries[-1][0])
    if first is not None and last is not None and last - first + 1 == len(entries):
        return PulledBatch(queue, range(first, last + 1), [entry[1][1] for entry in entries])
    own = [(offset, entry[1][1]) for entry in entries if (offset := _offset(entry[0])) is not None]
    return PulledBatch(queue, [offset for offset, _ in own], [body for _, body in own])


def _offset(id: bytes) -> int | None:
    """Return the offset of an entry; None for a foreign one.

    >>> _offset(b"43-0"), _offset(b"43-1"), _offset(b"1700000000000-0")
    (42, None, None)
    """
    number, _, place = id.partition(b"-")
    offset = int(number) - 1
    return offset if place == b"0" and offset < _MOST_MESSAGES else None


def chunks(bodies: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
    """Return bodies in order, at most `MESSAGES_PER_CALL` and (unless one alone is larger) `BYTES_PER_CALL` at once."""
    if len(bodies) <= MESSAGES_PER_CALL and sum(map(len, bodies)) <= BYTES_PER_CALL:
        return (bodies,) if bodies else ()
    return portions(bodies, len, most_bytes=BYTES_PER_CALL, most_items=MESSAGES_PER_CALL)


def steps(commit: Commit) -> Iterator[Commit]:
    """Yield the steps of a commit. Each step has at most `RECEIPTS_PER_CALL` receipts of at most `BYTES_PER_CALL`
    together (unless one alone is larger), and moves the offset just past them."""
    receipts = commit.receipts[-commit.keep :]
    last: Sequence[Receipt] = ()
    for some in portions(receipts, attrgetter("size"), most_bytes=BYTES_PER_CALL, most_items=RECEIPTS_PER_CALL):
        if last:
            yield commit._replace(offset=last[-1].offset + 1, receipts=last)
        last = some
    yield commit._replace(receipts=last)


def commit_arguments(commit: Commit) -> list[int | bytes]:
    arguments: list[int | bytes] = [commit.epoch, commit.offset, commit.keep]
    for receipt in commit.receipts:
        arguments += receipt
    return arguments


def parse_deaths(text: bytes) -> dict[int, int]:
    """Return the number of deaths by offset: ``b"5=0a1b,7=0a1b,7=2c3d"`` is one at offset 5 and two at offset 7."""
    return dict(Counter(sorted(int(death.partition(b"=")[0]) for death in text.split(b",") if death)))


def parse_queues(text: bytes) -> frozenset[int]:
    return frozenset(int(queue) for queue in text.split(b",") if queue)


def milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
