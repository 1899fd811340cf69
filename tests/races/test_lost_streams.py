"""A failover to a standby that lacks the last streams, while a worker has their aggregates in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection

from enode_django.bus.results import CommandStatus
from enode_django.eventstore.base import Outcome
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.ids import new_id
from enode_django.models import EventStream
from enode_django.testing.event_store_read_contract import stream
from tests.races.counting import Add, AddWithin, Create
from tests.races.harness import Worker

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def worker() -> Worker:
    worker = Worker(PostgresEventStore())
    worker.send(Create("a"), Create("b"))
    worker.settle()
    return worker


def lose(after: int, *ids: str) -> None:
    """Do what a failover does: erase the streams after this version, begin a generation, and end the sessions."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"DELETE FROM {EventStream._meta.db_table} WHERE aggregate_root_id = ANY(%s) AND version > %s",
            [list(ids), after],
        )
    store = PostgresEventStore()
    store.begin_generation(store.position().generation)
    connection.close()


def versions(id: str) -> list[int | None]:
    return [record.version for record in PostgresEventStore().load(id)]


def test_no_version_is_left_out_after_streams_were_lost(worker: Worker) -> None:
    worker.send(Add("a"), Add("a"), Add("b"))
    worker.settle()
    lose(1, "a")
    worker.send(Add("a"), Add("b"), Add("a"))
    worker.settle()
    assert (versions("a"), versions("b")) == ([1, 2, 3], [1, 2, 3])
    assert {answer.status for answer in worker.answers.values()} == {CommandStatus.SUCCESS}


def test_what_was_decided_on_lost_streams_is_decided_anew(worker: Worker) -> None:
    worker.send(Add("a"), Add("a"))
    worker.settle()
    worker.send(Add("a"), Add("b"))
    worker.handle()
    lose(1, "a")
    worker.settle()
    assert (versions("a"), versions("b")) == ([1, 2], [1, 2])


@pytest.mark.parametrize(
    "read",
    [
        lambda store: list(store.load("a")),
        lambda store: store.load_many(["a"]),
        lambda store: store.load_many(["a", "b"]),
        lambda store: store.load_ranges({"a": (0, 9)}),
    ],
    ids=["one", "one of many", "many", "ranges"],
)
def test_process_that_has_only_read_before_the_failover_stores_nothing_on_lost_streams(
    read: Callable[[PostgresEventStore], object],
) -> None:
    PostgresEventStore().append([stream("a", 1), stream("a", 2)])
    store = PostgresEventStore()
    read(store)
    lose(1, "a")
    for _ in range(2):
        appended = store.append([stream("a", 3), stream(new_id(), 1), stream("a", 4)])
        assert [one.outcome for one in appended] == [Outcome.CONFLICT, Outcome.STORED, Outcome.DEPENDENT]
    assert versions("a") == [1]


def test_refusal_that_was_decided_on_lost_streams_is_decided_anew(worker: Worker) -> None:
    worker.send(Add("a"), Add("a"))
    worker.settle()
    lose(1, "a")
    (within,) = worker.send(AddWithin("a", limit=2))
    worker.settle()
    assert worker.answers[within.id].status is CommandStatus.SUCCESS


def test_an_aggregate_that_rests_for_long_after_the_failover_is_compared_too(worker: Worker) -> None:
    worker.send(Add("a"), Add("b"))
    worker.settle()
    lose(1, "a", "b")
    for id in "aabbab":
        worker.send(Add(id))
        worker.settle()
    assert (versions("a"), versions("b")) == ([1, 2, 3, 4], [1, 2, 3, 4])


def test_streams_of_a_second_failover_are_compared_anew(worker: Worker) -> None:
    for _ in range(2):
        worker.send(Add("a"), Add("a"))
        worker.settle()
        lose(1, "a")
    worker.send(Add("a"))
    worker.settle()
    assert versions("a") == [1, 2]
