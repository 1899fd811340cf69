"""Bringing a shadow up to what is stored, while more is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from enode_django.concurrency.backoff import once
from enode_django.eventing.sweeping import parts_of
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.positions import END, Position
from enode_django.exceptions import RebuildError, shown
from enode_django.rebuilding.engine import Engine
from enode_django.rebuilding.replaying import Replayed, Replayer, Todo, replayer
from enode_django.rebuilding.shadow import Shadow
from enode_django.reporting import Report

SMALL = 500
"""Aggregates that a round may leave for the next."""
MOST = 5_000
"""Aggregates that may be left for the moment when writers are shut out."""
ROUNDS = 50
Positions = Mapping[int, Position]
"""By the number of the shard."""


def now(store: EventStore) -> Positions:
    return {shard.number: shard.position() for shard in store.shards}


Corrections = Mapping[int, int]
"""The number of the newest correction of each shard, by the number of the shard."""


def corrections_now(store: EventStore) -> Corrections:
    found = {shard.number: shard.corrected_since(0) for shard in store.shards}
    return {number: made[-1].number if made else 0 for number, made in found.items()}


def check_corrections(store: EventStore, since: Corrections) -> None:
    """Raises `RebuildError` if events were corrected since: they may have been replayed before."""
    made = [one for shard in store.shards for one in shard.corrected_since(since[shard.number])]
    if made:
        ids = ", ".join(sorted({shown(one.aggregate_root_id) for one in made})[:10])
        raise RebuildError(f"events of {ids} were corrected meanwhile: nothing is swapped; begin the rebuild again")


class CatchingUp:
    """``positions``: everything below them is in the shadow."""

    def __init__(self, store: EventStore, engine: Engine, shadow: Shadow, positions: Positions, report: Report) -> None:
        self.store = store
        self.shadow = shadow
        self.positions = positions
        self.report = report
        self.total = Replayed()
        self.engine = engine

    def run(self) -> None:
        """Catch up in rounds, each with what came during the one before, until little is left."""
        last = 0
        for number in range(1, ROUNDS + 1):
            done = self._round(number, last)
            self.total += done
            last = done.aggregates
            if last <= SMALL:
                return
        raise RebuildError(
            f"{self.shadow.subscriber} was not caught up with after {ROUNDS} rounds, {last} aggregates in the last: "
            "events come in faster than they are handled; give Spark more cores, or try at a quieter time"
        )

    def _round(self, number: int, before: int) -> Replayed:
        """What comes after the beginning of a transaction that is still open is handled, too: that may stay open for
        hours, and all that came since would be left for the moment when writers are shut out. The next round looks at
        it again."""
        until, done = now(self.store), Replayed()
        with replayer(self.shadow) as replaying:
            for todo in _in_portions(_behind(self.store, replaying, self.positions)):
                done += self.engine.catch_up(self.shadow, todo)
                self.report("catch up", round=number, aggregates=done.aggregates, before=before)
        self.positions = until
        return done

    def reach(self, todo: Sequence[Todo]) -> None:
        """Bring aggregates up to these versions, as far as the store has them, settled or not."""
        self.total += self.engine.catch_up(self.shadow, todo)

    def finish(self) -> None:
        """Catch up with everything that is stored. Call it when nobody writes to the tables in use; it does not wait
        for a database that is away. Raises `TooMuchLeft`. It is not counted, since the transaction may be tried
        again."""
        with replayer(self.shadow, once) as replaying:
            todo = list(islice(_behind(self.store, replaying, self.positions), MOST + 1))
            if len(todo) > MOST:
                raise TooMuchLeft("more came meanwhile than writers should wait for")
            self.report("swap", aggregates=len(todo))
            replaying.catch_up(todo)


class TooMuchLeft(RebuildError):
    pass


def _behind(store: EventStore, replaying: Replayer, since: Positions) -> Iterator[Todo]:
    """What is stored from these positions on, settled or not, and not handled."""
    for shard in store.shards:
        for part in parts_of(shard, since[shard.number], END):
            yield from replaying.behind(part.settled)


def _in_portions(todo: Iterator[Todo], size: int = 50_000) -> Iterator[Sequence[Todo]]:
    while some := list(islice(todo, size)):
        yield some
