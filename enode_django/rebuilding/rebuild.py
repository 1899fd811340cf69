"""Rebuild a projection without downtime: replay, catch up, compare, swap; and undo a rebuild.

Nothing in use is changed before the swap, so a rebuild that fails or crashes leaves the projection as it was. The next
rebuild begins by dropping what was left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from django.db import connections

from enode_django.eventstore.base import EventStore
from enode_django.eventstore.positions import BEGINNING, Position
from enode_django.eventstore.sqlstates import DATABASE_ERRORS
from enode_django.exceptions import RebuildError, RebuildOvertaken, TablesInUse
from enode_django.jobs.progress import Report
from enode_django.models import Rebuild
from enode_django.rebuilding.catching_up import CatchingUp, Positions, corrections_now, generations_of, now
from enode_django.rebuilding.checking import Check
from enode_django.rebuilding.comparing import Comparison, check_volatile
from enode_django.rebuilding.completing import complete
from enode_django.rebuilding.engine import Engine, Plan
from enode_django.rebuilding.letting_go import let_go
from enode_django.rebuilding.putting_in_use import put_in_use
from enode_django.rebuilding.results import Accepted, Rebuilt
from enode_django.rebuilding.retrying import retry_parked
from enode_django.rebuilding.sampling import check_sample
from enode_django.rebuilding.shadow import Shadow
from enode_django.rebuilding.target import State, Target
from enode_django.runtime import make_store

logger = logging.getLogger("enode_django.rebuilding")

MOST_FAILURES = 1_000
"""Aggregates that may be parked, by default. If more fail, the handlers should be corrected first."""


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
    accept_uncompared: bool = False,
    compare_only: bool = False,
    sample: int = 200,
    max_failures: int = MOST_FAILURES,
    archive: str | None = None,
) -> Rebuilt:
    """Rebuild a projection. Blocks until it is done.

    Raises as `plan` does; `RebuildError` if more than ``max_failures`` aggregates are parked; `ProjectionsDiffer` if
    the rebuilt rows differ from those in use, or were not all compared, and this was not accepted; `RebuildOvertaken`;
    `SubscriberUnavailable`; and what ``report`` raises. If the swap raises `TablesInUse`, the built tables are kept for
    `swap_kept`; otherwise they are dropped.
    """
    started = time.monotonic()
    target = plan(name)
    record, shadow = target.begin(keeps_usable=compare_only)
    shadow = shadow._replace(max_failures=max_failures)
    with _given_up(target, record):
        store = make_store()
        corrections = corrections_now(store)
        horizon = now(store)
        replayed = engine.replay(Plan(shadow, target.types(), horizon, archive), report)
        catching_up = CatchingUp(store, engine, shadow, horizon, report, corrections, generations_of(horizon))
        complete(target, catching_up)
        catching_up.run()
        target.analyze(shadow)
        still = retry_parked(target, store, shadow)
        catching_up.check_history()  # otherwise the sample would blame the handlers
        check_sample(target, record, catching_up, sample)
        accepted = None if compare_only else Accepted(accept_differences, accept_uncompared)
        comparison = _compare_and_swap(target, record, catching_up, accepted)
    if compare_only:
        target.abandon(record)
        if comparison.is_equal and comparison.is_whole:
            target.keep_with_this_code()
    total = (replayed + catching_up.total)._replace(parked=tuple(still))
    return Rebuilt(total, comparison, not compare_only, time.monotonic() - started)


def swap_kept(
    name: str, engine: Engine, report: Report, *, accept_differences: bool = False, accept_uncompared: bool = False
) -> Rebuilt:
    """Swap the tables that the last rebuild has kept because it could not swap them. Blocks.

    Raises `RebuildError` if there are none, if other code has built them, or if events were corrected or erased since
    the rebuild began; and as `rebuild` does.
    """
    started = time.monotonic()
    target = plan(name)
    record = target.kept()
    if record is None:
        raise RebuildError(f"{name} has nothing that could be swapped: no rebuild by this code has kept what it built")
    store = make_store()
    shadow = target.shadow(record.generation)
    accepted = Accepted(accept_differences, accept_uncompared)
    with _given_up(target, record):
        corrections, generations = _by_shard(record.corrections), _by_shard(record.generations)
        catching_up = CatchingUp(store, engine, shadow, _positions(store, record), report, corrections, generations)
        catching_up.check_history()
        catching_up.run()
        comparison = _compare_and_swap(target, record, catching_up, accepted)
    return Rebuilt(catching_up.total, comparison, True, time.monotonic() - started)


def has_kept(name: str) -> bool:
    """Return True if `swap_kept` has something to swap. Raises as `Target.of` does."""
    return Target.of(name).kept() is not None


def _compare_and_swap(
    target: Target, record: Rebuild, catching_up: CatchingUp, accepted: Accepted | None
) -> Comparison:
    """Compare the tables, and swap them unless ``accepted`` is None."""
    catching_up.report("compare")
    check = Check(target, record, catching_up)
    try:
        check.run()
        if accepted is not None:
            accepted.check(target.name, check.comparison, is_last=False)
            catching_up.check_history()
            target.keep(record, catching_up.positions, catching_up.corrections or {}, catching_up.generations)
            put_in_use(target, record, catching_up, check, accepted)
    except BaseException:
        with suppress(Exception):  # the next rebuild or swap drops it
            check.close()
        raise
    try:
        check.close()
    except Exception:  # the tables are swapped: the rebuild has not failed
        logger.exception("what the comparison of %s has used is dropped by the next rebuild", target.name)
    return check.comparison


def _positions(store: EventStore, record: Rebuild) -> Positions:
    since = {shard.number: BEGINNING for shard in store.shards}
    return since | {int(number): Position.parse(text) for number, text in record.positions.items()}


def _by_shard(stored: Mapping[str, int]) -> dict[int, int]:
    return {int(number): value for number, value in stored.items()}


def undo(name: str, engine: Engine, report: Report) -> Rebuilt:
    """Put back the tables that the last rebuild has replaced, after catching them up. Blocks until it is done.

    Raises `RebuildError` if there are none, if migrations were applied or reversed since, or if they may have events
    that the store has lost; and as `rebuild` does.
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
    generations = _by_shard(record.generations)
    catching_up = CatchingUp(store, engine, shadow, _positions(store, record), report, generations=generations)
    with _unless_overtaken(target, record), _let_go_if_it_fails(target, shadow):
        catching_up.check_history()
        complete(target, catching_up, keys_only=True)
        catching_up.run()
        check = Check(target, record, catching_up)
        check.look()
        put_in_use(target, record, catching_up)
    return Rebuilt(catching_up.total, check.comparison, True, time.monotonic() - started)


