"""Suspects are handled one at a time, but no suspect waits for another one's shard."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from enode_django.commanding.command_processor import CommandProcessor
from enode_django.concurrency.in_flight import NOTHING_IN_FLIGHT
from enode_django.domain.messages import Command
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.repository.loading import AggregateLoader
from tests.races.counting import Add, ApplyThenRaise, Create, handlers
from tests.races.harness import Worker, envelope

Value = TypeVar("Value")


class Waiting:
    """Records, at each call of the store, whether the lock of the suspects is held, and the in-flight marker."""

    def __init__(self) -> None:
        self.suspects = threading.Lock()
        self.note = [NOTHING_IN_FLIGHT]
        self.seen: list[tuple[bool, int]] = []

    def persist(self, call: Callable[[], Value], /) -> Value:
        self.seen.append((self.suspects.locked(), self.note[0]))
        return call()


@pytest.mark.parametrize("command", [ApplyThenRaise("x"), Add("x")])
def test_suspect_that_waits_for_the_store_keeps_no_other_one_waiting(command: Command) -> None:
    store = MemoryEventStore()
    Worker(store).run(Create("x"))
    waiting = Waiting()
    processor = CommandProcessor(
        AggregateLoader(store),
        handlers,
        persist=waiting.persist,
        max_aggregates=10,
        max_recent=10,
        max_bytes=10_000,
        note=waiting.note,
        suspects=waiting.suspects,
    )
    suspect = envelope(command)
    suspect.suspect = True
    processor.handle([suspect])
    assert waiting.seen
    processor.handle([envelope(ApplyThenRaise("x"))])  # no suspect: it waits for the store without the lock
    assert set(waiting.seen) == {(False, NOTHING_IN_FLIGHT)}
    assert not waiting.suspects.locked()
