from __future__ import annotations

import doctest
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from enode_django.equeue.messages import GroupState
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import StoreUnavailable, TransportUnavailable
from enode_django.monitoring import probes
from enode_django.monitoring.probes import BrokerHealth
from enode_django.processors import observing, worker_group
from enode_django.processors.observing import Observations, backlog_of
from tests.integration.running import wait_for

WELL = {
    **{"planned_workers": 2, "planned_event_workers": 1, "beating_workers": 3},
    **{"failing_workers": 0, "stopping": False, "finished": 5},
}


GAUGES = {"dead_letters": {"processors": 2}}


class Queue(MemoryTransport):
    is_away = False

    def groups(self, topic: str) -> Mapping[str, GroupState]:
        if self.is_away:
            raise TransportUnavailable("it is away")
        return super().groups(topic)


class Store(MemoryEventStore):
    is_away = False

    def heads(self, aggregate_root_ids: Any) -> Mapping[str, int]:
        if self.is_away:
            raise StoreUnavailable("it is away")
        return super().heads(aggregate_root_ids)


@pytest.fixture
def queue() -> Queue:
    queue = Queue()
    queue.create_topic("commands", 2)
    queue.send("commands", {0: [b"1", b"2"], 1: [b"3"]})
    lease = queue.acquire("processors", "commands", 0, "w", 60)
    assert lease is not None
    return queue


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def seen(queue: Queue, store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Observations]:
    monkeypatch.setattr(observing, "WATCH_INTERVAL", 0.01)
    monkeypatch.setattr(observing, "GAUGE_INTERVAL", 0.01)
    monkeypatch.setattr(observing, "ANSWERS_WITHIN", 0.1)

    def measure() -> Mapping[str, Any]:
        if store.is_away:
            raise StoreUnavailable("it is away")
        return GAUGES

    observations = Observations(queue, ["commands"], store, measure)
    observations.start()
    yield observations
    observations.stop()


def test_a_worker_fails_that_has_lived_shortly_again_and_again() -> None:
    done = doctest.testmod(worker_group)
    assert (done.attempted > 0, done.failed) == (True, 0)


def test_what_works_is_live_and_ready(seen: Observations) -> None:
    seen.look(WELL)
    wait_for(lambda: seen.is_not_ready() == [])
    assert seen.is_not_live() == []
    # An answer counts for a moment only, so that one of two may be missing while threads wait for a processor.
    wait_for(lambda: seen.figures() == {**WELL, "backlog": {"commands": {"processors": 3}}, **GAUGES})


def test_it_is_not_ready_before_the_workers_are_up(seen: Observations) -> None:
    wait_for(lambda: seen.is_not_ready() == ["0 of 0 workers are up"])
    seen.look({**WELL, "beating_workers": 1})
    wait_for(lambda: seen.is_not_ready() == ["1 of 3 workers are up"])
    assert seen.is_not_live() == [], "they are being started"


def test_it_is_not_ready_while_it_stops(seen: Observations) -> None:
    seen.look({**WELL, "stopping": True})
    wait_for(lambda: seen.is_not_ready() == ["it is stopping"])


def test_workers_that_end_again_and_again_are_no_life(seen: Observations) -> None:
    seen.look({**WELL, "failing_workers": 2})
    assert seen.is_not_live() == ["2 workers end again and again"]


def test_a_supervisor_that_hangs_is_no_life(seen: Observations, monkeypatch: pytest.MonkeyPatch) -> None:
    seen.look(WELL)
    turned = time.monotonic()
    monkeypatch.setattr(observing.time, "monotonic", lambda: turned + observing.TURNS_WITHIN + 1)
    assert seen.is_not_live() == ["the supervisor hangs"]


def test_a_queue_or_a_store_that_is_away_makes_it_not_ready_but_leaves_it_live(
    seen: Observations, queue: Queue, store: Store
) -> None:
    seen.look(WELL)
    queue.is_away = True
    wait_for(lambda: seen.is_not_ready() == ["the queue does not answer"])
    assert "backlog" not in seen.figures()
    store.is_away = True
    wait_for(lambda: seen.is_not_ready() == ["the queue does not answer", "the event store does not answer"])
    wait_for(lambda: "dead_letters" not in seen.figures())
    assert seen.is_not_live() == []
    queue.is_away = store.is_away = False
    wait_for(lambda: seen.is_not_ready() == [])


def test_the_backlog_is_what_a_group_has_not_committed(queue: Queue) -> None:
    assert backlog_of(queue, ["commands"]) == {"commands": {"processors": 3}}


def test_a_broker_is_live_while_its_loop_turns_and_ready_while_it_takes_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = BrokerHealth()
    assert (broker.is_not_live(), broker.is_not_ready()) == ([], ["the broker takes no connections"])
    broker.ready()
    assert broker.is_not_ready() == []
    turned = time.monotonic()
    monkeypatch.setattr(probes.time, "monotonic", lambda: turned + probes.BROKER_TURNS_WITHIN + 1)
    assert broker.is_not_ready() == broker.is_not_live() == ["the broker hangs"]
    monkeypatch.undo()
    broker.turned()
    broker.stopping()
    assert broker.is_not_ready() == ["the broker takes no connections"]
