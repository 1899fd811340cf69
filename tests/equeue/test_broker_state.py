"""What the broker knows survives a crash, one thing at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from enode_django.equeue.broker.batches import NewBatch
from enode_django.equeue.broker.state import BrokerState
from enode_django.equeue.broker.store import MessageStore
from enode_django.equeue.coordination import EPOCHS_PER_RUN
from enode_django.equeue.messages import Commit, Receipt
from enode_django.equeue.records import encode_records
from enode_django.exceptions import QueueError, QueueFull


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Opened:
    def __init__(self, directory: Path, clock: Clock) -> None:
        self.store = MessageStore(directory, chunk_size=1 << 20, preload=0)
        self.state = BrokerState(self.store, patience=10.0, clock=clock)
        self.state.open()

    def send(self, topic: str, queue: int, sequence: int) -> None:
        self.state.coordinator.topic(topic, (queue,))
        body = NewBatch(queue, 2, encode_records([b"a", b"b"]))
        firsts = self.store.append(topic, [body], producer=bytes(15) + b"p", sequence=sequence)
        self.state.sends.add(topic, bytes(15) + b"p", sequence, firsts, 5.0)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], Opened]]:
    """Opens again and again, as after crashes."""
    current: list[Opened] = []
    clock = Clock()

    def open_again() -> Opened:
        while current:
            current.pop().store.abandon()
        current.append(Opened(tmp_path, clock))
        return current[0]

    yield open_again
    while current:
        current.pop().store.abandon()


def test_epochs_of_an_earlier_run_are_stale(opened: Callable[[], Opened]) -> None:
    state = opened().state
    state.create_topic("t", 1)
    old = state.acquire("g", "t", 0, "one", 60.0, 0)
    state = opened().state
    assert state.commit("g", "t", {0: Commit(old.epoch, 1)}) == {0}
    assert state.renew("g", "t", "one", {0: old.epoch}, 60.0) == {0}
    new = state.acquire("g", "t", 0, "one", 60.0, 0)
    assert new.epoch > old.epoch
    assert new.epoch // EPOCHS_PER_RUN == 2


def test_who_leaves_after_a_restart_costs_others_nothing_in_the_next(opened: Callable[[], Opened]) -> None:
    state = opened().state
    state.create_topic("t", 2)
    state.join("g", "t", "one", 60.0)
    state.acquire("g", "t", 0, "one", 60.0, 0)
    first = opened()
    first.send("t", 0, 1)
    first.send("t", 1, 2)
    first.state.leave("g", "t", "one")
    for queue in (0, 1):
        epoch = first.state.acquire("g", "t", queue, "two", 60.0, 0).epoch
        assert first.state.commit("g", "t", {queue: Commit(epoch, 2, [Receipt(1, b"r")], 3)}) == set()
    again = opened().state
    assert again.coordinator.committed("g", "t") == {0: 2, 1: 2}
    assert again.coordinator.receipts("g", "t", 0) == [b"r"]


def test_who_did_not_hear_the_answer_is_told_again_whose_queue_it_took(opened: Callable[[], Opened]) -> None:
    state = opened().state
    state.create_topic("t", 1)
    state.acquire("g", "t", 0, "dead", 0.0, 0)
    assert state.acquire("g", "t", 0, "one", 60.0, 0).previous_owner == "dead"
    state = opened().state
    again = state.acquire("g", "t", 0, "one", 60.0, 0)
    assert again.previous_owner == "dead"
    state.renew("g", "t", "one", {0: again.epoch}, 60.0)
    last = state.acquire("g", "t", 0, "one", 60.0, 0)
    assert last.previous_owner is None
    state.release("g", "t", "one", {0: last.epoch})
    assert state.acquire("g", "t", 0, "two", 60.0, 0).previous_owner is None


def test_member_that_only_said_it_is_there_is_not_dropped_by_a_burial_in_the_log(opened: Callable[[], Opened]) -> None:
    first = opened()
    first.state.create_topic("t", 2)
    clock = first.state._clock
    assert isinstance(clock, Clock)
    for _ in range(3):
        first.state.join("g", "t", "one", 60.0)
        clock.now += 50.0
    first.state.bury("g", "t", "nobody", [])
    generation = first.state.join("g", "t", "one", 60.0).generation
    assert opened().state.join("g", "t", "one", 60.0).generation == generation


def test_without_a_usable_checkpoint_commits_count_and_epochs_go_on(
    opened: Callable[[], Opened], tmp_path: Path
) -> None:
    first = opened()
    first.state.create_topic("t", 1)
    for _ in range(2):
        first = opened()
        first.send("t", 0, first.state.run)
        old = first.state.acquire("g", "t", 0, "one", 60.0, 0)
        first.state.commit("g", "t", {0: Commit(old.epoch, old.committed + 2)})
    (tmp_path / "checkpoint").unlink()
    state = opened().state
    assert state.run == 4
    assert state.coordinator.committed("g", "t") == {0: 4}
    assert state.acquire("g", "t", 0, "one", 60.0, 0).epoch > old.epoch


@dataclass
class Changes:
    """Every call that changes something, of a state with a topic, a group and two members."""

    state: BrokerState
    epoch: int

    def all(self) -> list[Callable[[], object]]:
        state, epochs = self.state, {0: self.epoch}
        return [
            lambda: state.create_topic("u", 1),
            lambda: state.add_queues("t", 3, True),
            lambda: state.show("t", 1, False, False, True),
            lambda: state.join("g", "t", "three", 60.0),
            lambda: state.leave("g", "t", "one"),
            lambda: state.bury("g", "t", "one", [(0, 5)]),
            lambda: state.acquire("g", "t", 1, "two", 60.0, 0),
            lambda: state.release("g", "t", "one", epochs),
            lambda: state.commit("g", "t", {0: Commit(self.epoch, 1, [Receipt(0, b"receipt")], 1)}),
            lambda: state.set_offset("g", "t", 0, 2),
            lambda: state.retire_group("g", "t"),
            lambda: state.delete_group("g", "t"),
        ]


def prepared(opened: Opened) -> Changes:
    state = opened.state
    state.create_topic("t", 2)
    opened.send("t", 0, 1)
    for member in ("one", "two"):
        state.join("g", "t", member, 60.0)
    return Changes(state, state.acquire("g", "t", 0, "one", 60.0, 0).epoch)


@pytest.mark.parametrize("number", range(12))
def test_what_cannot_be_written_changes_nothing_and_keeps_nothing_else_from_changing(
    opened: Callable[[], Opened], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    current = opened()
    changes = prepared(current)
    checkpoints = []
    monkeypatch.setattr(current.store, "checkpoint", checkpoints.append)
    before = current.state.plain()

    def full(record: bytes) -> None:
        raise QueueFull("no room")

    with monkeypatch.context() as context:
        context.setattr(current.store, "append_control", full)
        for _ in range(3):
            with pytest.raises(QueueFull):
                changes.all()[number]()
    assert current.state.plain() == before
    current.send("t", 0, 2)
    assert current.state.commit("g", "t", {0: Commit(changes.epoch, 1)}) == set()
    changes.all()[number]()
    assert current.state.plain() != before
    assert checkpoints == [], "nothing waits for the disk meanwhile"
    names = sorted(current.state.coordinator.topics)
    committed = current.state.coordinator.committed("g", "t")
    again = opened().state.coordinator
    assert (sorted(again.topics), again.committed("g", "t")) == (names, committed)


def test_nothing_changes_after_a_start_without_a_checkpoint_until_there_is_one(
    opened: Callable[[], Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened().state.create_topic("t", 2)

    def full(store: MessageStore, state: bytes) -> None:
        raise QueueFull("no room")

    with monkeypatch.context() as context:
        context.setattr(MessageStore, "checkpoint", full)
        again = opened()
    for _ in range(2):
        with pytest.raises(QueueFull, match="checkpoint"):
            again.state.create_topic("u", 1)
    assert sorted(again.state.coordinator.topics) == ["t"]
    pending = again.state.begin_checkpoint()
    assert pending is not None
    assert again.state.begin_checkpoint() is None, "one at a time"
    pending.write()
    again.state.finish_checkpoint(written=True)
    assert again.state.create_topic("u", 1) == 1
    assert sorted(opened().state.coordinator.topics) == ["t", "u"]


def test_members_that_are_still_there_cost_no_record(opened: Callable[[], Opened]) -> None:
    first = opened()
    first.state.create_topic("t", 2)
    first.state.join("g", "t", "one", 60.0)
    position = first.store.position
    first.state.join("g", "t", "one", 60.0)
    first.state.leave("g", "t", "nobody")
    first.state.create_topic("t", 2)
    assert first.store.position == position


@pytest.mark.parametrize("name", ["x" * 201, "." * 100, "ü" * 50])
def test_topic_whose_name_is_too_long_for_a_directory_is_refused(opened: Callable[[], Opened], name: str) -> None:
    first = opened()
    with pytest.raises(QueueError, match="cannot name a topic"):
        first.state.create_topic(name, 1)
    assert first.state.coordinator.topics == {}


def test_dead_letters_that_are_not_settled_count_as_what_nobody_consumes(opened: Callable[[], Opened]) -> None:
    """Whoever settles one leaves a group behind, which would keep the others, and all files behind them, for ever."""
    current = opened()
    state = current.state
    state.create_topic("dead.billing", 1)
    current.send("dead.billing", 0, 1)
    assert state.consumed("dead.billing", 0) is None
    lease = state.acquire("requeue", "dead.billing", 0, "somebody", 60.0, 0)
    state.commit("requeue", "dead.billing", {0: Commit(lease.epoch, 1)})
    assert state.consumed("dead.billing", 0) is None
    state.commit("requeue", "dead.billing", {0: Commit(lease.epoch, 2)})
    assert state.consumed("dead.billing", 0) == 2
    state.create_topic("orders", 1)
    state.acquire("billing", "orders", 0, "somebody", 60.0, 0)
    assert state.consumed("orders", 0) == 0