@contextmanager
def _let_go_if_it_fails(target: Target, replaced: Shadow) -> Iterator[None]:
    """Drop the foreign keys that `complete` has made if the block raises, since the tables stay out of use."""
    try:
        yield
    except BaseException:
        with suppress(Exception):  # it must not hide the error
            connections[target.alias].close_if_unusable_or_obsolete()
            let_go(target, replaced)
        raise


@contextmanager
def _unless_overtaken(target: Target, record: Rebuild) -> Iterator[None]:
    """Raise `RebuildOvertaken` instead of any error if another rebuild has dropped this one."""
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


@contextmanager
def _given_up(target: Target, record: Rebuild) -> Iterator[None]:
    """Drop what was built if the block raises, unless it can be swapped later."""
    try:
        with _unless_overtaken(target, record):
            yield
    except TablesInUse as error:
        if not target.is_kept(record):
            _give_up(target, record)
            raise
        raise TablesInUse(
            f"{error}; what was built is kept, bring it into use by manage.py rebuildprojection {target.name} --swap"
        ) from error
    except BaseException:
        _give_up(target, record)
        raise


def _give_up(target: Target, record: Rebuild) -> None:
    """Drop the new tables. An error is only logged: it must not hide the one that ended the rebuild."""
    try:
        connections[target.alias].close_if_unusable_or_obsolete()
        target.abandon(record)
    except Exception:
        logger.exception("what the rebuild of %s has made so far could not be dropped", target.name)
