"""Pulls of messages that are not safe on the disk yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enode_django.equeue.broker.calls import LATER, Call
from enode_django.equeue.broker.pulling import Pulling
from enode_django.equeue.broker.store import MessageStore
from enode_django.equeue.records import decode_records
from enode_django.exceptions import EnodeError
from tests.equeue.storing import read_batches, route_of, send


class Answers:
    """A session that keeps the answers to its calls."""

    has_room = True

    def __init__(self) -> None:
        self.values: list[Any] = []

    def answer(self, call: Call, value: Any) -> None:
        self.values.append(value)

    def fail(self, call: Call, error: EnodeError) -> None:
        raise error

    @property
    def bodies(self) -> list[list[bytes]]:
        return [
            [bytes(body) for _, batches, _ in value for _, data in batches for body in decode_records(data)]
            for value in self.values
        ]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = MessageStore(tmp_path, chunk_size=1 << 20, shows_safe=True)
    store.open(restore=lambda _: None, replay=lambda *_: None, sent=lambda _: None)
    yield store
    store.abandon()


def test_what_is_not_safe_yet_is_shown_to_nobody(store: MessageStore) -> None:
    async def scenario() -> None:
        answers, pulling = Answers(), Pulling(store, route_of)
        send(store, 0, b"a")
        store.flush()
        send(store, 0, b"b")
        (read,) = read_batches(store, "orders", 0, 0, 10, 1000)
        assert decode_records(read.body) == [b"a"]
        assert pulling.pull(Call(answers, 1), "orders", {0: 1}, 10, 0.0) == []
        assert pulling.pull(Call(answers, 2), "orders", {0: 1}, 10, 60.0) is LATER
        pulling.wake("orders", [0])
        assert answers.bodies == []
        store.flush()
        send(store, 1, b"c")
        assert pulling.pull(Call(answers, 3), "orders", {1: 0}, 10, 60.0) is LATER
        pulling.wake("orders", [1])
        pulling.wake_safe()
        assert answers.bodies == [[b"b"]]
        store.flush()
        pulling.wake_safe()
        assert answers.bodies == [[b"b"], [b"c"]]

    asyncio.run(scenario())


def test_what_another_thread_makes_safe_while_pulls_are_woken_is_answered_after_the_next_flush(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        answers, pulling = Answers(), Pulling(store, route_of)
        assert pulling.pull(Call(answers, 1), "orders", {0: 0}, 10, 60.0) is LATER
        send(store, 0, b"a")
        pulling.wake("orders", [0])

        def wake_then_flush(*woken: Any) -> None:
            Pulling.wake(pulling, *woken)
            store.flush()  # as the thread does that writes a checkpoint

        monkeypatch.setattr(pulling, "wake", wake_then_flush)
        pulling.wake_safe()
        monkeypatch.undo()
        pulling.wake_safe()
        assert answers.bodies == [[b"a"]]

    asyncio.run(scenario())
