"""The assignment of aggregates to shards by buckets. Pure functions.

An aggregate's id hashes to one of 1,024 buckets; this never changes. Each shard records the buckets it owns in its own
database. That record is authoritative; the settings only name the databases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import mmh3

from enode_django.exceptions import ShardMismatch

BUCKETS = 1_024
BUCKET_SEED = 0xB0CCE7
"""Never change it: the store would look for stored aggregates in other shards. Mailboxes use another seed."""

ALL = frozenset(range(BUCKETS))

SET_UP = 1
"""The first epoch of a shard once all its siblings are known to have recorded their buckets. Before that it is 0."""


def bucket_of(aggregate_root_id: str) -> int:
    """Return the bucket of any text, valid id or not. The text is encoded here because mmh3 crashes at lone
    surrogates."""
    return mmh3.hash(aggregate_root_id.encode(errors="surrogatepass"), BUCKET_SEED, signed=False) % BUCKETS


def select_queue(aggregate_root_id: str, queue_count: int) -> int:
    """Return the queue of an aggregate. Neighbouring buckets share a queue, as they share a shard, so an unavailable
    shard pauses its own queues only.

    >>> [bucket * 8 // BUCKETS for bucket in (0, 127, 128, 1023)]
    [0, 0, 1, 7]
    """
    return bucket_of(aggregate_root_id) * queue_count // BUCKETS


def even_shares(count: int) -> list[frozenset[int]]:
    """Divide all buckets into ``count`` runs whose sizes differ by at most one.

    >>> [(min(share), max(share)) for share in even_shares(3)]
    [(0, 341), (342, 682), (683, 1023)]
    """
    shares: list[set[int]] = [set() for _ in range(count)]
    for bucket in range(BUCKETS):
        shares[bucket * count // BUCKETS].add(bucket)
    return [frozenset(share) for share in shares]


class ShardOwnership(NamedTuple):
    """The record of one shard. ``number`` identifies it among its siblings, regardless of its database's name;
    ``epoch`` rises whenever its buckets change."""

    number: int
    epoch: int
    buckets: frozenset[int]


class Found(NamedTuple):
    """The recorded state of a shard; ``claim`` is None if it has recorded nothing yet."""

    alias: str
    claim: ShardOwnership | None
    has_streams: bool = False


def first_claims(found: Sequence[Found]) -> Mapping[str, ShardOwnership]:
    """Return the claims of shards that have recorded nothing yet, by alias.

    New shards share the buckets evenly. A shard that joins a complete store gets none; they must be moved to it. If one
    shard of a new store has streams, it gets all buckets. Raises `ShardMismatch` if buckets that nobody has recorded
    must belong to a database that is not in ``found``, or if several new shards have streams.
    """
    new = [one for one in found if one.claim is None]
    known = [one.claim for one in found if one.claim is not None]
    rest = ALL.difference(*(claim.buckets for claim in known))
    if not rest:
        first = 1 + max(claim.number for claim in known)
        return {one.alias: ShardOwnership(first + place, SET_UP, frozenset()) for place, one in enumerate(new)}
    # No shard is written to before all have recorded their buckets, so a recorded shard with streams had all siblings.
    if new and any(one.claim.epoch >= SET_UP or one.has_streams for one in found if one.claim is not None):
        raise ShardMismatch(
            f"nothing is recorded in {_names(new)}, but its siblings know that {len(rest)} of {BUCKETS} buckets belong "
            "to a shard that is not among them: is it the right database? see EVENT_STORE in the settings"
        )
    return dict(_of_new_store(found, new))


def _of_new_store(found: Sequence[Found], new: Sequence[Found]) -> Iterator[tuple[str, ShardOwnership]]:
    """Yield claims that are the same however often recording is interrupted and repeated."""
    with_streams = [one for one in found if one.has_streams]
    if len(with_streams) > 1:
        raise ShardMismatch(
            f"{_names(with_streams)} hold event streams, but none has recorded its buckets: they are not shards of one "
            "event store; name one of them in EVENT_STORE['DATABASES'], migrate, and start with it"
        )
    shares = even_shares(len(found))
    taken = {one.claim.number for one in found if one.claim is not None}
    free = [number for number in range(len(found)) if number not in taken and not (with_streams and number == 0)]
    for one in new:
        # A shard with streams gets number 0: subscriptions from before shards had numbers became those of shard 0.
        number = 0 if one.has_streams else free.pop(0)
        share = shares[number] if not with_streams else ALL if one.has_streams else frozenset[int]()
        yield one.alias, ShardOwnership(number, SET_UP if len(found) == 1 else 0, share)


def owners(claims: Mapping[str, ShardOwnership]) -> list[int]:
    """Return the index in ``claims`` of each bucket's shard. Raises `ShardMismatch` unless each bucket has exactly one
    shard and each number is used once."""
    owned: list[int] = [-1] * BUCKETS
    numbers: dict[int, str] = {}
    for place, (alias, claim) in enumerate(claims.items()):
        other = numbers.setdefault(claim.number, alias)
        if other != alias:
            raise ShardMismatch(
                f"the databases {other!r} and {alias!r} both say that they are shard {claim.number}: one is the other, "
                "or a copy of it; name each shard once in EVENT_STORE['DATABASES']"
            )
        for bucket in claim.buckets:
            if owned[bucket] >= 0:
                raise ShardMismatch(
                    f"bucket {bucket} is recorded in {list(claims)[owned[bucket]]!r} and in {alias!r}: they are not "
                    "shards of one event store; correct EVENT_STORE['DATABASES']"
                )
            owned[bucket] = place
    missing = owned.count(-1)
    if missing:
        raise ShardMismatch(
            f"{missing} of {BUCKETS} buckets belong to a shard that EVENT_STORE['DATABASES'] = {list(claims)!r} does "
            "not name: name all of the store's databases"
        )
    return owned


def _names(found: Iterable[Found]) -> str:
    return ", ".join(repr(one.alias) for one in found)
