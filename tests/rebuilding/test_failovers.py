"""A generation of the store begins before, during or after a rebuild: no event is counted twice, no erased one comes
back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from enode_django.eventing import failovers
from enode_django.eventing.registry import subscribers
from enode_django.exceptions import RebuildError, TablesInUse
from enode_django.models import GenerationCheck, Rebuild
from enode_django.rebuilding import swapping
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import rebuild, swap_kept, undo
from enode_django.rebuilding.target import Target
from tests.following.domain import Added, CounterRows
from tests.following.harness import Harness
from tests.following.orders import CustomerTotals, order, totals
from tests.following.test_generations import ahead, begin_generation, swept_again
from tests.following.test_multi_projections import stored
from tests.following.test_sweeping import Sweep
from tests.integration.store_sessions import bare_session
from tests.rebuilding.conftest import drop_schemas, schemas
from tests.rebuilding.histories import before_the_last_step, nothing

ROWS = CounterRows.name


@pytest.fixture
def shop(orders: Harness) -> Iterator[Harness]:
    with subscribers.only(CustomerTotals):
        yield orders
    drop_schemas()


def in_use() -> int:
    return Target.of(ROWS).generation()


# -- built in the new generation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_heard", [True, False])
def test_events_of_the_new_generation_are_not_handled_again_after_a_swap(shop: Harness, has_heard: bool) -> None:
    """The rows in use are compared with the store from before the generation; those rebuilt have later events."""
    sweep = Sweep(shop, subscribers.instance(CustomerTotals))
    stored(shop, "o1", order("ann", 3))
    stored(shop, "o2", order("ann", 4))
    sweep.run()
    begin_generation(shop)
    if has_heard:
        failovers.notice("default", sweep.name, 0, shop.store.position().generation)
    stored(shop, "o1", order("ann", 5), after=1)
    assert rebuild(CustomerTotals.name, InProcess(), nothing, accept_differences=True).is_swapped
    assert totals()["ann"][:2] == (3, 12)
    swept_again(sweep, shop)
    assert totals()["ann"][:2] == (3, 12)
    assert not GenerationCheck.objects.exists()
    assert failovers.known("default", sweep.name)[0].is_healed


def test_what_was_compared_before_a_swap_counts_for_the_next_failover(shop: Harness) -> None:
    sweep = Sweep(shop, subscribers.instance(CustomerTotals))
    stored(shop, "o1", order("ann", 3))
    sweep.run()
    begin_generation(shop)
    assert rebuild(CustomerTotals.name, InProcess(), nothing).is_swapped
    (lost,) = stored(shop, "o1", order("ann", 5), after=1)
    shop.deliver(sweep.subscription, [lost])
    ahead(shop, lost)
    swept_again(sweep, shop)
    (check,) = GenerationCheck.objects.all()
    assert (check.stored_version, check.handled_version) == (1, 2)


# -- built in an earlier one ------------------------------------------------------------------------------------------


def test_a_rebuild_during_which_a_generation_begins_is_not_swapped(
    projections: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep(projections, subscribers.instance(CounterRows))
    records = projections.stored("c", Added(amount=1), Added(amount=10))
    projections.deliver(sweep.subscription, records)
    before_the_last_step(monkeypatch, lambda: ahead(projections, records[1]))
    with pytest.raises(RebuildError, match="the event store was restored or failed over meanwhile"):
        rebuild(ROWS, InProcess(), nothing)
    assert (in_use(), schemas()) == (0, [])
    swept_again(sweep, projections)
    assert projections.rows() == {"c": ("", 1, 1)}
    assert rebuild(ROWS, InProcess(), nothing).is_swapped
    assert projections.rows() == {"c": ("", 1, 1)}


def test_what_was_kept_before_a_failover_is_dropped_and_not_swapped(
    projections: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep(projections, subscribers.instance(CounterRows))
    records = projections.stored("c", Added(amount=1), Added(amount=10))
    projections.deliver(sweep.subscription, records)
    with monkeypatch.context() as patch, bare_session() as session:
        patch.setattr(swapping, "ATTEMPTS", 2)
        patch.setattr(swapping, "LOCK_TIMEOUT", "50ms")
        session.execute("SELECT count(*) FROM following_counterrow")
        with pytest.raises(TablesInUse, match="what was built is kept"):
            rebuild(ROWS, InProcess(), nothing)
    ahead(projections, records[1])
    swept_again(sweep, projections)
    with pytest.raises(RebuildError, match="the event store was restored or failed over meanwhile"):
        swap_kept(ROWS, InProcess(), nothing, accept_differences=True)
    assert (in_use(), schemas()) == (0, [])
    assert projections.rows() == {"c": ("", 1, 1)}


def test_tables_with_erased_events_are_not_put_back(projections: Harness) -> None:
    sweep = Sweep(projections, subscribers.instance(CounterRows))
    records = projections.stored("c", Added(amount=1), Added(amount=10))
    projections.deliver(sweep.subscription, records)
    rebuild(ROWS, InProcess(), nothing)
    ahead(projections, records[1])
    projections.stored("c", Added(amount=100), after=1)
    swept_again(sweep, projections)
    assert projections.rows() == {"c": ("", 101, 2)}
    with pytest.raises(RebuildError, match="the event store was restored or failed over meanwhile"):
        undo(ROWS, InProcess(), nothing)
    assert in_use() == 1
    assert projections.rows() == {"c": ("", 101, 2)}


def test_tables_that_were_replaced_before_they_were_compared_are_not_put_back(projections: Harness) -> None:
    sweep = Sweep(projections, subscribers.instance(CounterRows))
    records = projections.stored("c", Added(amount=1), Added(amount=10))
    projections.deliver(sweep.subscription, records)
    ahead(projections, records[1])
    rebuild(ROWS, InProcess(), nothing, accept_differences=True)
    assert projections.rows() == {"c": ("", 1, 1)}
    with pytest.raises(RebuildError, match="the event store was restored or failed over meanwhile"):
        undo(ROWS, InProcess(), nothing)
    assert projections.rows() == {"c": ("", 1, 1)}


def test_tables_replaced_after_they_were_compared_are_put_back(projections: Harness) -> None:
    sweep = Sweep(projections, subscribers.instance(CounterRows))
    projections.deliver(sweep.subscription, projections.stored("c", Added(amount=1)))
    begin_generation(projections)
    swept_again(sweep, projections)
    rebuild(ROWS, InProcess(), nothing)
    projections.deliver(sweep.subscription, projections.stored("c", Added(amount=10), after=1))
    assert undo(ROWS, InProcess(), nothing).is_swapped
    swept_again(sweep, projections)
    assert projections.rows() == {"c": ("", 11, 2)}
    assert Rebuild.objects.get().state == Rebuild.State.UNDONE
