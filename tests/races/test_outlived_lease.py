"""The store is away for longer than a lease: a late worker does not store over the next owner's decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventstore.base import Appended, StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import StoreUnavailable
from tests.races.counting import Add, AddWithin, Create
from tests.races.harness import Clock, Worker, assert_history_is_whole, commands_stored, envelope

Value = TypeVar("Value")
LONGER_THAN_A_LEASE = 60.0


def persist(call: Callable[[], Value]) -> Value:
    for _ in range(5):
        try:
            return call()
        except StoreUnavailable:
            continue
    raise AssertionError("the store does not come back")


class Away(MemoryEventStore):
    """Is away once, for ``seconds`` of the clock. With ``stores``, it stores the records before it raises."""

    def __init__(self, clock: Clock, *, stores: bool = False) -> None:
        super().__init__()
        self.clock = clock
        self.stores = stores
        self.seconds: float | None = None

    def append(self, records: Sequence[StreamRecord], *, doubtful: bool = False) -> Sequence[Appended]:
        if self.seconds is not None:
            self.clock.now += self.seconds
            self.seconds = None
            if self.stores:
                super().append(records)
            raise StoreUnavailable("away")
        return super().append(records, doubtful=doubtful)


def begun(store: Away) -> Worker:
    worker = Worker(store, clock=store.clock, persist=persist)
    worker.run(Create("x"))
    return worker


def test_what_was_handled_under_a_lease_that_ended_is_not_sent_again() -> None:
    store = Away(Clock())
    worker = begun(store)
    before = len(worker.finished)
    worker.send(Add("x", id="a"), AddWithin("x", id="r", limit=0))
    store.seconds = LONGER_THAN_A_LEASE
    worker.settle()
    assert "a" not in commands_stored(store, "x")
    assert store.find([("r", "x")]) == {}
    assert len(worker.finished) == before, "the next owner of the queue answers"
    assert worker.in_flight == 0


def test_lease_that_goes_on_finishes_what_was_doubtful() -> None:
    store = Away(Clock(), stores=True)
    worker = begun(store)
    store.seconds = 1.0
    worker.run(Add("x", id="a"))
    assert commands_stored(store, "x")[1:] == ["a"]
    assert_history_is_whole(store, "x")


def test_next_lease_goes_on_from_what_was_stored_before_the_store_went_away() -> None:
    store = Away(Clock(), stores=True)
    worker = begun(store)
    command = Add("x", id="a")
    worker.send(command)
    store.seconds = LONGER_THAN_A_LEASE
    worker.settle()
    worker.acquire()
    (answer,) = worker.run(command)
    assert answer.version == 2
    assert_history_is_whole(store, "x")


def test_stream_is_not_sent_again_without_the_one_that_it_was_built_on() -> None:
    """The commands of an aggregate lie in two queues, on two servers, after one queue was hidden. One server is away,
    and its lease ends."""
    store = Away(Clock())
    worker = begun(store)
    other = OffsetWindow("commands", 1, epoch=1, committed=0, deadline=store.clock.now + 2 * LONGER_THAN_A_LEASE)
    other.add(range(2))
    worker.envelopes.append(envelope(Add("x", id="a"), other, 0))
    worker.send(Add("x", id="b"))
    worker.envelopes.append(envelope(Add("x", id="c"), other, 1))
    store.seconds = LONGER_THAN_A_LEASE
    worker.settle()
    assert commands_stored(store, "x")[1:] == ["a", "c"]
    assert_history_is_whole(store, "x")
    assert worker.in_flight == 0
