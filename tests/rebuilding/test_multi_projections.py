"""Rows of many aggregates are rebuilt, compared and swapped like others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from enode_django import DomainEvent, MultiProjection, handles
from enode_django.eventing.registry import subscribers
from enode_django.eventing.unparking import retry_parked
from enode_django.exceptions import ProjectionsDiffer, RebuildError
from enode_django.rebuilding import checking
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import rebuild, undo
from enode_django.rebuilding.replaying import Replayed, replayer
from enode_django.rebuilding.target import Target
from tests.following.harness import Harness
from tests.following.orders import (
    CustomerTotal,
    CustomerTotals,
    DailyTotal,
    DailyTotals,
    Ordered,
    back,
    order,
    totals,
    trouble,
)
from tests.following.test_multi_projections import stored
from tests.integration.store_sessions import Call
from tests.rebuilding.conftest import drop_schemas, schemas
from tests.rebuilding.domain import Route
from tests.rebuilding.histories import before_the_last_step, follow, nothing

NAME = CustomerTotals.name
IDS = [f"o{number}" for number in range(12)]


@pytest.fixture
def shop(orders: Harness) -> Iterator[Harness]:
    """Orders of three customers, which `CustomerTotals` and `DailyTotals` have handled."""
    with subscribers.only(CustomerTotals, DailyTotals):
        for number, id in enumerate(IDS):
            stored(orders, id, order(f"c{number % 3}", number), order("all", 1), back(f"c{number % 3}", number))
        follow(CustomerTotals, DailyTotals)
        yield orders
    drop_schemas()


def daily() -> dict[tuple[str, int], Decimal]:
    return {(row.customer, row.day.day): row.amount for row in DailyTotal.objects.all()}


@pytest.mark.parametrize("cls", [CustomerTotals, DailyTotals])
def test_rebuilt_rows_take_the_place_of_those_in_use_and_go_on(shop: Harness, cls: type[MultiProjection[Any]]) -> None:
    before = totals(), daily()
    assert before == (
        {"all": (12, Decimal(12), dict.fromkeys(IDS, "1"))},
        {("all", 1): Decimal(12)} | {(f"c{number}", 1): Decimal(0) for number in range(3)},
    )
    rebuilt = rebuild(cls.name, InProcess(), nothing)
    assert rebuilt.is_swapped
    assert rebuilt.comparison.is_equal
    assert rebuilt.comparison.is_whole
    assert rebuilt.comparison.compared == 12
    assert (totals(), daily()) == before
    stored(shop, "o0", order("all", 5), after=3)
    follow(cls)
    undone = undo(cls.name, InProcess(), nothing)
    assert undone.replayed.aggregates == 1
    follow(cls)
    rows: Any = totals()["all"][1] if cls is CustomerTotals else daily()[("all", 1)]
    assert rows == 17


def test_a_wrong_row_is_reported_by_its_key(shop: Harness) -> None:
    CustomerTotal.objects.filter(pk="all").update(amount=99)
    CustomerTotal.objects.create(pk="nobody")
    with pytest.raises(ProjectionsDiffer) as raised:
        rebuild(NAME, InProcess(), nothing)
    assert "following_customertotal of all: amount: rebuilt 12.00, in use 99.00" in str(raised.value)
    assert "following_customertotal of nobody: only in use" in str(raised.value)
    DailyTotal.objects.filter(customer="c1").delete()
    with pytest.raises(ProjectionsDiffer, match="following_dailytotal of c1, 2026-01-01: only rebuilt"):
        rebuild(DailyTotals.name, InProcess(), nothing)
    assert schemas() == []


def test_rows_are_compared_when_writers_are_locked_out_if_events_keep_coming(
    shop: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong row belongs to no aggregate that changes, but rows can only be compared as a whole."""
    monkeypatch.setattr(checking, "LOOKS", 1)
    CustomerTotal.objects.create(pk="nobody", amount=1)
    version = [3]

    def busy(stage: str, **figures: object) -> None:
        if stage in ("catch up", "compare"):
            stored(shop, "o1", order("all", 1), after=version[0])
            version[0] += 1
            Call(lambda: follow(CustomerTotals)).result()

    with pytest.raises(ProjectionsDiffer, match="of nobody: only in use"):
        rebuild(NAME, InProcess(), busy)
    assert version[0] > 4
    CustomerTotal.objects.filter(pk="nobody").delete()
    rebuilt = rebuild(NAME, InProcess(), busy)
    assert rebuilt.comparison.is_whole
    follow(CustomerTotals)
    assert totals()["all"][1] == 12 + version[0] - 3


