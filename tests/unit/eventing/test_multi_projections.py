"""The rows and keys that a `MultiProjection` declares, and its tests without a database."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, models

from enode_django import Command, ModelProjection, MultiProjection, ProcessManager, handles, starts
from enode_django.eventing import subscribers
from enode_django.eventing.code import code_fingerprint, rows_fingerprint
from enode_django.eventing.multi_projections import key_fields
from enode_django.eventing.read_models.row_keys import RowKeys
from enode_django.exceptions import DefinitionError
from enode_django.models import ReadModel
from enode_django.testing import given
from tests.following.orders import CustomerTotal, CustomerTotals, DailyTotals, Ordered, Renamed, Returned, back, order
from tests.following.stays import Nights, booked, cancelled


class Keyed(models.Model):
    code = models.CharField(max_length=10, unique=True)
    maybe = models.CharField(max_length=10, unique=True, null=True)
    day = models.DateField()
    hour = models.IntegerField()
    at = models.DateTimeField(unique=True)
    shop = models.ForeignKey(CustomerTotal, models.CASCADE)
    parts = models.JSONField(unique=True)

    class Meta:
        app_label = "keyed"
        constraints = [
            models.UniqueConstraint(fields=["day", "hour"], name="keyed_hours"),
            models.UniqueConstraint(fields=["day"], name="keyed_day", condition=models.Q(hour=0)),
            models.UniqueConstraint(fields=["shop"], name="keyed_shop"),
        ]


class Together(models.Model):
    pk = models.CompositePrimaryKey("shop", "day")
    shop = models.CharField(max_length=10)
    day = models.DateField()

    class Meta:
        app_label = "keyed"


class Followed(ReadModel):
    class Meta:
        app_label = "keyed"


@dataclasses.dataclass
class Counted:
    orders: int = 0


@pytest.fixture(autouse=True)
def undeclared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without declarations. Forget those of the test after it."""
    monkeypatch.setattr(subscribers, "_declared", [])


def declared(of: type[models.Model], key: Any = None, keys: Any = None, **body: Any) -> type[MultiProjection[Any]]:
    @handles(Ordered)
    def ordered(self: Any, row: Any, event: Any) -> None: ...

    base: Any = MultiProjection[of]  # type: ignore[valid-type]
    named = {"name": "keyed.projection", "ordered": ordered, **body}
    cls: type[MultiProjection[Any]] = types.new_class(
        "Keys", (base,), {"key": key, "keys": keys}, lambda space: space.update(named)
    )
    return cls


@pytest.mark.parametrize(
    ("key_field", "found"),
    [("code", ["code"]), (["hour", "day"], ["hour", "day"]), ("shop", ["shop"])],
)
def test_fields_that_are_unique_identify_rows(key_field: Any, found: list[str]) -> None:
    cls = declared(Keyed, key_field=key_field, key=lambda event: event.customer)
    assert [field.name for field in key_fields(cls)] == found


def test_a_primary_key_identifies_rows_by_itself() -> None:
    assert [field.name for field in key_fields(CustomerTotals)] == ["customer"]
    composite = declared(Together, key=lambda event: (event.customer, event.day))
    assert [field.name for field in key_fields(composite)] == ["shop", "day"]


