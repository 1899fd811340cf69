"""Bringing a shadow up to what is stored, while more is stored.

What came is cut into ranges of positions, and a range into tasks for the engine. Neither this process nor a task holds
more than one range's aggregates, however many have changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import inf

from enode_django.concurrency.backoff import once
from enode_django.eventing.registry import subscribers
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.frontiers import Frontier, frontier
from enode_django.eventstore.position_ranges import PositionRange, ranges_between, rest_since
from enode_django.eventstore.positions import Position
from enode_django.eventstore.scanning import persistently
from enode_django.exceptions import RebuildError, shown
from enode_django.jobs.progress import Report
from enode_django.rebuilding.catch_up_tasks import ALONE, CatchUpTask, passed_over, tasks_of, todo_of
from enode_django.rebuilding.engine import Engine, postgres_shards
from enode_django.rebuilding.replaying import Replayed, Todo, replayer
from enode_django.rebuilding.shadow import Shadow

SMALL = 500
"""Streams that a round may leave for the next."""
MOST = 5_000
"""Streams, or aggregates, that may be left for the moment when writers are shut out."""
ROUNDS = 50
TASK_STREAMS = 10_000
"""Streams for one task, which may be as many aggregates. A range has as many tasks as the engine does at a time."""
Positions = Mapping[int, Position]
"""By the number of the shard."""


def now(store: EventStore) -> Positions:
    return {shard.number: shard.position() for shard in store.shards}


Corrections = Mapping[int, int]
"""The number of the newest correction of each shard, by the number of the shard."""


def corrections_now(store: EventStore) -> Corrections:
    found = {shard.number: shard.corrected_since(0) for shard in store.shards}
    return {number: made[-1].number if made else 0 for number, made in found.items()}


class CatchingUp:
    """``positions``: everything below them is in the shadow. ``corrections``: those that there were before anything was
    read for the shadow, 0 for a shard that is not named; None if the shadow may have events as they were before they
    were corrected."""

    def __init__(
        self,
        store: EventStore,
        engine: Engine,
        shadow: Shadow,
        positions: Positions,
        report: Report,
        corrections: Corrections | None = None,
    ) -> None:
        self.store = store
        self.corrections = corrections
        self.shadow = shadow
        self.report = report
        self.total = Replayed()
        self.engine = engine
        self._frontiers = {number: Frontier.at(position) for number, position in positions.items()}
        self._without = passed_over(subscribers.get(shadow.subscriber))

    @property
    def positions(self) -> Positions:
        return {number: one.position for number, one in self._frontiers.items()}

    def run(self) -> None:
        """Catch up in rounds, each with what came during the one before, until little is left; or no less than before,
        but what may be left for the swap."""
        last, before = 0, inf
        for number in range(1, ROUNDS + 1):
            last = self._round(number, last)
            if last <= SMALL or before <= last <= MOST:
                return
            before = last
        raise RebuildError(
            f"{self.shadow.subscriber} was not caught up with after {ROUNDS} rounds, {last} streams in the last: "
            "events come in faster than they are handled; give Spark more cores, or try at a quieter time"
        )

    def _round(self, number: int, before: int) -> int:
        """Return how many streams came. What comes after the beginning of a transaction that is still open is handled,
        too: that may stay open for hours, and all that came since would be left for the moment when writers are shut
        out. The next round takes what such transactions have stored, if they have ended by then."""
        streams, done = 0, Replayed()
        for shard in postgres_shards(self.store):
            until = persistently(shard.alias, partial(frontier, shard.alias))
            for tasks in self._tasks(shard.alias, self._frontiers[shard.number], until):
                done += self.engine.work_off(self.shadow, tasks)
                streams += tasks[0].range.streams
                self.report("catch up", round=number, streams=streams, aggregates=done.aggregates, before=before)
            self._frontiers[shard.number] = until
        self.total += done
        return streams

    def _tasks(self, alias: str, since: Frontier, until: Frontier) -> Iterator[Sequence[CatchUpTask]]:
        """Yield the tasks of one range after the other."""
        is_little = _streams(rest_since(alias, since, self._without, ALONE)) <= ALONE
        at_once = 1 if is_little else self.engine.tasks_at_once()
        for one in ranges_between(alias, since, until, self._without, TASK_STREAMS * at_once):
            yield tasks_of(one, at_once)

    def reach(self, todo: Sequence[Todo]) -> None:
        """Bring aggregates up to these versions, as far as the store has them, settled or not."""
        self.total += self.engine.catch_up(self.shadow, todo)

    def check_corrections(self) -> None:
        """Raise `RebuildError` if events were corrected since: the originals may be in the shadow."""
        since = self.corrections
        if since is None:
            return
        made = [one for shard in self.store.shards for one in shard.corrected_since(since.get(shard.number, 0))]
        if made:
            ids = ", ".join(sorted({shown(one.aggregate_root_id) for one in made})[:10])
            raise RebuildError(f"events of {ids} were corrected meanwhile: nothing is swapped; begin the rebuild again")

    def check_little_is_left(self) -> None:
        """Raise `TooMuchLeft` if more came since the last round than writers should wait for."""
        self._rest()

    def finish(self) -> None:
        """Catch up with everything that is stored. Call it when nobody writes to the tables in use; it does not wait
        for a database that is away, and looks at nothing that the last round has seen. Raises `TooMuchLeft`, and as
        `check_corrections`. It is not counted, since the transaction may be tried again."""
        rest = self._rest()
        with replayer(self.shadow, once) as replaying:
            todo = [one for whole in rest for one in todo_of(replaying, CatchUpTask(whole))]
            self.report("swap", streams=_streams(rest), aggregates=len(todo))
            replaying.catch_up(todo)
        self.check_corrections()

    def _rest(self) -> Sequence[PositionRange]:
        rest = [
            one
            for shard in postgres_shards(self.store)
            for one in rest_since(shard.alias, self._frontiers[shard.number], self._without, MOST)
        ]
        if _streams(rest) > MOST:
            raise TooMuchLeft("more came meanwhile than writers should wait for")
        return rest


class TooMuchLeft(RebuildError):
    pass


def _streams(ranges: Sequence[PositionRange]) -> int:
    return sum(one.streams for one in ranges)