def test_a_worker_at_work_during_the_swap_loses_nothing_and_doubles_nothing(
    shop: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events are stored when writers are locked out already; a worker waits for the new tables and handles them."""
    calls: list[Call] = []

    def live() -> None:
        stored(shop, "o1", order("all", 7), after=3)
        stored(shop, "new", order("all", 8))
        calls.append(Call(lambda: follow(CustomerTotals)))

    before_the_last_step(monkeypatch, live)
    rebuild(NAME, InProcess(), nothing)
    calls[0].result()
    follow(CustomerTotals)
    assert totals()["all"][:2] == (14, Decimal(27))


def test_several_processes_build_rows_that_they_share(shop: Harness) -> None:
    """Each replays some of the aggregates into the shadow tables, where all meet in one key, and one part twice."""
    target = Target.of(NAME)
    record, shadow = target.begin()
    records = [one for id in IDS for one in shop.store.load(id)]
    parts = [records[:12], records[12:24], records[24:], records[12:24]]

    def replay(part: int) -> Replayed:
        with replayer(shadow) as replaying:
            return replaying.replay(parts[part])

    calls = [Call(lambda part=part: replay(part)) for part in range(4)]
    assert [call.result().aggregates for call in calls] == [4, 4, 4, 4]
    before = totals()
    with shadow.opened():
        assert totals() == before
    target.abandon(record)


class Doublings(CustomerTotals):
    name = "following.doublings"
    abstract = True

    def ordered(self, row: CustomerTotal, event: Ordered) -> None:
        row.orders = row.orders * 2 + int(event.aggregate_root_id[1:])


def test_the_sample_finds_handlers_that_depend_on_the_order_of_aggregates(shop: Harness) -> None:
    with (
        subscribers.only(Doublings),
        pytest.raises(RebuildError, match="replayed in another order") as raised,
    ):
        rebuild(Doublings.name, InProcess(), nothing, accept_differences=True)
    assert "following_customertotal of all: orders: one way" in str(raised.value)
    assert schemas() == []


class Largest(CustomerTotals):
    """Keeps the first of the equal numbers 1 and 1.0."""

    name = "following.largest"
    abstract = True

    def ordered(self, row: CustomerTotal, event: Ordered) -> None:
        known = row.largest.get("amount")
        given = 1 if event.aggregate_root_id == "o1" else 1.0
        row.largest["amount"] = known if known is not None else given


def test_the_sample_takes_equal_numbers_of_json_for_the_same(orders: Harness) -> None:
    for id in ("o1", "o2"):
        stored(orders, id, order("all", 1))
    try:
        with subscribers.only(Largest):
            assert rebuild(Largest.name, InProcess(), nothing, accept_differences=True).is_swapped
    finally:
        drop_schemas()


class OnlyFirst(CustomerTotals):
    """The first order fails if it comes later than another. The row is the same nevertheless."""

    name = "following.only_first"
    abstract = True

    def ordered(self, row: CustomerTotal, event: Ordered) -> None:
        if row.orders and event.aggregate_root_id == "o1":
            raise ValueError("too late")
        row.orders = 1


def test_the_sample_finds_aggregates_that_fail_in_one_order_alone(orders: Harness) -> None:
    for id in ("o1", "o2"):
        stored(orders, id, order("all", 1))
    try:
        with subscribers.only(OnlyFirst), pytest.raises(RebuildError, match="replayed in another order") as raised:
            rebuild(OnlyFirst.name, InProcess(), nothing, accept_differences=True)
    finally:
        drop_schemas()
    told = re.search("o1: one way up to version (.), the other way round up to version (.)\n", str(raised.value))
    assert told is not None
    assert sorted(told.groups()) == ["0", "1"]


class AfterTheFirst(CustomerTotals):
    """Handles an order only if the first order has come."""

    name = "following.after_the_first"
    abstract = True

    def ordered(self, row: CustomerTotal, event: Ordered) -> None:
        if not row.orders and event.aggregate_root_id != "o1":
            raise ValueError("not yet")
        row.orders += 1


def test_the_sample_retries_an_aggregate_that_needs_another_one_first(orders: Harness) -> None:
    for id in ("o1", "o2"):
        stored(orders, id, order("all", 1))
    try:
        with subscribers.only(AfterTheFirst):
            rebuilt = rebuild(AfterTheFirst.name, InProcess(), nothing, accept_differences=True)
    finally:
        drop_schemas()
    assert rebuilt.replayed.parked == ()
    assert CustomerTotal.objects.get().orders == 2


class Routes(MultiProjection[Route], key=lambda event: tuple(event.customer.split("|"))):
    name = "rebuilding.routes"
    abstract = True
    key_field = ("origin", "destination")

    @handles
    def ordered(self, row: Route, event: Ordered) -> None:
        row.orders = int(event.aggregate_root_id[1:]) if event.amount else 0


@pytest.mark.parametrize("amounts", [(1, 0), (0, 1)])
def test_the_sample_tells_keys_apart_that_look_the_same_if_they_are_joined(
    orders: Harness, rebuilding_tables: None, amounts: tuple[int, int]
) -> None:
    for id in ("o1", "o2"):
        stored(orders, id, order("x, y|z", amounts[0]), order("x|y, z", amounts[1]))
    try:
        with subscribers.only(Routes), pytest.raises(RebuildError, match="of x, y, z: orders: one way") as raised:
            rebuild(Routes.name, InProcess(), nothing, accept_differences=True)
        assert str(raised.value).count("one way") == 1
    finally:
        drop_schemas()


def test_an_aggregate_that_fails_in_a_rebuild_is_parked_and_retried_after_the_swap(
    shop: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "LOOKS", 1)

    def fail(event: DomainEvent) -> None:
        if event.aggregate_root_id == "o4" and event.version == 2:
            raise RuntimeError("told to fail")

    trouble.happens = fail
    rebuilt = rebuild(NAME, InProcess(), nothing, accept_differences=True, accept_uncompared=True)
    assert rebuilt.replayed.parked == ("o4",)
    assert totals()["all"][:2] == (11, Decimal(11))
    trouble.happens = lambda event: None
    assert retry_parked(shop.subscription(subscribers.instance(CustomerTotals)), "o4") is None
    assert totals() == {"all": (12, Decimal(12), dict.fromkeys(IDS, "1"))}
