"""The figures for alarms come from the tables and the queue, so a restart does not reset them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.db.models.functions import Now

from enode_django.conf import conf
from enode_django.equeue.dead_letters import discard
from enode_django.equeue.messages import PulledBatch
from enode_django.equeue.retrying import Failed, Message, encode_failed
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventing.registry import subscribers
from enode_django.eventstore.dead_letters import DeadLetter, MemoryDeadLetters
from enode_django.exceptions import TransportUnavailable
from enode_django.models import ParkedEvent
from enode_django.monitoring.gauges import Gauges
from tests.status.test_lags import NAME, begin, send, stream

pytestmark = pytest.mark.django_db


class Queue(MemoryTransport):
    is_away = False

    def __init__(self) -> None:
        super().__init__()
        self.pulled: list[str] = []

    def pull(self, topic: str, *given: Any, **options: Any) -> Sequence[PulledBatch]:
        self.pulled.append(topic)
        return super().pull(topic, *given, **options)

    def topics(self) -> list[str]:
        if self.is_away:
            raise TransportUnavailable("it is away")
        return list(super().topics())


@pytest.fixture(autouse=True)
def one_subscriber() -> Iterator[None]:
    with subscribers.only(subscribers.get(NAME)):
        yield


@pytest.fixture
def queue() -> Queue:
    made = Queue()
    made.create_topic(conf().SUBSCRIBERS.TOPIC, 2)
    return made


def letters(number: int) -> MemoryDeadLetters:
    made = MemoryDeadLetters()
    made.keep([DeadLetter(str(n), "c", "x", "t", "commands", 0, n, "KeyError", "", b"", False) for n in range(number)])
    return made


def park(subscriber: str, id: str) -> None:
    ParkedEvent.objects.create(
        subscriber=subscriber,
        aggregate_root_id=id,
        version=1,
        attempts=1,
        first_failed_at=Now(),
        last_failed_at=Now(),
        next_try_at=Now(),
    )


def test_parked_aggregates_are_counted_and_0_is_said(queue: Queue) -> None:
    assert Gauges(queue, [])()["parked_aggregates"] == {NAME: 0}
    park(NAME, "a")
    park(NAME, "b")
    park("gone.Projection", "a")
    assert Gauges(queue, [])()["parked_aggregates"] == {NAME: 2, "gone.Projection": 1}


def test_the_lag_is_that_of_events_which_nobody_has_pulled(queue: Queue) -> None:
    begin()
    send(queue, stream(1, ago=300))
    assert Gauges(queue, [])()["subscriber_lags"][NAME] >= 300


def test_a_lag_that_is_not_known_is_left_out(queue: Queue) -> None:
    assert Gauges(queue, [])()["subscriber_lags"] == {}, "it never ran"
    begin()
    send(queue, stream(1, ago=300))
    queue.is_away = True
    assert "subscriber_lags" not in Gauges(queue, [])()


def test_dead_letters_of_commands_and_of_every_other_group_are_counted(queue: Queue) -> None:
    measure = Gauges(queue, [letters(2), letters(1)])
    assert measure()["dead_letters"] == {"processors": 3}
    queue.create_topic("dead.billing", 1)
    failed = Failed(Message("orders", 0, 0, b"", attempt=2), "ValueError: no", 0.0, 0.0)
    queue.send("dead.billing", {0: [encode_failed(failed)] * 2})
    assert measure()["dead_letters"] == {"processors": 3, "billing": 2}
    discard(queue, "billing", [0])
    assert measure()["dead_letters"] == {"processors": 3, "billing": 1}
    queue.is_away = True
    assert measure()["dead_letters"] == {"processors": 3}, "the rows are known all the same"


def test_the_letters_of_a_group_are_read_once_and_only_after_a_change(queue: Queue) -> None:
    queue.create_topic("dead.billing", 1)
    queue.send("dead.billing", {0: [b"?"]})
    measure = Gauges(queue, [])
    assert [measure()["dead_letters"]["billing"] for _ in range(3)] == [1, 1, 1]
    assert queue.pulled == ["dead.billing"]
    queue.send("dead.billing", {0: [b"?"]})
    assert measure()["dead_letters"]["billing"] == 2
