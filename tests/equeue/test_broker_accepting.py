"""Sends that come faster than the disk writes them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enode_django.equeue.broker.accepting import Accepting, Send
from enode_django.equeue.broker.batches import NewBatch
from enode_django.equeue.broker.calls import Call, Later
from enode_django.equeue.broker.pulling import Pulling
from enode_django.equeue.broker.state import BrokerState
from enode_django.equeue.broker.store import MessageStore
from enode_django.equeue.records import encode_records
from enode_django.exceptions import EnodeError, QueueFull, StaleRoute

BODY = encode_records([b"x" * 1_000])


class Batches(list[NewBatch]):
    """A list that can be weakly referenced."""


class Answers:
    has_room = True

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.changed = asyncio.Event()

    def answer(self, call: Call, value: Any) -> None:
        self.values[call.number] = value
        self.changed.set()

    def fail(self, call: Call, error: EnodeError) -> None:
        self.answer(call, error)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = MessageStore(tmp_path, chunk_size=1 << 20)
    yield store
    store.abandon()


def sending(store: MessageStore, *, limit: int, patience: float) -> tuple[Accepting, list[str]]:
    state = BrokerState(store, patience=0.0)
    state.open()
    state.create_topic("t", 1)
    store.flush()
    asked: list[str] = []
    flush = lambda: asked.append("flush")  # noqa: E731
    return Accepting(
        store, state, Pulling(store, state.route_version), limit=limit, patience=patience, flush=flush
    ), asked


def send(number: int, route: int | None = None) -> Send:
    return Send("t", [NewBatch(0, 1, BODY)], route, bytes(16), number)


def test_sends_above_the_limit_wait_for_the_disk_and_keep_their_order(store: MessageStore) -> None:
    async def scenario() -> None:
        sends, asked = sending(store, limit=1_500, patience=60.0)
        answers = Answers()
        calls = [Call(answers, number) for number in range(4)]
        assert sends.send(calls[0], send(0)) == {0: 0}
        assert sends.send(calls[1], send(1)) == {0: 1}
        assert isinstance(sends.send(calls[2], send(2)), Later)
        assert asked == ["flush"]
        with pytest.raises(QueueFull, match="wait for the broker's disk"):
            sends.send(calls[3], send(3))  # no further send is held back
        sends.retry()
        assert answers.values == {}
        store.flush()
        sends.retry()
        assert answers.values == {2: {0: 2}}
        assert sends.send(calls[3], send(3)) == {0: 3}

    asyncio.run(scenario())


def test_send_that_waits_for_too_long_is_refused_and_not_stored(store: MessageStore) -> None:
    async def scenario() -> None:
        sends, _ = sending(store, limit=500, patience=0.01)
        answers = Answers()
        sends.send(Call(answers, 0), send(0))
        assert isinstance(sends.send(Call(answers, 1), send(1)), Later)
        await asyncio.wait_for(answers.changed.wait(), 60)
        assert isinstance(answers.values[1], QueueFull)
        store.flush()
        sends.retry()
        assert store.bounds("t", 0) == (0, 1)
        assert sends.send(Call(answers, 1), send(1)) == {0: 1}

    asyncio.run(scenario())


def test_send_that_is_known_is_answered_also_if_the_route_has_changed_since(store: MessageStore) -> None:
    async def scenario() -> None:
        sends, _ = sending(store, limit=1 << 20, patience=1.0)
        call = Call(Answers(), 0)
        assert sends.send(call, send(0, route=1)) == {0: 0}
        sends._state.add_queues("t", 2, unordered=True)
        assert sends.send(call, send(0, route=1)) == {0: 0}
        with pytest.raises(StaleRoute):
            sends.send(call, send(1, route=1))

    asyncio.run(scenario())


def test_a_send_that_waited_for_too_long_is_forgotten_and_the_limit_holds(store: MessageStore) -> None:
    async def scenario() -> None:
        sends, _ = sending(store, limit=1_500, patience=0.01)
        answers = Answers()
        assert sends.send(Call(answers, 0), send(0)) == {0: 0}
        assert sends.send(Call(answers, 1), send(1)) == {0: 1}
        for number in range(2, 12):
            batches = Batches([NewBatch(0, 1, BODY)])
            held = weakref.ref(batches)
            assert isinstance(sends.send(Call(answers, number), Send("t", batches, None, bytes(16), number)), Later)
            with pytest.raises(QueueFull):
                sends.send(Call(answers, 100), send(100))
            del batches
            while number not in answers.values:
                answers.changed.clear()
                await asyncio.wait_for(answers.changed.wait(), 60)
            assert isinstance(answers.values[number], QueueFull)
            assert held() is None, "it takes no memory any more"
        store.flush()
        sends.retry()
        assert store.bounds("t", 0) == (0, 2)

    asyncio.run(scenario())


def test_a_repeat_of_a_stored_send_is_answered_while_the_disk_stalls(store: MessageStore) -> None:
    async def scenario() -> None:
        sends, _ = sending(store, limit=1_500, patience=60.0)
        answers = Answers()
        assert sends.send(Call(answers, 0), send(0)) == {0: 0}
        assert sends.send(Call(answers, 1), send(1)) == {0: 1}
        assert isinstance(sends.send(Call(answers, 2), send(2)), Later)
        with pytest.raises(QueueFull):
            sends.send(Call(answers, 3), send(3))
        assert sends.send(Call(answers, 4), send(1)) == {0: 1}, "its answer was lost"
        store.flush()
        sends.retry()
        assert answers.values == {2: {0: 2}}
        assert store.bounds("t", 0) == (0, 3)

    asyncio.run(scenario())


def test_sends_of_a_client_that_is_gone_are_not_stored(store: MessageStore) -> None:
    async def scenario() -> None:
        sends, _ = sending(store, limit=500, patience=60.0)
        answers = Answers()
        sends.send(Call(answers, 0), send(0))
        gone, stays = Call(answers, 1), Call(answers, 2)
        sends.send(gone, send(1))
        gone.drop()
        sends.send(stays, send(2))
        store.flush()
        sends.retry()
        assert answers.values == {2: {0: 1}}

    asyncio.run(scenario())
