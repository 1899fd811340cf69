"""Divide what is sent to the broker into batches and frames. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from enode_django.equeue.messages import Commit
from enode_django.equeue.portions import PORTION_BYTES, PORTION_ITEMS, portions
from enode_django.equeue.records import encode_records

BATCH_MESSAGES = 500
BATCH_BYTES = 1024 * 1024


def batches_of(bodies: Mapping[int, Sequence[bytes]]) -> Iterator[tuple[int, int, bytes]]:
    """Yield (queue, count, body) of at most `BATCH_MESSAGES` messages and, unless one is larger, `BATCH_BYTES`."""
    for queue, messages in bodies.items():
        for start in range(0, len(messages), BATCH_MESSAGES):
            some = messages[start : start + BATCH_MESSAGES]
            if sum(map(len, some)) <= BATCH_BYTES:
                yield queue, len(some), encode_records(some)
            else:
                parts = portions(some, len, most_bytes=BATCH_BYTES)
                yield from ((queue, len(part), encode_records(part)) for part in parts)


def steps_of(
    commits: Mapping[int, Commit], at_once: int = PORTION_ITEMS, most_bytes: int = PORTION_BYTES
) -> Iterator[dict[int, Commit]]:
    """Yield the commits in steps whose receipts fit into a frame. Each moves the offset just past its own receipts."""
    rest = dict(commits)
    while rest:
        step, room, left = {}, at_once, most_bytes
        for queue, commit in list(rest.items()):
            some = commit.receipts[:room]
            fit = sum(total <= left for total in accumulate(receipt.size for receipt in some))
            if some and not fit and room == at_once:
                fit = 1  # larger than any step should be: it goes alone
            now, later = commit.receipts[:fit], commit.receipts[fit:]
            room, left = room - fit, left - sum(receipt.size for receipt in now)
            if not later:
                step[queue] = rest.pop(queue)
            elif now:
                step[queue] = commit._replace(offset=now[-1].offset + 1, receipts=now)
                rest[queue] = commit._replace(receipts=later)
        yield step
