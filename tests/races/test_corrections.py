"""A running worker goes on with the corrected history: aggregates in memory do not stay as the originals made them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from enode_django.bus.results import CommandStatus
from enode_django.eventstore.base import Corrected
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import StoreUnavailable
from enode_django.repository.loading import AggregateLoader
from enode_django.repository.states import MemoryStates
from enode_django.serialization.codec import encode_stream
from tests.races.counting import Add, Added, Counter, Create, SetTotal
from tests.races.harness import Worker, assert_answers_are_final, versions

SECOND = timedelta(seconds=1).total_seconds()


@pytest.fixture
def store() -> MemoryEventStore:
    return MemoryEventStore()


def correct(store: MemoryEventStore, version: int, total: int, last: int = 0) -> int:
    events = encode_stream([Added(amount=total, total=total)])
    return store.correct("x", version, events, by="ann", reason="a typing error", last=last).number


def replayed(store: MemoryEventStore) -> Counter:
    counter = AggregateLoader(store).load("x")
    assert isinstance(counter, Counter)
    return counter


def test_an_idle_aggregate_is_loaded_anew_within_a_second(store: MemoryEventStore) -> None:
    worker = Worker(store, shard=store)
    worker.run(Create("x"), Add("x", amount=500))
    correct(store, 2, 5)
    (early,) = worker.run(SetTotal("x", total=500))
    assert early.status is CommandStatus.NOTHING_CHANGED, "it has looked a moment ago"
    worker.clock.now += SECOND
    (late,) = worker.run(Add("x"))
    assert (late.value, late.version) == (6, 3)


def test_what_is_unfinished_stays_on_top_of_the_corrected_history(store: MemoryEventStore) -> None:
    worker = Worker(store, shard=store)
    worker.run(Create("x"), Add("x", amount=500))
    worker.send(*(Add("x") for _ in range(3)))
    worker.handle()
    correct(store, 2, 5)
    worker.clock.now += SECOND
    worker.send(Add("x"))
    worker.settle()
    assert {answer.status for answer in worker.answers.values()} == {CommandStatus.SUCCESS}
    held = worker.processor._cache.slots["x"].aggregate
    assert held is not None
    assert held.snapshot() == replayed(store).snapshot()
    assert versions(store, "x") == [1, 2, 3, 4, 5, 6]
    assert_answers_are_final(store, worker.answers)


def test_a_shared_state_of_the_original_is_not_used(store: MemoryEventStore) -> None:
    """Not even one that a worker wrote after the correction, from the aggregate in its memory."""
    states = MemoryStates()
    late = Worker(store, states=states, shard=store)
    late.run(Create("x"), Add("x", amount=500))
    held = late.processor._cache.slots["x"].aggregate
    correct(store, 2, 5)
    assert late.keeper is not None
    late.clock.now += 0.5
    late.processor.keep_rest(10.0)
    assert held is not None
    assert states.load(["x"])["x"].version == held.version == 2
    fresh = Worker(store, states=states, shard=store)
    (answer,) = fresh.run(Add("x"))
    assert answer.value == 6


def test_a_shard_that_is_away_is_asked_again_and_keeps_nobody_waiting() -> None:
    class Away(MemoryEventStore):
        is_away = False

        def corrected_since(self, number: int) -> list[Corrected]:
            if self.is_away:
                raise StoreUnavailable("it is away")
            return list(super().corrected_since(number))

    store = Away()
    worker = Worker(store, shard=store)
    worker.run(Create("x"), Add("x", amount=500))
    correct(store, 2, 5)
    store.is_away = True
    worker.clock.now += SECOND
    worker.run(SetTotal("x", total=500))
    store.is_away = False
    worker.clock.now += SECOND
    assert worker.run(Add("x"))[0].value == 6
