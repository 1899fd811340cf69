"""The lag of subscribers: by the queue, and by comparison with the store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from enode_django.bus.messages import encode_published
from enode_django.conf import conf
from enode_django.equeue.messages import Commit
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventing import checkpoints
from enode_django.eventing.registry import subscribers
from enode_django.eventstore import amounts
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.positions import BEGINNING, Position
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.statements import TABLE
from enode_django.ids import new_id
from enode_django.models import ParkedEvent, ProjectionGeneration
from enode_django.monitoring import Health, Lag, lags, subscriber_lags
from enode_django.monitoring.lags import ask_lags
from tests.status.conftest import Configure, broker_at

pytestmark = pytest.mark.django_db

NAME = "bank.AccountSummaries"
AGES_AGO = 600.0


@pytest.fixture(autouse=True)
def one_subscriber() -> Iterator[None]:
    with subscribers.only(subscribers.get(NAME)):
        yield


@pytest.fixture
def new_table() -> None:
    """Empty files for the table of the store: the database fills gaps that other tests have left in the old ones, so
    that the rows that it finds first need not be the oldest."""
    connection.cursor().execute(f"TRUNCATE {TABLE}")


@pytest.fixture
def transport() -> MemoryTransport:
    made = MemoryTransport()
    made.create_topic(conf().SUBSCRIBERS.TOPIC, 2)
    return made


def stream(version: int = 1, ago: float = 0.0, of: str = "bank.BankAccount") -> StreamRecord:
    made_at = datetime.now(UTC) - timedelta(seconds=ago)
    return StreamRecord(new_id(), version, new_id(), of, "bank.Deposit", made_at, b"", b"")


def store(*records: StreamRecord) -> None:
    PostgresEventStore().append(records)


def begin(position: Position = BEGINNING) -> None:
    checkpoints.subscribe("default", NAME, PostgresEventStore().number, position)


def lag_of(transport: MemoryTransport) -> Lag:
    (lag,) = subscriber_lags(transport)
    return lag


def send(transport: MemoryTransport, *records: StreamRecord, handled: int = 0) -> None:
    """Send the records to the first queue. The subscriber has committed ``handled`` of them."""
    topic = conf().SUBSCRIBERS.TOPIC
    epoch = transport.acquire(NAME, topic, 0, "me", 1e6).epoch
    transport.acquire(NAME, topic, 1, "me", 1e6)
    transport.send(topic, {0: [encode_published(record) for record in records]})
    transport.commit(NAME, topic, {0: Commit(epoch, handled)})


def test_of_a_subscriber_that_never_ran_nothing_is_known(transport: MemoryTransport) -> None:
    assert lag_of(transport) == Lag(NAME, None, None, None, None, 0, 0, has_begun=False)


def test_what_waits_in_the_queue_is_as_old_as_its_oldest_message(transport: MemoryTransport) -> None:
    begin()
    send(transport, stream(1, ago=300), stream(2, ago=90), stream(3), handled=1)
    lag = lag_of(transport)
    assert (lag.versions, lag.waiting, lag.uncompared) == (2, 2, None)
    assert lag.seconds is not None
    assert 90 <= lag.seconds < 300


def test_who_has_handled_everything_is_not_behind(transport: MemoryTransport) -> None:
    begin()
    send(transport, stream(1, ago=300), handled=1)
    assert lag_of(transport)[:5] == (NAME, 0, 0.0, 0, None)


def test_messages_that_the_queue_has_lost_are_not_waited_for(transport: MemoryTransport) -> None:
    begin()
    send(transport, stream(1, ago=300), handled=0)
    transport._queues[conf().SUBSCRIBERS.TOPIC][0].trim(1)
    assert lag_of(transport)[:4] == (NAME, 0, 0.0, 0)


def test_the_past_of_a_new_projection_counts_until_it_was_compared(transport: MemoryTransport) -> None:
    store(stream(ago=AGES_AGO), stream(ago=AGES_AGO))
    begin()
    send(transport, handled=0)
    lag = lag_of(transport)
    assert (lag.versions, lag.waiting, lag.uncompared) == (2, 0, 2)
    assert lag.seconds is not None
    assert lag.seconds >= AGES_AGO
    (row,) = connection.cursor().execute("SELECT pg_current_xact_id()::text::bigint").fetchall()
    checkpoints.save_swept("default", NAME, PostgresEventStore().number, Position(0, row[0] + 1))
    assert lag_of(transport)[:5] == (NAME, 0, 0.0, 0, None)


def test_what_was_stored_just_now_will_be_compared_soon(transport: MemoryTransport) -> None:
    store(stream(ago=1))
    begin()
    send(transport)
    assert lag_of(transport).versions == 0


@pytest.mark.usefixtures("new_table")
def test_very_much_is_not_counted_but_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amounts, "COUNTED", 3)
    store(*(stream(ago=AGES_AGO) for _ in range(20)))
    assert amounts.stored_since("default", BEGINNING).all.streams == 20
    assert amounts.stored_since("default", Position(0, 2**40)) == ((0, None), {})


@pytest.mark.usefixtures("new_table")
def test_only_streams_of_types_that_concern_a_subscriber_count(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(stream(ago=AGES_AGO), *(stream(ago=2 * AGES_AGO, of="notes.Note") for _ in range(3)))
    begin()
    lag = lag_of(transport)
    assert (lag.versions, lag.uncompared) == (1, 1)
    assert lag.seconds is not None
    assert AGES_AGO <= lag.seconds < 2 * AGES_AGO
    monkeypatch.setattr(amounts, "COUNTED", 3)
    store(*(stream(ago=AGES_AGO, of="notes.Note") for _ in range(16)))
    assert lag_of(transport).versions == 5, "a quarter of what was counted, of 20"


def test_much_to_compare_is_better_rebuilt(transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    def reasons() -> list[str]:
        return [reason for _, reason in ask_lags().problems if NAME in reason]

    store(*(stream(ago=AGES_AGO) for _ in range(4)))
    begin()
    assert reasons() == [f"{NAME} has 4 streams to compare with the store"]
    monkeypatch.setattr(lags, "MANY", 3)
    assert reasons() == [
        f"{NAME} has 4 streams to compare with the store; manage.py rebuildprojection {NAME} is done sooner"
    ]


def test_parked_aggregates_and_the_build_of_the_tables_are_told(transport: MemoryTransport) -> None:
    begin()
    ProjectionGeneration.objects.create(subscriber=NAME, generation=3)
    for id in "ab":
        ParkedEvent.objects.create(
            subscriber=NAME,
            aggregate_root_type="bank.BankAccount",
            aggregate_root_id=id,
            command_id=id,
            error_type="ValueError",
            error="",
            attempts=1,
            first_failed_at=Now(),
            last_failed_at=Now(),
        )
    lag = lag_of(transport)
    assert (lag.parked, lag.build, lag.has_begun) == (2, 3, True)


def test_without_the_queue_the_store_is_compared_all_the_same(configure: Configure, closed_port: int) -> None:
    store(stream(ago=AGES_AGO))
    begin()
    configure(QUEUE=broker_at(closed_port))
    finding = ask_lags()
    (lag,) = finding.rows
    assert (lag.waiting, lag.uncompared, lag.versions) == (None, 1, 1)
    assert [problem.health for problem in finding.problems] == [Health.DEGRADED, Health.DEGRADED]
