"""Catching a shadow up with the store, while more is stored.

New streams are cut into ranges of positions, and a range into tasks for the engine. Neither this process nor a task
holds more than the aggregates of one range, however many have changed.
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
"""The most streams, or aggregates, that may be left for the swap, while writers are locked out."""
ROUNDS = 50
TASK_STREAMS = 10_000
"""Streams for one task, which may be as many aggregates. A range has as many tasks as the engine runs at once."""
Positions = Mapping[int, Position]
"""A position of each shard, by the number of the shard."""


def now(store: EventStore) -> Positions:
    return {shard.number: shard.position() for shard in store.shards}


Corrections = Mapping[int, int]
"""The number of each shard's newest correction (0: none), by the number of the shard."""


Generations = Mapping[int, int]
"""The generation of each shard, by the number of the shard."""


def generations_of(positions: Positions) -> Generations:
    return {number: position.generation for number, position in positions.items()}


def corrections_now(store: EventStore) -> Corrections:
    found = {shard.number: shard.corrected_since(0) for shard in store.shards}
    return {number: made[-1].number if made else 0 for number, made in found.items()}


class CatchingUp:
    """Catches a shadow up with the store. The shadow has everything below ``positions``.

    ``corrections`` are the newest corrections at the time before the first read for the shadow (a missing shard: 0);
    None if the shadow may have events as they were before a correction. The shadow has no event that was erased before
    the ``generations`` began; those of a missing shard are unknown.
    """

    def __init__(
        self,
        store: EventStore,
        engine: Engine,
        shadow: Shadow,
        positions: Positions,
        report: Report,
        corrections: Corrections | None = None,
        generations: Generations | None = None,
    ) -> None:
        self.store = store
        self.corrections = corrections
        self.generations = generations or {}
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
        """Catch up in rounds, each with the streams stored during the previous one. Stop when a round had at most
        `SMALL` streams, or at most `MOST` and no fewer than the previous one. Raises `RebuildError` after `ROUNDS`
        rounds."""
        last, before = 0, inf
        for number in range(1, ROUNDS + 1):
            last = self._round(number, last)
            if last <= SMALL or before <= last <= MOST:
                return
            before = last
        raise RebuildError(
            f"{self.shadow.subscriber} was not caught up with after {ROUNDS} rounds, {last} streams in the last: "
            "events come in faster than they are handled; rebuild it with more cores, or at a quieter time"
        )

    def _round(self, number: int, before: int) -> int:
        """Catch up with all visible streams, and return their number.

        Streams stored since the beginning of an open transaction are included: it may stay open for hours, and all of
        them would be left for the swap. The streams of such a transaction are handled in the round after its end.
        """
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
        is_little = _streams(rest_since(alias, since, self._without, ALONE)) <= ALONE
        at_once = 1 if is_little else self.engine.tasks_at_once()
        for one in ranges_between(alias, since, until, self._without, TASK_STREAMS * at_once):
            yield tasks_of(one, at_once)

    def reach(self, todo: Sequence[Todo]) -> None:
        """Bring aggregates up to these versions, or to their heads if these are lower, settled or not."""
        self.total += self.engine.catch_up(self.shadow, todo)

    def check_history(self) -> None:
        """Raise `RebuildError` if the shadow may have events that were erased or corrected since its first read."""
        for shard in self.store.shards:
            built_in, newest = self.generations.get(shard.number), shard.position().generation
            if built_in not in (None, newest):
                raise RebuildError(
                    f"the event store was restored or failed over meanwhile: shard {shard.number} is in generation "
                    f"{newest}, and these rows of {self.shadow.subscriber} are of {built_in}, so they may be of events "
                    "that are lost; nothing is swapped; rebuild it anew"
                )
        since = self.corrections
        if since is None:
            return
        made = [one for shard in self.store.shards for one in shard.corrected_since(since.get(shard.number, 0))]
        if made:
            ids = ", ".join(sorted({shown(one.aggregate_root_id) for one in made})[:10])
            raise RebuildError(f"events of {ids} were corrected meanwhile: nothing is swapped; begin the rebuild again")

    def check_little_is_left(self) -> None:
        """Raise `TooMuchLeft` if more than `MOST` streams came since the last round."""
        self._rest()

    def finish(self) -> None:
        """Catch up with everything stored since the last round. Call it when nobody writes to the tables in use.

        It does not wait for an unavailable database. Raises `TooMuchLeft`, and as `check_history` does. Its work is
        not added to ``total``, since the transaction may be repeated.
        """
        rest = self._rest()
        with replayer(self.shadow, once) as replaying:
            todo = [one for whole in rest for one in todo_of(replaying, CatchUpTask(whole))]
            self.report("swap", streams=_streams(rest), aggregates=len(todo))
            replaying.catch_up(todo)
        self.check_history()

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
