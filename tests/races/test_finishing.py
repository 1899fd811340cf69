"""Finished decisions leave the command mailbox, in whatever order their outcomes come back."""

from __future__ import annotations

import pytest

from enode_django.bus.results import CommandStatus
from enode_django.eventstore.memory import MemoryEventStore
from tests.races.counting import Add, AddSoftly, Create, SetTotal
from tests.races.harness import Worker, assert_answers_are_final, commands_stored


@pytest.fixture
def store() -> MemoryEventStore:
    return MemoryEventStore()


@pytest.fixture
def worker(store: MemoryEventStore) -> Worker:
    worker = Worker(store)
    worker.run(Create("x"), Add("x"))
    return worker


def swap_two_outcomes(worker: Worker) -> None:
    """Finish a decision that is stored and one that is only answered, and deliver their outcomes in reverse order."""
    worker.send(Add("x", id="stored"))
    worker.handle()
    worker.send(AddSoftly("x", id="answered", limit=0))
    worker.handle()
    worker.commit(1)
    worker.commit(1)
    worker.outcomes.reverse()
    worker.deliver()
    worker.deliver()


def test_outcomes_that_come_in_another_order_leave_nothing_pinned(worker: Worker) -> None:
    swap_two_outcomes(worker)
    assert worker.in_flight == 0
    for number in range(20):
        worker.run(Add("x", id=f"{number}"))
    assert worker.in_flight == 0


def test_what_was_answered_is_not_handled_again_after_outcomes_came_in_another_order(
    store: MemoryEventStore, worker: Worker
) -> None:
    swap_two_outcomes(worker)
    Worker(store).run(SetTotal("x", total=-10))  # now the refused command would succeed
    handled, finished = len(worker.handled), len(worker.finished)
    worker.run(Add("x", id="last"))
    assert [entry.envelope.id for entry in worker.handled[handled:] if entry.envelope] == ["last", "last"]
    assert [one.envelope.id for one in worker.finished[finished:]] == ["last"]
    assert worker.answers["answered"].status is CommandStatus.REFUSED
    assert "answered" not in commands_stored(store, "x")
    assert_answers_are_final(store, worker.answers)


def test_what_waits_before_a_finished_entry_stays_and_is_handled_again(store: MemoryEventStore, worker: Worker) -> None:
    """Only the finished decision leaves, not the one at the head."""
    worker.send(Add("x", id="first"), Add("x", id="second"))
    worker.handle()
    worker.commit(1)
    worker.commit(1)
    later = worker.outcomes.pop()
    worker.processor.finish(later.released)
    assert worker.in_flight == 1
    worker.deliver()
    assert worker.in_flight == 0
    assert worker.run(Add("x"))[0].value == 4
