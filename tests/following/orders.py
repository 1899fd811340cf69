"""Orders, and projections whose rows are fed by many of them. `trouble` tells handlers when to fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models

from enode_django import AggregateRoot, DomainEvent, MultiProjection, applies, handles


class Ordered(DomainEvent):
    type_name = "orders.Ordered"
    customer: str | None
    amount: Decimal
    day: date = date(2026, 1, 1)


class Returned(DomainEvent):
    type_name = "orders.Returned"
    buyer: str
    amount: Decimal


class Renamed(DomainEvent):
    type_name = "orders.Renamed"
    customer: str
    text: str


class Order(AggregateRoot):
    type_name = "orders.Order"

    @applies(Ordered, Returned, Renamed)
    def _ignore(self, event: DomainEvent) -> None: ...


@dataclasses.dataclass
class Trouble:
    """``happens`` is called by each handler of `CustomerTotals` after it has changed its row."""

    happens: Callable[[DomainEvent], object] = lambda event: None


trouble = Trouble()


class CustomerTotal(models.Model):
    customer = models.CharField(max_length=20, primary_key=True)
    orders = models.IntegerField(default=0)
    amount = models.DecimalField(max_digits=12, decimal_places=2, default=0)
    largest = models.JSONField(default=dict)
    text = models.CharField(max_length=10, null=True, unique=True)

    class Meta:
        app_label = "following"


class FirstAmount(models.CharField):
    """Has the amount that the row was made with, as slugs have a title."""

    def pre_save(self, row: Any, add: bool) -> Any:
        if add:
            row.first = str(row.amount)
        return row.first


class DailyTotal(models.Model):
    """A row for each customer and day, with a counted primary key."""

    customer = models.CharField(max_length=20)
    day = models.DateField()
    amount = models.DecimalField(max_digits=12, decimal_places=2, default=0)
    first = FirstAmount(max_length=20)
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "following"
        constraints = [models.UniqueConstraint(fields=["customer", "day"], name="following_dailytotal_key")]


class CustomerTotals(MultiProjection[CustomerTotal], key=lambda event: event.customer):
    name = "following.customer_totals"

    @handles
    def ordered(self, row: CustomerTotal, event: Ordered) -> None:
        row.orders += 1
        row.amount += event.amount
        row.largest[event.aggregate_root_id] = str(event.amount)
        trouble.happens(event)

    @handles(key=lambda event: event.buyer)
    def returned(self, row: CustomerTotal, event: Returned) -> None:
        row.orders -= 1
        row.amount -= event.amount
        row.largest.pop(event.aggregate_root_id, None)
        if not (row.orders or row.amount or row.largest):
            self.delete(row)
        trouble.happens(event)

    @handles
    def renamed(self, row: CustomerTotal, event: Renamed) -> None:
        row.text = event.text
        trouble.happens(event)


class DailyTotals(MultiProjection[DailyTotal]):
    name = "following.daily_totals"
    key_field = ("customer", "day")
    volatile = ("first", "made_at")

    @handles(creates=True, key=lambda event: (event.customer, event.day))
    def ordered(self, row: DailyTotal, event: Ordered) -> None:
        row.amount += event.amount

    @handles(key=lambda event: (event.buyer, date(2026, 1, 1)))
    def returned(self, row: DailyTotal, event: Returned) -> None:
        row.amount -= event.amount


class Rack(models.Model):
    """A row with fields that go into no array, with a default and a column of the database."""

    place = models.UUIDField(unique=True)
    amounts = ArrayField(models.IntegerField(), default=list)
    label = models.CharField(max_length=10, db_default="new")
    changes = models.IntegerField(default=0)
    seal = models.BinaryField(null=True)
    doubled = models.GeneratedField(
        expression=models.F("changes") * 2, output_field=models.IntegerField(), db_persist=True
    )
    made_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        app_label = "following"


class Racks(MultiProjection[Rack], key=lambda event: event.customer):
    name = "following.shelves"
    key_field = "place"
    volatile = ("made_at", "changed_at")

    @handles
    def ordered(self, row: Rack, event: Ordered) -> None:
        row.amounts.append(int(event.amount))
        row.changes = row.changes + 1 if row.pk is None else row.doubled // 2 + 1

    @handles(key=lambda event: event.buyer)
    def returned(self, row: Rack, event: Returned) -> None:
        row.label = "returned"


class Customer(models.Model):
    """A row that is nothing but its key."""

    name = models.CharField(max_length=20, primary_key=True)

    class Meta:
        app_label = "following"


MODELS = (CustomerTotal, DailyTotal, Rack, Customer)


def totals() -> dict[str, tuple[int, Decimal, dict[str, str]]]:
    return {row.pk: (row.orders, row.amount, row.largest) for row in CustomerTotal.objects.all()}


def order(customer: str | None, amount: int | str, day: int = 1) -> Ordered:
    return Ordered(customer=customer, amount=Decimal(amount), day=date(2026, 1, day))


def back(customer: str, amount: int | str) -> Returned:
    return Returned(buyer=customer, amount=Decimal(amount))
