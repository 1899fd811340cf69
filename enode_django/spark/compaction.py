"""The choice of the increments of an archive that are merged into one. Pure.

The newest increments are merged as soon as there are `ENOUGH` of them and none has more rows than all others together.
Each merge of a row then at least doubles the size of its increment, so it is rewritten at most log2(rows) times,
however many exports there are; and an archive of many rows has few increments.
"""

from __future__ import annotations

from collections.abc import Sequence

ENOUGH = 8


def begin_of_merge(rows: Sequence[int]) -> int | None:
    """Return the index of the first increment to be merged with all that follow it, None if nothing is due. ``rows``
    are the numbers of rows of the increments, the oldest first. The longest run that is due is chosen.

    >>> begin_of_merge([100, 1, 1, 1, 1, 1, 1, 1, 1])
    1
    >>> begin_of_merge([8, 1, 1, 1, 1, 1, 1, 1, 1])
    0
    >>> begin_of_merge([8, 1, 1, 1, 1, 1, 1, 1])
    """
    runs = (rows[begin:] for begin in range(len(rows) - ENOUGH + 1))
    return next((begin for begin, run in enumerate(runs) if 2 * max(run) <= sum(run)), None)
