from __future__ import annotations

import pytest
from django.db import connection

from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.statements import TABLE
from enode_django.models import EventStream
from enode_django.testing.event_store_read_contract import refusal, stream

pytestmark = pytest.mark.django_db


def test_the_model_and_the_drivers_mean_the_same_table() -> None:
    assert EventStream._meta.db_table == TABLE


def test_a_row_names_its_aggregate_and_version_or_its_refusal() -> None:
    PostgresEventStore().append([stream("a-1", 1), refusal("a-2", "command-9")])
    first, second = EventStream.objects.order_by("sequence")
    assert str(first) == "bank.BankAccount a-1 version 1"
    assert str(second) == "bank.BankAccount a-2 refused bank.Deposit command-9"


def test_a_row_carries_the_transaction_that_wrote_it() -> None:
    PostgresEventStore().append([stream("a", 1), stream("b", 1)])
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id()::text::bigint")
        (current,) = cursor.fetchone()
    assert {row.transaction_id for row in EventStream.objects.all()} == {current}
    assert EventStream.objects.filter(transaction_id=current).count() == 2
    assert EventStream.objects.filter(transaction_id__lt=current).count() == 0
