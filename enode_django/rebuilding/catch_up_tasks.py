"""Tasks of a catch-up: each catches up some of the aggregates with streams in a range of positions.

Tasks of one range share no aggregate, so none waits for another; ranges are handled one after the other. A task may run
twice, or continue after it was given up: the shadow's locked checkpoints show what was done already.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from enode_django.concurrency.stopping import checked
from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventing.subscribers import Subscriber, follows
from enode_django.eventstore.base import Settled
from enode_django.eventstore.position_ranges import PositionRange, divided, heads
from enode_django.rebuilding.replaying import Replayed, Replayer, Todo, replayer, total_of
from enode_django.rebuilding.shadow import Shadow
from enode_django.serialization.registry import types

ALONE = 2_000
"""The largest number of streams that is caught up without tasks: dividing fewer costs more than it saves."""


class CatchUpTask(NamedTuple):
    """The aggregates with low <= id < high (in the order of bytes; None: no end) that have streams in the range."""

    range: PositionRange
    low: str = ""
    high: str | None = None


def tasks_of(whole: PositionRange, most: int) -> list[CatchUpTask]:
    """Divide a range into up to ``most`` tasks of about equal size. Blocks. Raises `StoreUnavailable`."""
    parts = min(most, whole.streams // ALONE)
    edges = ["", *(divided(whole, parts) if parts > 1 else []), None]
    return [CatchUpTask(whole, low or "", high) for low, high in pairwise(edges)]


def work_off(shadow: Shadow, tasks: Sequence[CatchUpTask]) -> Replayed:
    """Do the tasks one after the other in this thread. Blocks. Raises as `Replayer` does."""
    with replayer(shadow) as replaying:
        return total_of(replaying.catch_up(checked(todo_of(replaying, task))) for task in tasks)


def todo_of(replaying: Replayer, task: CatchUpTask) -> list[Todo]:
    """Return the aggregates of a task that the shadow has not handled up to their versions in the range."""
    return replaying.behind(Settled(heads(*task), ()))


def passed_over(subscriber: Subscriber) -> list[str]:
    """Return the stored type names of aggregates that this process knows and the subscriber cannot follow."""
    return [name for name in types.names_of(AggregateRoot) if not follows(subscriber, name)]
