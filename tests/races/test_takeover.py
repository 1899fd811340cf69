"""A worker loses a queue in the middle of its work, another worker takes it, and it comes back."""

from __future__ import annotations

import pytest

from enode_django.bus.results import CommandStatus
from enode_django.commanding.decisions import DecisionKind
from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventstore.memory import MemoryEventStore
from tests.races.counting import Add, AddWithin, Create, FailUnless, SetTotal
from tests.races.harness import Worker, assert_answers_are_final, assert_history_is_whole, commands_stored


@pytest.fixture
def store() -> MemoryEventStore:
    return MemoryEventStore()


@pytest.fixture
def worker(store: MemoryEventStore) -> Worker:
    worker = Worker(store)
    worker.run(Create("x"))
    return worker


@pytest.fixture
def rival(store: MemoryEventStore, worker: Worker) -> Worker:
    return Worker(store)


def lose(worker: Worker, how: str) -> None:
    if how == "closed":
        worker.window.close()
    else:
        worker.clock.now = worker.window.deadline


@pytest.mark.parametrize("how", ["closed", "deadline"])
def test_entries_of_a_lost_queue_are_neither_stored_nor_answered(
    store: MemoryEventStore, worker: Worker, how: str
) -> None:
    commands = [Add("x", id=f"{n}") for n in range(4)]
    commands += [SetTotal("x", id="4", total=4), AddWithin("x", id="5", limit=0)]
    worker.send(*commands)
    worker.handle()
    worker.commit(2)
    lose(worker, how)
    lost = worker.window
    worker.settle()
    assert lost.closed
    assert set(worker.answers) & {command.id for command in commands} == {"0", "1"}
    assert commands_stored(store, "x")[1:] == ["0", "1"]
    assert store.find([("5", "x")]) == {}
    assert worker.in_flight == 0
    assert dict(worker.committer.awaiting) == {}


def test_command_that_another_queue_has_brought_is_decided_though_the_queue_of_its_aggregate_was_lost(
    store: MemoryEventStore, worker: Worker
) -> None:
    """The topic got another route after the earlier commands for the aggregate were sent."""
    worker.send(Add("x", id="lost"))
    lost, worker.window = worker.window, OffsetWindow("commands", 1, epoch=1, committed=0, deadline=1e9)
    worker.send(Add("x", id="kept"))
    worker.handle()
    lost.close()
    worker.acquire()
    worker.settle()
    assert commands_stored(store, "x")[1:] == ["kept"]
    assert "kept" in worker.answers
    assert "lost" not in worker.answers


@pytest.mark.parametrize("how", ["closed", "deadline"])
@pytest.mark.parametrize("others", [0, 3])
def test_lost_commands_are_handled_when_the_queue_is_acquired_anew(
    store: MemoryEventStore, worker: Worker, rival: Worker, how: str, others: int
) -> None:
    commands = [Add("x", id=f"{n}") for n in range(4)]
    worker.send(*commands)
    worker.handle()
    worker.commit(2)
    lose(worker, how)
    worker.commit(1)  # notices the loss
    rival.run(*(Add("x", id=f"rival-{n}") for n in range(others)))
    worker.acquire()
    worker.send(*commands)
    worker.settle()
    assert all(worker.status(command) is CommandStatus.SUCCESS for command in commands)
    assert sorted(commands_stored(store, "x")[1:]) == sorted(
        [command.id for command in commands] + [f"rival-{n}" for n in range(others)]
    )
    assert_history_is_whole(store, "x")
    assert worker.in_flight == 0


def test_idle_state_of_a_queue_acquired_anew_is_forgotten(store: MemoryEventStore, worker: Worker) -> None:
    assert worker.processor.cached == 1
    worker.processor.forget(1)
    assert worker.processor.cached == 1
    worker.acquire()
    assert worker.processor.cached == 0


@pytest.mark.parametrize("unfinished", [[], ["add"], ["refusal"], ["nothing"]])
def test_refusal_after_the_queue_came_back_does_not_rest_on_old_state(
    store: MemoryEventStore, worker: Worker, rival: Worker, unfinished: list[str]
) -> None:
    """The old lease's decisions are still on their way when the new lease's command is handled."""
    old = {
        "add": Add("x", id="old", amount=2),
        "refusal": AddWithin("x", id="old", limit=-1),
        "nothing": SetTotal("x", id="old", total=0),
    }
    worker.send(*(old[kind] for kind in unfinished))
    worker.handle()
    lose(worker, "closed")
    rival.run(Add("x", id="rival", amount=-10))
    worker.acquire()
    command = AddWithin("x", id="new", limit=0, amount=5)
    worker.send(command)
    assert worker.handle()[-1].kind is DecisionKind.STREAM
    worker.settle()
    assert worker.status(command) is CommandStatus.SUCCESS
    assert_history_is_whole(store, "x")


