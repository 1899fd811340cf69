from __future__ import annotations

from datetime import UTC
from itertools import islice

import pytest
from django.db import connection

from enode_django import AggregateRoot, applies
from enode_django.eventstore.fetched import FetchedRecords
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import AggregateTypeMismatch, BrokenHistory, MalformedMessage
from enode_django.repository.loading import AggregateLoader, replay_records
from enode_django.testing.event_store_read_contract import history
from tests.snapshots.domain import Put, Shelf
from tests.snapshots.histories import store_history, streams


class Listener(AggregateRoot):
    """Keeps the events it has heard."""

    type_name = "fetched.Listener"

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.heard: list[Put] = []

    @applies(Put)
    def _put(self, event: Put) -> None:
        if event.fails:
            raise ValueError("told to fail")
        self.heard.append(event)


def loaded(id: str, way: str) -> AggregateRoot | None:
    store = PostgresEventStore()
    return AggregateLoader(store).load(id) if way == "alone" else replay_records(store.load_many([id])[id])


ways = pytest.mark.parametrize("way", ["alone", "in a portion"])

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


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_a_moment_is_in_utc_whatever_the_session_says(zone: str) -> None:
    (stored,) = history("a", 1)
    PostgresEventStore().append([stored])
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('TimeZone', %s, false)", [zone])
    (fetched,) = FetchedRecords(connection, "a", 0, 1, 1)
    assert (fetched.created_at, fetched.created_at.tzinfo) == (stored.created_at, UTC)


@ways
def test_an_event_that_is_kept_says_where_it_comes_from(way: str) -> None:
    stored = store_history(PostgresEventStore(), "a", 1_250, Listener)
    listener = loaded("a", way)
    assert isinstance(listener, Listener)
    connection.close()
    assert [event.amount for event in listener.heard] == list(range(1, 1_251))
    for event, record in zip(listener.heard, stored, strict=True):
        said = (event.aggregate_root_id, event.version, event.command_id, event.timestamp, event.metadata.causation_id)
        assert said == ("a", record.version, record.command_id, record.created_at, record.command_id)


@ways
def test_the_stream_that_cannot_be_applied_is_named(way: str) -> None:
    store_history(PostgresEventStore(), "a", 150, Listener, fails_at=120)
    with pytest.raises(BrokenHistory, match=r"version 120 of 'a' cannot be applied: .*told to fail"):
        loaded("a", way)


@ways
def test_a_stream_of_another_type_is_named(way: str) -> None:
    store_history(PostgresEventStore(), "a", 120, Listener)
    store_history(PostgresEventStore(), "a", 130, Shelf, after=120)
    with pytest.raises(AggregateTypeMismatch, match="version 121 of 'a' is that of"):
        loaded("a", way)


@ways
def test_bytes_that_are_no_stream_are_refused(way: str) -> None:
    *most, last = streams("a", range(1, 151), Listener)
    PostgresEventStore().append([*most, last._replace(events=last.events[:-1])])
    with pytest.raises(MalformedMessage, match="bytes are not a message of ours"):
        loaded("a", way)