@pytest.mark.parametrize(
    ("of", "body", "text"),
    [
        (Keyed, {}, "has no key_field, and Keyed counts its primary keys"),
        (Keyed, {"key_field": "id"}, "counts its primary keys"),
        (Keyed, {"key_field": "maybe"}, "by which Keyed may have several rows"),
        (Keyed, {"key_field": "hour"}, "by which Keyed may have several rows"),
        (Keyed, {"key_field": "day"}, "by which Keyed may have several rows"),
        (Keyed, {"key_field": ("code", "day")}, "by which Keyed may have several rows"),
        (Keyed, {"key_field": "parts"}, "has key_field = 'parts' with a JSONField"),
        (Keyed, {"key_field": "nothing"}, "names 'nothing' in key_field, but Keyed has no such field"),
        (Followed, {}, "its rows belong to no single aggregate"),
        (CustomerTotal, {"key": None}, r"has the key None for ordered\(\)"),
        (CustomerTotal, {"key": "customer"}, r"has the key 'customer' for ordered\(\)"),
        (CustomerTotal, {"start": "now"}, "half a past makes no projection"),
    ],
)
def test_rows_that_no_key_identifies_are_refused(of: type[models.Model], body: dict[str, Any], text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        declared(of, **{"key": lambda event: event.customer, **body})


def test_a_model_is_required() -> None:
    with pytest.raises(DefinitionError, match=r"name the model of its rows: MultiProjection\[SomeModel\]"):

        class Without(MultiProjection):  # type: ignore[type-arg]
            @handles(Ordered, key=lambda event: event.customer)
            def ordered(self, row: Any, event: Any) -> None: ...


def test_only_a_multi_projection_takes_keys() -> None:
    with pytest.raises(DefinitionError, match="is marked with a key, @starts or @ends, which are for"):

        class Wrong(ModelProjection[Followed]):
            @handles(key=lambda event: event.customer)
            def ordered(self, row: Followed, event: Ordered) -> None: ...


def test_a_key_is_inherited() -> None:
    class Base(MultiProjection[CustomerTotal], key=lambda event: event.customer):
        name = "keyed.base"

        @handles
        def ordered(self, row: CustomerTotal, event: Ordered) -> None:
            row.orders += 1

    class Derived(Base):
        name = "keyed.derived"

        @handles(key=lambda event: event.buyer)
        def returned(self, row: CustomerTotal, event: Returned) -> None:
            row.orders -= 1

    given(Derived, order("ann", 1), back("bob", 1)).then("ann", orders=1).then("bob", orders=-1)


def test_a_class_has_keys_and_its_handlers_may_have_a_key_or_keys_of_their_own() -> None:
    class Base(MultiProjection[CustomerTotal], keys=lambda event: [event.customer, "all"]):
        name = "keyed.several"

        @handles
        def ordered(self, row: CustomerTotal, event: Ordered) -> None:
            row.orders += 1

        @handles(key=lambda event: event.buyer)
        def returned(self, row: CustomerTotal, event: Returned) -> None:
            row.orders -= 1

        @handles(keys=lambda event: {event.text, event.customer})
        def renamed(self, row: CustomerTotal, event: Renamed) -> None:
            row.text = row.customer

    class Derived(Base, key=lambda event: "only"):
        name = "keyed.one"

    scenario = given(Base, order("ann", 1), back("bob", 1), Renamed(customer="ann", text="eve"))
    scenario.then("ann", orders=1, text="ann").then("all", orders=1).then("bob", orders=-1).then("eve", text="eve")
    assert scenario.rows.keys() == {"ann", "all", "bob", "eve"}
    given(Derived, order("ann", 1), back("bob", 1)).then("only", orders=1).then("bob", orders=-1).then_no_row("all")


def test_an_event_with_several_keys_has_a_scenario() -> None:
    scenario = given(Nights, "a", booked(0, 1)).when(booked(1, 2, 1), id="b").when(cancelled(1, 2), id="b")
    scenario.then(("h", date(2026, 1, 2)), guests=1).then_no_row(("h", date(2026, 1, 3))).then_in_any_order()
    with pytest.raises(ValueError, match="keys returns more than 1,000 keys"):
        scenario.when(booked(*range(1_001)))


def test_a_handler_has_a_key_or_keys() -> None:
    with pytest.raises(
        DefinitionError, match=r"handles\(\) got key=.* and keys=.*; give it key if an event changes one"
    ):
        handles(key=lambda event: 1, keys=lambda event: [1])
    with pytest.raises(DefinitionError, match=r"handles\(\) got keys=\['a'\]; give it a function of the event"):
        handles(keys=["a"])  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match=r"Both got key=.* and keys="):

        class Both(MultiProjection[CustomerTotal], key=lambda event: 1, keys=lambda event: [1]): ...


def test_only_a_multi_projection_takes_several_keys() -> None:
    with pytest.raises(DefinitionError, match="is marked with a key, @starts or @ends, which are for"):

        class Wrong(ModelProjection[Followed]):
            @handles(keys=lambda event: [event.customer])
            def ordered(self, row: Followed, event: Ordered) -> None: ...

    with pytest.raises(DefinitionError, match="returned is marked with keys, which are for a MultiProjection"):

        class Processes(ProcessManager[Counted]):
            @starts
            def ordered(self, state: Counted, event: Ordered) -> None: ...

            @handles(keys=lambda event: [event.buyer])
            def returned(self, state: Counted, event: Returned) -> Iterator[Command]:
                yield from ()