def test_verdict_that_was_lost_with_its_queue_is_not_remembered(
    store: MemoryEventStore, worker: Worker, rival: Worker
) -> None:
    """The verdict rested on a stream that was never stored. It comes again in another batch than that stream."""
    one = Add("x", id="one")
    nothing = SetTotal("x", id="nothing", total=1)
    failed = FailUnless("x", id="failed", total=-6)
    worker.send(one, nothing, failed)
    worker.handle()
    lose(worker, "deadline")
    worker.settle()
    rival.run(Add("x", id="rival", amount=-7))
    worker.acquire()
    worker.run(one)
    assert worker.run(failed)[0].status is CommandStatus.SUCCESS
    assert worker.run(nothing)[0].status is CommandStatus.SUCCESS
    assert_history_is_whole(store, "x")


@pytest.mark.parametrize("kind", ["nothing", "failed"])
def test_verdict_handled_again_after_the_queue_was_lost_is_not_remembered(
    store: MemoryEventStore, worker: Worker, rival: Worker, kind: str
) -> None:
    """The recovery comes between the loss of the lease and the new lease."""
    one = Add("x", id="one")
    verdict = {
        "nothing": SetTotal("x", id="verdict", total=8),
        "failed": FailUnless("x", id="verdict", total=-1),
    }[kind]
    worker.send(one, verdict)
    worker.handle()
    rival.run(Add("x", id="rival", amount=7))
    worker.commit(1)  # a conflict, while the lease was good
    lose(worker, "closed")
    worker.deliver()  # handled again: now the verdict rests on 8
    rival.run(Add("x", id="rival-2", amount=-9))
    worker.acquire()
    worker.send(verdict)
    worker.settle()
    # The queue's order was lost with the lease, so "one" is not there: the total is -2, or -1 if it came again.
    worker.run(one)
    if kind == "nothing":
        assert worker.status(verdict) is CommandStatus.SUCCESS
    assert_history_is_whole(store, "x")
    assert_answers_are_final(store, worker.answers)


def test_commit_of_a_lost_lease_does_not_touch_the_queues_new_lease(store: MemoryEventStore, worker: Worker) -> None:
    """One batch has decisions of both leases."""
    old = Add("x", id="old")
    worker.send(old)
    worker.handle()
    lose(worker, "closed")
    worker.acquire()
    worker.send(old, Add("x", id="new"))
    worker.handle()
    worker.settle()
    assert commands_stored(store, "x")[1:] == ["old", "new"]
    assert [one.envelope.window for one in worker.finished if one.envelope.id == "old"] == [worker.window]
    assert_history_is_whole(store, "x")


def test_outcomes_of_the_old_lease_that_arrive_late_do_not_settle_the_new_ones(
    store: MemoryEventStore, worker: Worker
) -> None:
    old = Add("x", id="old")
    worker.send(old)
    worker.handle()
    worker.commit()  # stored; the command mailbox does not know that yet
    lose(worker, "closed")
    worker.acquire()
    worker.send(old, Add("x", id="new"))
    worker.handle()
    worker.deliver()  # the outcomes of the old lease
    assert worker.in_flight == 2
    worker.settle()
    assert commands_stored(store, "x")[1:] == ["old", "new"]
    assert worker.answers["new"].value == 2
    assert worker.in_flight == 0


def test_a_stored_command_of_the_backlog_is_finished_beside_a_decision_that_is_refused(
    store: MemoryEventStore, worker: Worker, rival: Worker
) -> None:
    """Who had the queue before stores it late: when it is pulled, a decision on the head before is on its way."""
    one, kept = Add("x", id="one"), Add("x", id="kept", amount=3)
    worker.window.backlog_end = worker.window.next_offset + 2
    worker.send(one)
    worker.handle()
    rival.run(kept)
    stored, left = worker.processor.take_stored(worker.send(kept))
    worker.envelopes.clear()
    assert ([decision.kind for decision in stored], left) == ([DecisionKind.STORED], [])
    worker.entries.extend(stored)
    finished = worker.commit().finished
    assert [one.envelope.id for one in finished] == ["kept"]
    worker.settle()
    assert (worker.status(one), worker.status(kept)) == (CommandStatus.SUCCESS, CommandStatus.SUCCESS)
    assert commands_stored(store, "x")[1:] == ["kept", "one"]
    assert worker.in_flight == 0
