"""Rebuilding a projection with no downtime: replay, catch up, compare, swap; and undoing that.

Until the swap nothing that is in use is touched, so whatever ends a rebuild, a crash too, leaves the projection as it
was; the next one begins by clearing away what was left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from django.db import connections
from django.utils import timezone

from enode_django.concurrency.stopping import pause
from enode_django.databases import execute
from enode_django.eventing import checkpoints
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.positions import BEGINNING, Position
from enode_django.eventstore.sqlstates import DATABASE_ERRORS
from enode_django.exceptions import ProjectionsDiffer, RebuildError, RebuildOvertaken
from enode_django.models import Rebuild
from enode_django.rebuilding.catching_up import ROUNDS, CatchingUp, Positions, TooMuchLeft, now
from enode_django.rebuilding.comparing import (
    EXAMPLES,
    Comparison,
    Difference,
    Generation,
    Lag,
    check_volatile,
    compare,
    lagging,
    reached,
)
from enode_django.rebuilding.definitions import quoted
from enode_django.rebuilding.engine import Engine, Plan
from enode_django.rebuilding.replaying import Replayed, Todo, replayer
from enode_django.rebuilding.shadow import Shadow
from enode_django.rebuilding.swapping import Swap
from enode_django.rebuilding.target import State, Target
from enode_django.reporting import Report
from enode_django.runtime import make_store

logger = logging.getLogger("enode_django.rebuilding")

LOOK_AGAIN = 0.2
LOOKS = 25
"""A projection that does not say whose its rows are can only be compared at a moment when nothing is under way."""


class Rebuilt(NamedTuple):
    """The result of a rebuild. ``comparison`` is with the tables that were in use."""

    replayed: Replayed
    comparison: Comparison
    is_swapped: bool
    seconds: float

    def figures(self) -> dict[str, Any]:
        """Return the figures as JSON knows them."""
        return {
            "streams": self.replayed.streams,
            "aggregates": self.replayed.aggregates,
            "parked": list(self.replayed.parked[:100]),
            "compared": self.comparison.compared,
            "differences": self.comparison.rows,
            "behind": len(self.comparison.behind),
            "examples": describe(self.comparison),
            "swapped": self.is_swapped,
            "seconds": round(self.seconds, 1),
        }


def plan(name: str) -> Target:
    """Return the target of a rebuild. Raises `UnknownSubscriber`, and `RebuildError` with all obstacles."""
    target = Target.of(name)
    check_volatile(target)
    target.check()
    return target


def rebuild(
    name: str,
    engine: Engine,
    report: Report,
    *,
    accept_differences: bool = False,
    compare_only: bool = False,
    sample: int = 200,
    archive: str | None = None,
) -> Rebuilt:
    """Blocks until it is done. Raises as `plan`, `ProjectionsDiffer` if the rebuilt rows are not those in use and that
    was not accepted, `RebuildOvertaken`, `TablesInUse`, `SubscriberUnavailable`, and what ``report`` raises."""
    started = time.monotonic()
    target = plan(name)
    record, shadow = target.begin()
    try:
        with _unless_overtaken(target, record):
            store = make_store()
            horizon = now(store)
            replayed = engine.replay(Plan(shadow, target.types(), horizon, archive), report)
            catching_up = CatchingUp(store, engine, shadow, horizon, report)
            catching_up.run()
            _analyze(target, shadow)
            _check_sample(target, record, shadow, sample, report)
            report("compare")
            comparison = _compare_with_used(target, catching_up)
            if not (compare_only or accept_differences or comparison.is_equal):
                raise ProjectionsDiffer(_differ(target, comparison))
            if not compare_only:
                _swap(target, record, catching_up)
    except BaseException:
        _give_up(target, record)
        raise
    if compare_only:
        target.abandon(record)
        if comparison.is_equal:
            target.keep_with_this_code()
    return Rebuilt(replayed + catching_up.total, comparison, not compare_only, time.monotonic() - started)


def undo(name: str, engine: Engine, report: Report) -> Rebuilt:
    """Put the tables back that the last rebuild has replaced, after they were brought up to date.

    Blocks until it is done. Raises `RebuildError` if there are none, or migrations came since, and as `rebuild`.
    """
    started = time.monotonic()
    target = Target.of(name)
    record = target.rebuilds().filter(state=State.SWAPPED, generation=target.generation()).first()
    if record is None:
        raise RebuildError(f"{name} has no rebuild that could be undone: there was none, or it was undone already")
    if record.migrations != target.applied_migrations():
        raise RebuildError(
            f"the rebuild of {name} cannot be undone: migrations of its app were applied or taken back since, and the "
            "tables that it replaced do not have them"
        )
    store = make_store()
    shadow = target.replaced(record)
    since = {shard.number: BEGINNING for shard in store.shards}
    since |= {int(number): Position.parse(text) for number, text in record.positions.items()}
    catching_up = CatchingUp(store, engine, shadow, since, report)
    with _unless_overtaken(target, record):
        catching_up.run()
        comparison = _compare_with_used(target, catching_up)
        _swap(target, record, catching_up)
    return Rebuilt(catching_up.total, comparison, True, time.monotonic() - started)


def describe(comparison: Comparison) -> list[str]:
    """Line by line."""
    lines = [example.text("rebuilt", "in use") for example in comparison.examples]
    lines += [f"{lag.text('rebuilt', 'in use')}: see what is parked" for lag in comparison.behind[:EXAMPLES]]
    lines += [
        f"{table}: not compared: events kept coming, and the projection names no aggregate_field"
        for table in comparison.undecided
    ]
    return lines


def _differ(target: Target, comparison: Comparison) -> str:
    lines = "\n  ".join(describe(comparison))
    return (
        f"the rebuilt tables of {target.name} are not like those in use: {comparison.rows} rows differ among "
        f"{comparison.compared} aggregates, and {len(comparison.behind)} aggregates have not come as far\n  {lines}\n"
        "nothing was swapped; if that is what the new code means, accept the differences"
    )


# -- looking whether it is right --------------------------------------------------------------------------------------


def _analyze(target: Target, shadow: Shadow) -> None:
    """The planner should know the tables when they come into use."""
    for name in target.tables:
        execute(target.alias, f"ANALYZE {quoted(shadow.schema, name)}", None)


def _check_sample(target: Target, record: Rebuild, shadow: Shadow, count: int, report: Report) -> None:
    """Some aggregates are replayed once more, alone, and must come out the same. Raises `RebuildError`."""
    with shadow.opened():
        statement, parameters = reached(target, Generation.of(shadow))
        wanted = f"SELECT * FROM ({statement}) AS reached WHERE version > 0 ORDER BY random() LIMIT %s"
        versions = dict(execute(target.alias, wanted, (*parameters, count)).fetchall())
    report("check a sample", aggregates=len(versions))
    with _scratch(target, record) as scratch, replayer(scratch) as replaying:
        replaying.catch_up([Todo(id, "", version) for id, version in versions.items()])
        fresh, built = Generation.of(scratch), Generation.of(shadow)
        comparison = compare(target, fresh, built, list(versions))
        lags = lagging(target, fresh, built, list(versions))
    if comparison.rows or lags:
        differences: list[Difference | Lag] = [*comparison.examples, *lags[:EXAMPLES]]
        told = [one.text("replayed again", "rebuilt") for one in differences]
        lines = "\n  ".join(told)
        raise RebuildError(
            f"{target.name} does not come out the same each time it is replayed:\n  {lines}\nits handlers depend on "
            "more than the events; call such fields volatile"
        )


@contextmanager
def _scratch(target: Target, record: Rebuild) -> Iterator[Shadow]:
    """Make a shadow for the block, and drop it. If dropping fails, too, the next rebuild drops the rest."""
    scratch = target.make_scratch(record)
    yield scratch
    target.drop(scratch)


def _compare_with_used(target: Target, catching_up: CatchingUp) -> Comparison:
    built = Generation.of(catching_up.shadow)
    for _ in range(LOOKS):
        used = Generation("", target.generation())
        comparison = compare(target, built, used)
        if not comparison.undecided:
            break
        pause(LOOK_AGAIN)
    return comparison._replace(behind=_behind(target, built, used, catching_up) if comparison.apart else ())


def _behind(target: Target, built: Generation, used: Generation, catching_up: CatchingUp) -> list[Lag]:
    """Aggregates that are in use with what they will not have when they are caught up with: parked ones, and such as
    the store or this process does not know."""
    ahead = {lag.aggregate_root_id: lag for lag in lagging(target, built, used)}
    if not ahead:
        return []
    catching_up.run()
    if still := _short_of(ahead, lagging(target, built, used, list(ahead))):
        # An open transaction hides from a round what came after its beginning; workers are told of it all the same.
        catching_up.reach([Todo(lag.aggregate_root_id, "", ahead[lag.aggregate_root_id].other) for lag in still])
        still = _short_of(ahead, lagging(target, built, used, [lag.aggregate_root_id for lag in still]))
    return still


def _short_of(ahead: Mapping[str, Lag], lags: Sequence[Lag]) -> list[Lag]:
    """Return the aggregates that have not come to where the tables in use were."""
    return [lag for lag in lags if lag.one < ahead[lag.aggregate_root_id].other]


@contextmanager
def _unless_overtaken(target: Target, record: Rebuild) -> Iterator[None]:
    """Whatever goes wrong because another rebuild has cleared this one away is told as just that."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RebuildOvertaken) or not _is_overtaken(target, record):
            raise
        raise RebuildOvertaken(f"another rebuild of {target.name} has begun meanwhile: nothing is swapped") from error


