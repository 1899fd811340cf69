"""Messages and commits in pieces that a server does not feel, and entries of a stream as messages. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter

from enode_django.equeue.messages import Commit, PulledBatch, Receipt
from enode_django.equeue.portions import portions

# One script call holds up every other client of the server.
MESSAGES_PER_CALL = 500
BYTES_PER_CALL = 1_000_000
RECEIPTS_PER_CALL = 1_000


def parse_entries(queue: int, entries: Sequence[tuple[bytes, Sequence[bytes]]]) -> PulledBatch:
    """What XREAD tells of one stream, entries like ``(b"43-0", [b"b", body])``, as the messages of a queue."""
    bodies = [entry[1][1] for entry in entries]
    first = int(entries[0][0][:-2]) - 1
    last = int(entries[-1][0][:-2]) - 1
    if last - first + 1 == len(bodies):
        return PulledBatch(queue, range(first, last + 1), bodies)
    return PulledBatch(queue, [int(entry[0][:-2]) - 1 for entry in entries], bodies)


def chunks(bodies: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Bodies in order, in pieces of at most `MESSAGES_PER_CALL` and (unless one alone is larger) `BYTES_PER_CALL`."""
    if len(bodies) <= MESSAGES_PER_CALL and sum(map(len, bodies)) <= BYTES_PER_CALL:
        if bodies:
            yield bodies
        return
    start = size = 0
    for index, body in enumerate(bodies):
        if index > start and (index - start == MESSAGES_PER_CALL or size + len(body) > BYTES_PER_CALL):
            yield bodies[start:index]
            start, size = index, 0
        size += len(body)
    yield bodies[start:]


def steps(commit: Commit) -> Iterator[Commit]:
    """A commit in pieces of at most `RECEIPTS_PER_CALL` receipts and (unless one alone is larger) `BYTES_PER_CALL`,
    each moving the offset just past its own."""
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
    """``b"5=0a1b,7=0a1b,7=2c3d"`` says that one owner died at offset 5, and two at offset 7."""
    return dict(Counter(sorted(int(death.partition(b"=")[0]) for death in text.split(b",") if death)))


def parse_queues(text: bytes) -> frozenset[int]:
    return frozenset(int(queue) for queue in text.split(b",") if queue)


def milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
