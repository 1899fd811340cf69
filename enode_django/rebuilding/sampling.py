"""The check of a sample: another replay of some aggregates must give the same rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter

from enode_django.databases import execute
from enode_django.eventing.multi_projections import MultiProjection
from enode_django.eventstore.base import EventStore
from enode_django.exceptions import RebuildError
from enode_django.models import Rebuild
from enode_django.rebuilding.catching_up import CatchingUp
from enode_django.rebuilding.clearing import clear
from enode_django.rebuilding.comparing import (
    EXAMPLES,
    Difference,
    Generation,
    Lag,
    compare,
    lagging,
    loaded,
    paired,
    reached,
)
from enode_django.rebuilding.meanings import meaning
from enode_django.rebuilding.replaying import Todo, replayer
from enode_django.rebuilding.retrying import retry_parked
from enode_django.rebuilding.shadow import Shadow
from enode_django.rebuilding.target import Target


def check_sample(target: Target, record: Rebuild, catching_up: CatchingUp, count: int) -> None:
    """Replay up to ``count`` random aggregates again, without the others. Raises `RebuildError` if their rows differ.
    Rows of many aggregates are not there without the others: these aggregates are replayed twice, in opposite orders.
    Blocks."""
    shadow = catching_up.shadow
    with shadow.opened():
        statement, parameters = reached(target, Generation.of(shadow))
        wanted = f"SELECT * FROM ({statement}) AS reached WHERE version > 0 ORDER BY random() LIMIT %s"
        versions = dict(execute(target.alias, wanted, (*parameters, count)).fetchall())
    catching_up.report("check a sample", aggregates=len(versions))
    if isinstance(target.subscriber, MultiProjection):
        _check_orders(target, record, catching_up.store, versions)
        return
    with _scratch(target, record) as scratch, replayer(scratch) as replaying:
        replaying.catch_up([Todo(id, "", version) for id, version in versions.items()])
        retry_parked(target, catching_up.store, scratch, versions)
        fresh, built = Generation.of(scratch), Generation.of(shadow)
        comparison = compare(target, fresh, built, list(versions))
        lags = lagging(target, fresh, built, list(versions))
    if comparison.rows or lags:
        differences: list[Difference | Lag] = [*comparison.examples, *lags[:EXAMPLES]]
        lines = "\n  ".join(one.text("replayed again", "rebuilt") for one in differences)
        raise RebuildError(
            f"{target.name} does not come out the same each time it is replayed:\n  {lines}\nits handlers depend on "
            "more than the events; call such fields volatile"
        )


def _check_orders(target: Target, record: Rebuild, store: EventStore, versions: Mapping[str, int]) -> None:
    orders = [*versions.items()], [*versions.items()][::-1]
    (one, one_reached), (other, other_reached) = (_replayed(target, record, store, dict(some)) for some in orders)
    found = [(False, *row) for row in (one - other).elements()] + [(True, *row) for row in (other - one).elements()]
    rows = [(is_other, key, loaded(fields)) for is_other, key, fields in sorted(found, key=itemgetter(1))]
    # Numbers of JSON may be equal in value, and not as texts.
    differences: list[Difference | Lag] = [row for row in paired(target.tables[0], rows) if row.one != row.other]
    lags = [Lag(id, one_reached.get(id, 0), other_reached.get(id, 0)) for id in versions]
    differences += [lag for lag in lags if lag.one != lag.other]
    if differences:
        lines = "\n  ".join(one.text("one way", "the other way round") for one in differences[:EXAMPLES])
        raise RebuildError(
            f"{target.name} does not come out the same when the same aggregates are replayed in another order:\n"
            f"  {lines}\nits handlers depend on more than the events, or on an order that events of different "
            "aggregates do not have; let them count, add up, or keep values by the id of the aggregate; call fields "
            "volatile that may differ"
        )


def _replayed(
    target: Target, record: Rebuild, store: EventStore, versions: Mapping[str, int]
) -> tuple[Counter[tuple[str, str]], dict[str, int]]:
    """Replay aggregates in this order, in tables of their own. Return the rows, by the text of key and fields (several
    keys may have the same text), and the versions that the aggregates have reached."""
    (model,) = target.written
    with _scratch(target, record) as scratch, replayer(scratch) as replaying:
        replaying.catch_up([Todo(id, "", version) for id, version in versions.items()])  # a batch in this order
        retry_parked(target, store, scratch, versions)
        generation = Generation.of(scratch)
        rows = meaning(target, model, generation.place)
        found = execute(target.alias, f"SELECT {rows.name}, ({rows.fields})::text FROM {rows.tables}", ())
        return Counter(found.fetchall()), dict(execute(target.alias, *reached(target, generation)).fetchall())


@contextmanager
def _scratch(target: Target, record: Rebuild) -> Iterator[Shadow]:
    """Make a shadow for the block, and drop it afterwards. If the block raises, it is dropped with the rebuild."""
    scratch = target.make_scratch(record)
    yield scratch
    clear(scratch)