def test_other_keys_are_other_code() -> None:
    def of(key: Callable[[Any], Any], option: str = "key") -> set[str]:
        projection = declared(CustomerTotal, **{option: key})()
        return {rows_fingerprint(projection), code_fingerprint(projection)}

    one = of(lambda event: event.customer)
    assert one.isdisjoint(of(lambda event: event.customer.upper()))
    assert one == of(lambda event: event.customer)
    several = of(lambda event: [event.customer], "keys")
    assert several.isdisjoint(one | of(lambda event: [event.customer], "key"))
    assert several.isdisjoint(of(lambda event: [event.customer, "all"], "keys"))
    assert several == of(lambda event: [event.customer], "keys")


# -- the testing kit ------------------------------------------------------------------------------------------------


def test_rows_are_given_by_the_events_of_several_aggregates() -> None:
    scenario = given(CustomerTotals, "a", order("ann", "1.005"), order("bob", 2))
    scenario.when(order("ann", 3), id="b").when(back("bob", 2))
    assert scenario.then("ann", orders=2, amount=Decimal("4.01")).then_no_row("bob").rows.keys() == {"ann"}
    with pytest.raises(AssertionError, match=r"expected orders of 'ann' to be 3, got 2"):
        scenario.then("ann", orders=3)
    with pytest.raises(DefinitionError, match="CustomerTotal has no field 'order'; its fields are customer, orders"):
        scenario.then("ann", order=2)
    with pytest.raises(AssertionError, match=r"expected a row 'bob' with \{'orders': 1\}, but there are \['ann'\]"):
        scenario.then("bob", orders=1)
    with pytest.raises(AssertionError, match="expected no row 'ann'"):
        scenario.then_no_row("ann")


def test_keys_of_several_fields_are_converted_like_values() -> None:
    scenario = given(DailyTotals, order("ann", 3, day=2))
    scenario.then(("ann", date(2026, 1, 2)), amount=3).then(["ann", "2026-01-02"], amount=3)
    for wrong in ("ann", ("ann", None), ("ann", date(2026, 1, 2), 3)):
        with pytest.raises(ValueError, match="must be a tuple with a value for each of customer, day"):
            scenario.then(wrong)
    with pytest.raises(ValidationError, match=r"the key .* does not fit [a-z_.A-Z]*: "):
        scenario.then(("ann", "no day"))


def test_a_tuple_is_no_key_of_a_single_field() -> None:
    """It would be taken for the text of the tuple."""
    keys = RowKeys(CustomerTotal, [CustomerTotal._meta.pk], connection)
    assert keys.canonical(("ann",)) == keys.canonical("ann") == "ann"
    with pytest.raises(ValueError, match="must be a tuple with a value for each of customer"):
        keys.canonical(("ann", date(2026, 1, 2)))


def test_a_naive_time_is_the_key_of_the_row_that_it_is_stored_in(settings: Any) -> None:
    keys = RowKeys(Keyed, [Keyed._meta.get_field("at")], connection)
    with pytest.warns(RuntimeWarning, match="received a naive datetime"):
        key = keys.canonical(datetime(2026, 1, 2))
    assert key == datetime(2026, 1, 2, tzinfo=ZoneInfo(settings.TIME_ZONE))


class Last(MultiProjection[CustomerTotal], key=lambda event: event.customer):
    name = "keyed.last"
    abstract = True

    @handles
    def ordered(self, row: CustomerTotal, event: Ordered) -> None:
        row.amount = event.amount


def test_rows_must_not_depend_on_the_order_of_aggregates() -> None:
    given(CustomerTotals, "a", order("ann", 1), back("ann", 1)).when(order("ann", 2), id="b").then_in_any_order()
    scenario = given(Last, "a", order("ann", 1)).when(order("ann", 2), id="b").then("ann", amount=2)
    with pytest.raises(AssertionError, match=r"the rows \[\"'ann'\"\] depend on the order of aggregates"):
        scenario.then_in_any_order()


def test_a_scenario_takes_events_only() -> None:
    with pytest.raises(DefinitionError, match="given\\(\\) and when\\(\\) take domain events"):
        given(CustomerTotals, order("ann", 1)).when(datetime.now(UTC))  # type: ignore[arg-type]
