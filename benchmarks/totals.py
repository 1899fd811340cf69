"""Orders, and a projection with a row for each customer, who has many of them; for the processes of a run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal

from django.db import models

from enode_django import AggregateRoot, DomainEvent, MultiProjection, applies, handles
from enode_django.eventstore.base import StreamRecord
from enode_django.ids import new_id
from enode_django.serialization.codec import encode_stream
from enode_django.serialization.registry import types

AMOUNT = Decimal("1.25")


class Ordered(DomainEvent):
    type_name = "benchmarks.Ordered"
    customer: str
    amount: Decimal


class Order(AggregateRoot):
    type_name = "benchmarks.Order"

    @applies
    def _ordered(self, event: Ordered) -> None: ...


class CustomerTotal(models.Model):
    customer = models.CharField(max_length=40, primary_key=True, db_collation="C")
    orders = models.IntegerField(default=0)
    amount = models.DecimalField(max_digits=20, decimal_places=2, default=0)

    class Meta:
        app_label = "benchmarks"


class CustomerTotals(MultiProjection[CustomerTotal], key=lambda event: event.customer):
    name = "benchmarks.CustomerTotals"

    @handles
    def ordered(self, row: CustomerTotal, event: Ordered) -> None:
        row.orders += 1
        row.amount += event.amount


def history(aggregates: int, count: int, keys: int, seed: int = 1) -> list[StreamRecord]:
    """Return orders of random aggregates, each for a random one of ``keys`` customers."""
    choose = random.Random(seed).randrange
    ids = [new_id() for _ in range(aggregates)]
    versions = dict.fromkeys(ids, 0)
    now, type_name = datetime.now(UTC), types.name_of(Order)
    records = []
    for _ in range(count):
        id = ids[choose(aggregates)]
        versions[id] += 1
        event = Ordered(customer=f"customer {choose(keys)}", amount=AMOUNT)
        records.append(
            StreamRecord(id, versions[id], new_id(), type_name, "benchmarks.Place", now, encode_stream([event]), b"")
        )
    return records


def customers(records: Sequence[StreamRecord]) -> list[Ordered]:
    """Return the events of the records."""
    from enode_django.repository.loading import StoredStamp
    from enode_django.serialization.codec import decode_events

    found = [event for record in records for event in decode_events(record.events, StoredStamp(record))]
    return [event for event in found if isinstance(event, Ordered)]
