from __future__ import annotations

from itertools import islice

import pytest
from django.db import connection

from enode_django.eventstore.fetched import FetchedRecords
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.testing.event_store_read_contract import history

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_fetched_history_is_a_sequence_that_outlives_its_connection() -> None:
    stored = history("a", 250)
    PostgresEventStore().append([*stored, *history("b", 3)])
    connection.ensure_connection()
    fetched = FetchedRecords(connection, "a", 0, 250, 1_000)
    connection.close()
    assert fetched == stored
    assert fetched != stored[1:]
    assert len(fetched) == 250
    assert fetched.last(2) == stored[-2:]
    assert (fetched[0], fetched[101], fetched[-1]) == (stored[0], stored[101], stored[-1])
    assert list(fetched[5:230:100]) == stored[5:230:100]
    with pytest.raises(IndexError):
        fetched[250]
    one, other = iter(fetched), iter(fetched)
    assert [*islice(one, 150), *islice(other, 150), *one] == [*stored[:150], *stored[:150], *stored[150:]]


def test_a_history_without_streams_is_empty() -> None:
    connection.ensure_connection()
    fetched = FetchedRecords(connection, "unknown", 0, 250, 1_000)
    assert list(fetched) == fetched.last(10) == []
