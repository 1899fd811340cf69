"""The division of queues among workers: an even one that moves as little as possible, or one that is given."""

from __future__ import annotations

import logging
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any

logger = logging.getLogger("enode_django.equeue")

_NOTHING: Mapping[str, frozenset[int]] = MappingProxyType({})

Allocate = Callable[[Sequence[int], Sequence[str], Mapping[str, frozenset[int]]], Mapping[str, Collection[int]]]
"""Divides queues among the members of a group. It gets the queues as `rotated` orders them, the members sorted by name,
and the queues that each member shall own so far (which may name queues and members that are gone); it returns the
queues that each shall own from now on. Every queue goes to one member; a member that is left out gets none. The broker
or any member calls it whenever members or queues change, so it must not block, and should depend on its arguments
alone."""


def rotated(queues: Collection[int], group: str) -> list[int]:
    """Return the queues in ascending order, from one on that depends on the name of the group; after the last one comes
    the first. With the same workers in several groups, the groups of a queue then have different workers: the threads
    of one process take turns, those of several processes do not.

        >>> rotated(range(4), "ledger"), rotated(range(4), "invoices")
        ([0, 1, 2, 3], [1, 2, 3, 0])
    """
    ordered = sorted(queues)
    first = zlib.crc32(group.encode()) % max(1, len(ordered))
    return ordered[first:] + ordered[:first]


def divide(
    queues: Sequence[int], workers: Sequence[str], current: Mapping[str, frozenset[int]] = _NOTHING
) -> dict[str, frozenset[int]]:
    """Share queues among workers: each queue has one worker, and no worker has two queues more than another.

    Among these divisions it returns one that takes the fewest queues from their owners in ``current``; an owner keeps
    those that come first in ``queues``. The order of ``workers`` does not matter. Queues and workers of ``current``
    that are gone are ignored; a queue with two owners stays with the first by name. Without workers the result is
    empty.

    Seven queues, then a third worker, then the first one gone::

        >>> shown = lambda division: {worker: sorted(queues) for worker, queues in division.items()}
        >>> two = divide(range(7), ["a", "b"])
        >>> shown(two)
        {'a': [0, 1, 2, 3], 'b': [4, 5, 6]}
        >>> three = divide(range(7), ["a", "b", "c"], two)      # "c" gets one of each
        >>> shown(three)
        {'a': [0, 1, 2], 'b': [4, 5], 'c': [3, 6]}
        >>> shown(divide(range(7), ["b", "c"], three))
        {'b': [0, 1, 4, 5], 'c': [2, 3, 6]}
    """
    names = sorted(set(workers))
    if not names:
        return {}
    owners = {queue: name for name in reversed(names) for queue in current.get(name, ())}
    held = {name: [queue for queue in queues if owners.get(queue) == name] for name in names}
    room = _room(len(queues), names, held)
    kept = {name: held[name][: room[name]] for name in names}
    free = iter([queue for queue in queues if queue not in set().union(*kept.values())])
    return {name: frozenset([*kept[name], *islice(free, room[name] - len(kept[name]))]) for name in names}


def _room(queues: int, names: Sequence[str], held: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the number of queues of each worker. The remainder goes to those with the most, so that fewer move."""
    share, odd = divmod(queues, len(names))
    by_holding = sorted(names, key=lambda name: -len(held[name]))
    return {name: share + (place < odd) for place, name in enumerate(by_holding)}


def allocated(
    allocate: Allocate, queues: Sequence[int], workers: Sequence[str], current: Mapping[str, frozenset[int]] = _NOTHING
) -> dict[str, frozenset[int]]:
    """Return the division that ``allocate`` makes, with all workers in it. If it raises or returns an impossible
    division, log an error and return that of `divide`, so that the group can go on."""
    try:
        given = allocate(queues, workers, current)
        wrong = _wrong_in(given, queues, workers)
    except Exception:
        logger.exception("the allocation %s fails; queues are divided evenly instead", _name_of(allocate))
        return divide(queues, workers, current)
    if wrong:
        logger.error("the allocation %s %s; queues are divided evenly instead", _name_of(allocate), wrong)
        return divide(queues, workers, current)
    return {worker: frozenset(given.get(worker, ())) for worker in workers}


def _wrong_in(given: Mapping[str, Collection[int]], queues: Sequence[int], workers: Sequence[str]) -> str:
    """Describe the fault of an allocation; empty if every queue has exactly one worker."""
    unknown = sorted(given.keys() - set(workers))
    if unknown:
        return f"gives queues to {unknown[0]!r}, which is not a member"
    times = Counter(queue for share in given.values() for queue in share)
    for queue in sorted(times.keys() - set(queues)):
        return f"gives away queue {queue!r}, which does not exist"
    for queue in queues:
        if workers and times[queue] != 1:
            return f"gives queue {queue!r} to {times[queue] or 'no'} members"
    return ""


def _name_of(allocate: Any) -> str:
    return f"{getattr(allocate, '__module__', '')}.{getattr(allocate, '__qualname__', repr(allocate))}".lstrip(".")
