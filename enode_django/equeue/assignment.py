"""Which worker consumes which queues: average allocation that moves as little as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

_NOTHING: Mapping[str, frozenset[int]] = MappingProxyType({})


def divide(
    queues: Sequence[int], workers: Sequence[str], current: Mapping[str, frozenset[int]] = _NOTHING
) -> dict[str, frozenset[int]]:
    """Share queues among workers: each queue has one worker, and no worker has two queues more than another.

    Of all such divisions it is one that takes the fewest queues from those who have them in ``current``; and it
    depends on neither the order of ``queues`` nor that of ``workers``. Queues and workers of ``current`` that are gone
    are ignored; a queue that two have stays with the first by name. Without workers the answer is empty.

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
    free = set(queues)
    kept: dict[str, list[int]] = {}
    for name in names:
        kept[name] = sorted(free & current.get(name, frozenset()))
        free.difference_update(kept[name])
    room = _room(len(set(queues)), names, kept)
    for name in names:
        free.update(kept[name][room[name] :])
        del kept[name][room[name] :]
    waiting = sorted(free, reverse=True)
    for name in names:
        while len(kept[name]) < room[name]:
            kept[name].append(waiting.pop())
    return {name: frozenset(kept[name]) for name in names}


def _room(queues: int, names: Sequence[str], kept: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """How many queues each worker gets; the odd ones go to those who have the most, so that those need not move."""
    share, odd = divmod(queues, len(names))
    by_holding = sorted(names, key=lambda name: -len(kept[name]))
    return {name: share + (place < odd) for place, name in enumerate(by_holding)}
