"""The rows of a batch of a `MultiProjection` are what each event alone would make of them. A batch that the database
refuses is handled again event by event, so these tests look at one batch alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, models, transaction
from django.db.models import Case, Exists, F, OuterRef, Q, Subquery, Value, When
from django.db.models.functions import Upper
from django.test.utils import isolate_apps

from enode_django.eventing.read_models.keyed_changes import KeyedChanges, KeyedEvent
from enode_django.eventing.read_models.keyed_rows import KeyedRowTable, _digest
from enode_django.eventing.read_models.row_keys import RowKeys
from tests.following.harness import Harness
from tests.following.orders import Customer, CustomerTotal, DailyTotal, Rack
from tests.integration.store_sessions import wait_until
from tests.outbox.harness import another_thread, holds_somebody_up, read_rows_as_they_lie

Handler = Callable[[Any, Any], None]
LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
PLACE = UUID(int=1)
OTHERS: models.QuerySet[CustomerTotal] = CustomerTotal._base_manager.all()


def table(model: type[Any], *names: str) -> KeyedRowTable[Any]:
    return KeyedRowTable(model, "default", [model._meta.get_field(name) for name in names], "following.some")


def handle(rows: KeyedRowTable[Any], handled: Sequence[tuple[Any, Handler]]) -> None:
    """Handle one event for each (key, handler) in one batch."""
    with transaction.atomic():
        changes = KeyedChanges(rows.lock({key for key, _ in handled}), rows, None)
        for key, handler in handled:
            changes.handle(KeyedEvent(key, None, [handler]))  # type: ignore[arg-type]
        changes.write(rows)


def delete(row: Any, event: Any) -> None:
    row._enode_deleted = True


def leave(row: Any, event: Any) -> None: ...


def test_a_row_is_deleted_and_made_anew_in_one_batch(orders: Harness) -> None:
    def count(row: Any, event: Any) -> None:
        row.orders += 1

    rows = table(CustomerTotal, "customer")
    handle(rows, [("ann", count), ("ann", count)])
    handle(rows, [("ann", delete), ("ann", count)])
    assert CustomerTotal._base_manager.get().orders == 1


def test_a_row_that_is_deleted_and_made_anew_is_looked_up_between_two_events(orders: Harness) -> None:
    def change(row: Any, event: Any) -> None:
        seen.append((row.label, row.amounts))
        row.amounts = [*row.amounts, len(seen)]

    seen: list[Any] = []
    rows = table(Rack, "place")
    handle(rows, [(PLACE, change), (PLACE, change)])
    handle(rows, [(PLACE, delete), (PLACE, change), (PLACE, change)])
    assert [amounts for _, amounts in seen] == [[], [1], [], [3]]
    assert [label for label, _ in seen][1::2] == ["new", "new"]
    assert Rack._base_manager.get().amounts == [3, 4]


def test_what_an_earlier_aggregate_has_changed_is_kept_if_a_later_one_fails(orders: Harness) -> None:
    def count(row: Any, event: Any) -> None:
        row.orders += 1

    rows = table(CustomerTotal, "customer")
    handle(rows, [("ann", count)])
    with transaction.atomic():
        changes = KeyedChanges(rows.lock(["ann", "bob"]), rows, None)
        changes.handle(KeyedEvent("ann", None, [count]))  # type: ignore[arg-type]
        go_back = changes.kept(["ann", "bob"])
        for name in ("ann", "bob"):
            changes.handle(KeyedEvent(name, None, [count]))  # type: ignore[arg-type]
        go_back()
        changes.write(rows)
    assert list(CustomerTotal._base_manager.values_list("customer", "orders")) == [("ann", 2)]


def test_a_row_that_only_a_failing_aggregate_has_changed_is_not_written(orders: Harness) -> None:
    rows = table(Rack, "place")
    handle(rows, [(PLACE, leave)])
    Rack._base_manager.update(changed_at=LONG_AGO)
    with transaction.atomic():
        changes = KeyedChanges(rows.lock([PLACE]), rows, None)
        go_back = changes.kept([PLACE])
        changes.handle(KeyedEvent(PLACE, None, [leave]))  # type: ignore[arg-type]
        go_back()
        changes.write(rows)
    assert Rack._base_manager.get().changed_at == LONG_AGO


def test_bytes_that_an_earlier_aggregate_has_set_are_kept_if_a_later_one_fails(orders: Harness) -> None:
    def set_bytes(row: Any, event: Any) -> None:
        row.seal = memoryview(b"kept")

    def spoil(row: Any, event: Any) -> None:
        row.seal = b"lost"

    rows = table(Rack, "place")
    with transaction.atomic():
        changes = KeyedChanges(rows.lock([PLACE]), rows, None)
        changes.handle(KeyedEvent(PLACE, None, [set_bytes]))  # type: ignore[arg-type]
        go_back = changes.kept([PLACE])
        changes.handle(KeyedEvent(PLACE, None, [spoil]))  # type: ignore[arg-type]
        go_back()
        changes.write(rows)
    assert Rack._base_manager.get().seal == b"kept"


def test_new_rows_with_and_without_expressions_are_made_in_one_batch(orders: Harness) -> None:
    def compute(row: Any, event: Any) -> None:
        row.text = Upper(Value(row.customer))

    def write(row: Any, event: Any) -> None:
        row.text = row.customer

    rows = table(CustomerTotal, "customer")
    handle(rows, [("ann", compute), ("bob", write), ("cat", compute), ("cat", leave)])
    assert dict(CustomerTotal._base_manager.values_list("customer", "text")) == {
        "ann": "ANN",
        "bob": "bob",
        "cat": "CAT",
    }


@pytest.mark.parametrize(
    "expression",
    [
        pytest.param(F("text"), id="value"),
        pytest.param(Case(When(orders__gt=0, then=Value("many"))), id="condition"),
        pytest.param(Case(When(Q(~Q(orders=0), amount=0), then=Value("many"))), id="conditions"),
        pytest.param(Subquery(OTHERS.filter(pk=OuterRef("text")).values("text")), id="subquery"),
        pytest.param(Subquery(OTHERS.annotate(its=OuterRef("text")).values("its")[:1]), id="column of a subquery"),
        pytest.param(Subquery(OTHERS.values("pk").union(OTHERS.filter(pk=OuterRef("pk")).values("pk"))), id="union"),
        pytest.param(
            Subquery(
                OTHERS.filter(pk=Subquery(OTHERS.filter(pk=OuterRef(OuterRef("pk"))).values("pk")[:1])).values("text")
            ),
            id="subquery of a subquery",
        ),
        pytest.param(
            Subquery(OTHERS.annotate(its=Case(When(pk=OuterRef("text"), then=Value("many")))).values("its")[:1]),
            id="condition of a subquery",
        ),
        pytest.param(Case(When(Exists(OTHERS.filter(pk=OuterRef("pk"))), then=Value("many"))), id="whether rows exist"),
        pytest.param(OTHERS.filter(pk=OuterRef("text")).values("text"), id="query"),
    ],
)
def test_no_expression_of_a_stored_row_names_a_column(orders: Harness, expression: Any) -> None:
    def compute(row: Any, event: Any) -> None:
        row.text = expression

    rows = table(CustomerTotal, "customer")
    handle(rows, [("ann", leave)])
    with pytest.raises(ValueError, match="which names a column"):
        handle(rows, [("ann", compute)])


def test_a_subquery_that_names_columns_of_its_own_rows_alone_is_stored(orders: Harness) -> None:
    def compute(row: Any, event: Any) -> None:
        row.text = Subquery(OTHERS.filter(Exists(OTHERS.filter(pk=OuterRef("pk"))), pk="bob").values("pk"))

    rows = table(CustomerTotal, "customer")
    handle(rows, [("ann", leave), ("bob", leave)])
    handle(rows, [("ann", compute)])
    assert CustomerTotal._base_manager.get(pk="ann").text == "bob"


def test_rows_may_be_nothing_but_keys(orders: Harness) -> None:
    rows = table(Customer, "name")
    for _ in range(2):
        handle(rows, [("ann", leave), ("ann", leave)])
    assert [row.name for row in Customer._base_manager.all()] == ["ann"]


@pytest.mark.parametrize("model", [DailyTotal, Rack], ids=["in arrays", "one by one"])
def test_a_handler_may_change_the_date_of_making_of_a_stored_row(orders: Harness, model: type[Any]) -> None:
    def date_back(row: Any, event: Any) -> None:
        row.made_at = LONG_AGO

    names, key = (("customer", "day"), ("ann", date(2026, 1, 1))) if model is DailyTotal else (("place",), PLACE)
    rows = table(model, *names)
    handle(rows, [(key, leave)])
    handle(rows, [(key, date_back)])
    handle(rows, [(key, leave)])
    assert model._base_manager.get().made_at == LONG_AGO


@isolate_apps("tests.following")
def test_a_key_is_the_value_that_its_column_stores() -> None:
    class Price(models.Model):
        amount = models.DecimalField(max_digits=5, decimal_places=2, primary_key=True)

        class Meta:
            app_label = "following"

    keys = RowKeys(Price, [Price._meta.pk], connection)
    assert keys.canonical(Decimal("0.005")) == keys.canonical("0.01") == Decimal("0.01")


# -- locks ------------------------------------------------------------------------------------------------------------

NAMES = [f"c{number:02}" for number in range(20)]


def lock_all(rows: KeyedRowTable[Any]) -> None:
    with transaction.atomic():
        rows.lock(NAMES)


def test_a_worker_that_waits_for_a_row_keeps_no_later_one_locked(orders: Harness) -> None:
    """So workers never wait for each other in a circle. The rows lie in the table in another order than their keys."""
    rows = table(CustomerTotal, "customer")
    CustomerTotal._base_manager.bulk_create(CustomerTotal(customer=name) for name in reversed(NAMES))
    with another_thread() as elsewhere:
        elsewhere(read_rows_as_they_lie).result(60)
        with transaction.atomic():
            CustomerTotal._base_manager.select_for_update().get(customer=NAMES[0])
            locking = elsewhere(lambda: lock_all(rows))
            wait_until(holds_somebody_up)
            assert len(CustomerTotal._base_manager.select_for_update(nowait=True)) == len(NAMES)
        locking.result(60)


def test_a_worker_that_waits_for_a_key_without_a_row_has_claimed_no_later_one(orders: Harness) -> None:
    rows = table(CustomerTotal, "customer")
    first, *others = sorted(NAMES, key=_digest)
    with another_thread() as elsewhere:
        with transaction.atomic():
            rows.lock([first])
            locking = elsewhere(lambda: lock_all(rows))
            wait_until(holds_somebody_up)
            connection.cursor().execute("SET LOCAL lock_timeout = 200")
            assert rows.lock(others) == {}, "nobody has to be waited for"
        locking.result(60)
