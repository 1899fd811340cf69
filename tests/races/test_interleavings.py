"""Two workers on the same aggregates: in any order of their steps, the history is whole and every answer is true."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enode_django.bus.results import CommandStatus
from enode_django.domain.messages import Command
from enode_django.eventstore.memory import MemoryEventStore
from tests.races.counting import (
    Add,
    AddSoftly,
    AddWithin,
    ApplyThenRaise,
    Create,
    FailUnless,
    SetTotal,
)
from tests.races.harness import Worker, assert_answers_are_final, assert_history_is_whole

STEPS = ("handle", "commit", "deliver")


def step(worker: Worker, name: str, size: int) -> None:
    if name == "handle" and worker.envelopes:
        worker.handle(size)
    elif name == "commit" and worker.entries:
        worker.commit(size)
    elif name == "deliver":
        worker.deliver()


def check(store: MemoryEventStore, workers: Sequence[Worker], ids: Sequence[str]) -> None:
    for worker in workers:
        worker.settle()
        assert worker.in_flight == 0
        assert dict(worker.committer.awaiting) == {}
        assert_answers_are_final(store, worker.answers)
    for id in ids:
        assert_history_is_whole(store, id)
    ours, theirs = (worker.answers for worker in workers)
    for key in ours.keys() & theirs.keys():
        if CommandStatus.SUCCESS in (ours[key].status, theirs[key].status):
            assert ours[key] == theirs[key]


@pytest.mark.parametrize("same", [False, True], ids=["different commands", "the same commands"])
def test_every_order_of_steps_of_two_workers(same: bool) -> None:
    own = ["handle", "commit", "handle", "commit"]
    for places in itertools.combinations(range(8), 4):
        store = MemoryEventStore()
        Worker(store).run(Create("x"))
        workers = Worker(store), Worker(store)
        for name, worker in zip("ab", workers, strict=True):
            prefix = "both" if same else name
            worker.send(*(Add("x", id=f"{prefix}-{n}", amount=10**n) for n in range(2)))
        left, right = iter(own), iter(own)
        for place in range(8):
            mine = place in places
            step(workers[0] if mine else workers[1], next(left if mine else right), 1)
        check(store, workers, ["x"])
        assert len(list(store.load("x"))) == (3 if same else 5)
        assert all(answer.status is CommandStatus.SUCCESS for worker in workers for answer in worker.answers.values())


def commands(ids: Sequence[str]) -> st.SearchStrategy[Command]:
    root = st.sampled_from(ids)
    small = st.integers(-2, 3)
    id = st.integers(0, 6).map(str)
    return st.one_of(
        st.builds(Add, aggregate_root_id=root, id=id, amount=small),
        st.builds(Add, aggregate_root_id=root, id=id, amount=small),
        st.builds(AddWithin, aggregate_root_id=root, id=id, amount=small, limit=small),
        st.builds(AddSoftly, aggregate_root_id=root, id=id, amount=small, limit=small),
        st.builds(SetTotal, aggregate_root_id=root, id=id, total=small),
        st.builds(FailUnless, aggregate_root_id=root, id=id, total=small),
        st.builds(ApplyThenRaise, aggregate_root_id=root, id=id, refuse=st.booleans()),
        st.builds(Create, aggregate_root_id=root, id=id),
    )


@settings(max_examples=120, deadline=None)
@given(
    sent=st.lists(commands(["x", "y"]), max_size=8),
    more=st.lists(commands(["x", "y"]), max_size=4),
    cached=st.sampled_from([0, 1, 10]),
    recent=st.sampled_from([2, 1_000]),
    order=st.lists(st.tuples(st.booleans(), st.sampled_from(STEPS), st.integers(1, 4)), max_size=40),
)
def test_any_commands_in_any_order_of_steps(
    sent: list[Command],
    more: list[Command],
    cached: int,
    recent: int,
    order: list[tuple[bool, str, int]],
) -> None:
    """Both workers get the commands ``sent``, as if both owned the queue. One of them also gets ``more``."""
    store = MemoryEventStore()
    Worker(store).run(Create("x", id="made"))
    unique = {(command.id, command.aggregate_root_id): command for command in [*sent, *more]}
    workers = [Worker(store, max_aggregates=cached, max_recent=recent) for _ in range(2)]
    for worker in workers:
        worker.send(*(unique[command.id, command.aggregate_root_id] for command in sent))
    workers[0].send(*(unique[command.id, command.aggregate_root_id] for command in more))
    for first, name, size in order:
        step(workers[0 if first else 1], name, size)
    for worker in workers:
        worker.settle()
    for worker in workers:
        assert worker.in_flight == 0
        assert dict(worker.committer.awaiting) == {}
        for one in worker.finished:
            if one.record is not None:
                assert store.find([one.record.command_key])[one.record.command_key] == one.record
    for id in ("x", "y"):
        assert_history_is_whole(store, id)
    answered = {(one.envelope.id, one.envelope.aggregate_root_id) for one in workers[0].finished}
    assert answered == set(unique)


@settings(max_examples=120, deadline=None)
@given(
    sent=st.lists(commands(["x"]), min_size=1, max_size=8),
    order=st.lists(
        st.tuples(st.booleans(), st.sampled_from([*STEPS, "lose", "acquire"]), st.integers(1, 4)), max_size=40
    ),
)
def test_leases_lost_at_any_step_lose_no_command(sent: list[Command], order: list[tuple[bool, str, int]]) -> None:
    """Each new lease delivers all commands again, as a queue does whose consume offset never moved."""
    store = MemoryEventStore()
    Worker(store).run(Create("x", id="made"))
    unique = list({command.id: command for command in sent}.values())
    workers = [Worker(store) for _ in range(2)]
    for worker in workers:
        worker.send(*unique)
    for first, name, size in [*order, (True, "lose", 1), (True, "acquire", 1)]:
        worker = workers[0 if first else 1]
        if name == "lose":
            worker.window.close()
        elif name == "acquire":
            if worker.window.closed:
                worker.acquire()
                worker.send(*unique)
        else:
            step(worker, name, size)
    for worker in workers:
        worker.settle()
        assert worker.in_flight == 0
        assert dict(worker.committer.awaiting) == {}
    assert_history_is_whole(store, "x")
    answered = {one.envelope.id for one in workers[0].finished if one.envelope.window is workers[0].window}
    assert answered == {command.id for command in unique}
    successes = {one.envelope.id for worker in workers for one in worker.finished if one.record and one.record.version}
    assert successes <= {record.command_id for record in store.load("x")}