def _is_overtaken(target: Target, record: Rebuild) -> bool:
    try:
        connections[target.alias].close_if_unusable_or_obsolete()
        return target.is_overtaken(record)
    except DATABASE_ERRORS:
        return False


# -- the swap ---------------------------------------------------------------------------------------------------------


def _swap(target: Target, record: Rebuild, catching_up: CatchingUp) -> None:
    was, incoming, outgoing = record.state, catching_up.shadow, target.shadow(target.generation())
    swept = _swept(target, catching_up.store)

    def last_steps() -> None:
        locked = target.locked(record, was)
        catching_up.finish()
        locked.state = State.SWAPPED if was == State.BUILDING else State.UNDONE
        locked.positions = {str(number): str(position) for number, position in swept.items()}
        locked.migrations = target.applied_migrations()
        locked.swapped_at = timezone.now()
        locked.save(using=target.alias)

    for _ in range(ROUNDS):
        catching_up.run()
        with suppress(TooMuchLeft):
            Swap(target, incoming, outgoing).run(last_steps)
            logger.info("%s has generation %d in use", target.name, incoming.generation)
            return
    raise RebuildError(f"{target.name} cannot be swapped: events keep coming in faster than they are handled")


def _swept(target: Target, store: EventStore) -> Positions:
    """Below which everything is in the tables in use, whatever else is."""
    found = {}
    for shard in store.shards:
        subscription = checkpoints.subscription(target.alias, target.name, shard.number)
        found[shard.number] = subscription.swept_position if subscription is not None else BEGINNING
    return found


def _give_up(target: Target, record: Rebuild) -> None:
    """The error that ends the rebuild is told, not what clearing away may raise: the next one does it again."""
    try:
        connections[target.alias].close_if_unusable_or_obsolete()
        target.abandon(record)
    except Exception:
        logger.exception("what the rebuild of %s has made so far could not be dropped", target.name)
