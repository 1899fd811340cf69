from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime

import pytest

from enode_django.bus.messages import encode_published
from enode_django.conf import make_conf
from enode_django.equeue.consumer.queue_consumer import PulledMessages
from enode_django.equeue.messages import PulledBatch
from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import StoreUnavailable, TransportUnavailable
from enode_django.processors.event_pipeline import oldest_of
from tests.unit.processors.event_workers import (
    SOON,
    DividedByHand,
    Worker,
    committed,
    prepared,
    running,
    send,
    wait_for,
)


def test_each_subscriber_gets_every_message_and_has_offsets_of_its_own(
    transport: DividedByHand, worker: Worker
) -> None:
    send(transport, b"1", b"2", queue=0)
    send(transport, b"3", queue=1)
    for name in "ab":
        worker.wait_bodies(name, b"1", b"2", b"3")
        wait_for(lambda name=name: committed(transport, name) == 3, f"{name} commits")  # type: ignore[misc]
    assert worker.owned == {0, 1}
    assert frozenset({0, 1}) in worker.notebooks["a"].ticks


def test_a_subscriber_that_is_held_up_holds_up_no_other(transport: DividedByHand, worker: Worker) -> None:
    go_on = threading.Event()
    worker.notebooks["a"].before = lambda: wait_for(go_on.is_set, "a may go on")
    send(transport, b"1")
    worker.wait_bodies("b", b"1")
    send(transport, b"2")
    wait_for(lambda: committed(transport, "b") == 2, "b commits")
    assert worker.notebooks["a"].bodies == []
    assert committed(transport, "a") == 0
    go_on.set()
    worker.wait_bodies("a", b"1", b"2")


@pytest.mark.parametrize("error", [TransportUnavailable("gone"), StoreUnavailable("gone")], ids=["queue", "store"])
def test_a_batch_that_fails_for_the_moment_is_handled_again(
    transport: DividedByHand, worker: Worker, error: Exception
) -> None:
    errors = [error, error]

    def fail_twice() -> None:
        if errors:
            raise errors.pop()

    worker.notebooks["a"].before = fail_twice
    send(transport, b"1")
    worker.wait_bodies("a", b"1")
    assert errors == []
    wait_for(lambda: committed(transport, "a") == 1, "a commits")


def test_what_was_set_aside_is_tried_again_when_it_is_due(transport: DividedByHand, worker: Worker) -> None:
    notebook = worker.notebooks["a"]
    send(transport, b"bad", b"good")
    worker.wait_bodies("a", b"bad", b"good")
    assert committed(transport, "a") == 0
    notebook.next_retry = time.monotonic() + 0.01
    wait_for(lambda: committed(transport, "a") == 2, "a commits")
    wait_for(lambda: worker.statistics.report()["parked"] == 1, "the report says so")


def handled_by(worker: Worker) -> dict[str, int]:
    return {name: one["handled"] for name, one in worker.statistics.report()["subscribers"].items()}


def test_the_report_counts_for_each_subscriber(transport: DividedByHand, worker: Worker) -> None:
    send(transport, b"1", b"2")
    wait_for(lambda: handled_by(worker) == {"a": 2, "b": 2}, "two each")
    assert worker.statistics.report()["handled"] == 4


class PullFails(DividedByHand):
    failures = 2

    def pull(self, topic: str, offsets: Mapping[int, int], *, limit: int, wait: float) -> Sequence[PulledBatch]:
        if self.failures:
            self.failures -= 1
            raise TransportUnavailable("gone")
        return super().pull(topic, offsets, limit=limit, wait=wait)


def test_a_transport_that_was_away_is_pulled_from_again() -> None:
    transport = prepared(PullFails())
    with running(Worker(transport), 0) as worker:
        send(transport, b"1")
        worker.wait_bodies("a", b"1")
        worker.wait_bodies("b", b"1")


class RenewsOnlyForB(DividedByHand):
    def __init__(self) -> None:
        super().__init__()
        self.renewed = threading.Semaphore(0)

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        if group == "a":
            raise TransportUnavailable("gone")
        self.renewed.release()
        return super().renew(group, topic, owner, epochs, lease)


def test_leases_of_one_subscriber_are_renewed_while_those_of_another_cannot_be() -> None:
    transport = RenewsOnlyForB()
    prepared(transport)
    with running(Worker(transport), 0, 1):
        assert all(transport.renewed.acquire(timeout=SOON) for _ in range(3))


class NeverRenewsForA(RenewsOnlyForB):
    """A renewal for A gets no answer until the end of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.end = threading.Event()

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        if group == "a":
            self.end.wait(SOON)
        return super().renew(group, topic, owner, epochs, lease)


def test_leases_of_one_subscriber_do_not_wait_for_the_answer_to_another() -> None:
    transport = NeverRenewsForA()
    prepared(transport)
    with running(Worker(transport), 0, 1):
        try:
            assert all(transport.renewed.acquire(timeout=SOON) for _ in range(3))
        finally:
            transport.end.set()


def test_a_subscriber_whose_handler_hangs_is_named_in_the_log(
    transport: DividedByHand, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(transport, conf=make_conf({"SUBSCRIBERS": {"TIME_LIMIT": 0.05}}))
    worker.notebooks["b"].before = lambda: wait_for(lambda: "does a handler hang?" in caplog.text, "the complaint")
    with running(worker, 0):
        send(transport, b"1")
        worker.wait_bodies("b", b"1")
    assert "b has been busy with one batch for" in caplog.text
    assert "a has been busy" not in caplog.text


def test_the_oldest_stream_is_known_beside_messages_that_are_none() -> None:
    at = datetime(2026, 1, 31, tzinfo=UTC)
    streams = [StreamRecord("a", 1, "c", "k", "t", when, b"", b"") for when in (None, "x", 5, at)]
    bodies = [b"", b"nonsense", *map(encode_published, streams)]
    window = OffsetWindow("t", 0, epoch=1, committed=0, deadline=0.0)
    assert oldest_of([PulledMessages(window, [0], [body]) for body in bodies]) == at.timestamp()
    assert oldest_of([PulledMessages(window, [0], [body]) for body in bodies[:-1]]) is None
