"""Each part of a broker's state survives a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgpack
import pytest

from enode_django.equeue.broker.batches import NewBatch
from enode_django.equeue.broker.index_files import delete_index_files
from enode_django.equeue.broker.state import BrokerState
from enode_django.equeue.broker.store import MessageStore
from enode_django.equeue.coordination import EPOCHS_PER_RUN
from enode_django.equeue.messages import Commit, Receipt
from enode_django.equeue.records import encode_records
from enode_django.exceptions import QueueError, QueueFull, QueueHeld, TopicDeleted
from tests.equeue.storing import read_batches


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Opened:
    def __init__(self, directory: Path, clock: Clock, *, shows_safe: bool = False) -> None:
        self.store = MessageStore(directory, chunk_size=1 << 20, preload=0, shows_safe=shows_safe)
        self.state = BrokerState(self.store, patience=10.0, clock=clock)
        self.state.open()

    def send(self, topic: str, queue: int, sequence: int) -> None:
        self.state.coordinator.topic(topic, (queue,))
        body = NewBatch(queue, 2, encode_records([b"a", b"b"]))
        firsts = self.store.append(topic, [body], producer=bytes(15) + b"p", sequence=sequence)
        self.state.sends.add(topic, bytes(15) + b"p", sequence, firsts, 5.0)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], Opened]]:
    """A function that opens the directory again at each call, as after a crash."""
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


def test_a_lease_that_is_longer_than_the_patience_is_waited_for_after_crashes(opened: Callable[[], Opened]) -> None:
    first = opened()
    first.state.create_topic("t", 2)
    first.state.join("g", "t", "one", 60.0)
    first.state.acquire("g", "t", 0, "one", 60.0, 0)
    epoch = first.state.acquire("g", "t", 1, "one", 5.0, 0).epoch
    first.state.renew("g", "t", "one", {1: epoch}, 30.0)
    clock = first.state._clock
    assert isinstance(clock, Clock)
    opened()  # restores it from the log
    state = opened().state  # restores it from a checkpoint
    crashed = clock.now
    clock.now = crashed + 29.0
    for queue in (0, 1):
        with pytest.raises(QueueHeld, match="'one'"):
            state.acquire("g", "t", queue, "two", 60.0, 0)
    assert state.join("g", "t", "two", 60.0).members == ("one", "two")
    clock.now = crashed + 30.0
    assert state.acquire("g", "t", 1, "two", 60.0, 0).previous_owner == "one"
    with pytest.raises(QueueHeld, match="'one'"):
        state.acquire("g", "t", 0, "two", 60.0, 0)
    clock.now = crashed + 60.0
    assert state.acquire("g", "t", 0, "two", 60.0, 0).previous_owner == "one"


def test_a_queue_that_was_taken_when_a_lease_had_run_out_is_still_the_new_owners_after_a_crash(
    opened: Callable[[], Opened],
) -> None:
    state = opened().state
    state.create_topic("t", 1)
    state.acquire("g", "t", 0, "one", 5.0, 0)
    state._clock.now += 5.0  # type: ignore[attr-defined]
    state.acquire("g", "t", 0, "two", 60.0, 0)
    with pytest.raises(QueueHeld, match="'two'"):
        opened().state.acquire("g", "t", 0, "one", 60.0, 0)


def test_a_checkpoint_that_could_not_be_written_does_not_count(opened: Callable[[], Opened]) -> None:
    """Otherwise files that the one before needs would be deleted."""
    first = opened()
    first.state.create_topic("t", 1)
    since, counted = first.store.since_checkpoint, first.store.deletion.counted
    assert first.state.begin_checkpoint() is not None
    first.state.finish_checkpoint(written=False)
    assert first.store.since_checkpoint == since > 0
    assert first.store.deletion.counted == counted
    assert first.state.begin_checkpoint() is not None


def test_renewals_cost_no_record_unless_they_make_the_lease_longer(opened: Callable[[], Opened]) -> None:
    first = opened()
    first.state.create_topic("t", 1)
    epoch = first.state.acquire("g", "t", 0, "one", 60.0, 0).epoch
    position = first.store.position
    first.state.renew("g", "t", "one", {0: epoch}, 60.0)
    first.state.renew("g", "t", "one", {0: epoch + 1}, 90.0)
    first.state.renew("g", "t", "two", {0: epoch}, 90.0)
    assert first.store.position == position
    first.state.renew("g", "t", "one", {0: epoch}, 90.0)
    assert first.store.position > position


def test_a_checkpoint_of_another_format_is_refused(opened: Callable[[], Opened]) -> None:
    first = opened()
    form, *fields = msgpack.unpackb(first.state.plain(), strict_map_key=False)
    first.store.checkpoint(msgpack.packb([form - 1, *fields]))
    with pytest.raises(QueueError, match="has format 3, not 4; use the version that wrote it"):
        opened()


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


def test_a_timeline_ends_with_a_crash_that_may_have_lost_what_was_seen(tmp_path: Path) -> None:
    def started(*, shows_safe: bool = False) -> Opened:
        return Opened(tmp_path, Clock(), shows_safe=shows_safe)

    first = started()
    first.store.close(first.state.plain(is_last=True))
    after_stop = started()
    assert after_stop.state.timeline == first.state.timeline != ""
    after_stop.store.abandon()
    after_crash = started(shows_safe=True)
    assert after_crash.state.timeline != first.state.timeline
    after_crash.store.abandon()
    nothing_lost = started(shows_safe=True)
    assert nothing_lost.state.timeline == after_crash.state.timeline
    nothing_lost.state.create_topic("t", 1)
    nothing_lost.send("t", 0, 1)
    nothing_lost.store.flush()
    nothing_lost.state.checkpoint()
    nothing_lost.store.abandon()
    for chunk in (tmp_path / "messages").iterdir():  # a disk that does not keep its word
        chunk.unlink()
    last = started(shows_safe=True)
    assert last.state.timeline != after_crash.state.timeline
    last.store.abandon()


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
    """Every call that changes a state with a topic, a group and two members."""

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


@pytest.mark.parametrize("has_news", [True, False])
def test_nothing_changes_after_a_start_without_a_checkpoint_until_there_is_one(
    opened: Callable[[], Opened], monkeypatch: pytest.MonkeyPatch, has_news: bool
) -> None:
    first = opened()
    first.state.create_topic("t", 2)
    if not has_news:
        first.state.checkpoint()

    def full(store: MessageStore, state: bytes) -> None:
        raise QueueFull("no room")

    with monkeypatch.context() as context:
        context.setattr(MessageStore, "checkpoint", full)
        again = opened()
    assert (again.store.since_checkpoint > 0) is has_news
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
    """The group that settles one dead letter remains, and would otherwise keep the others and all later files for
    ever."""
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


@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_deleted_topic_stays_deleted_and_a_later_one_has_only_its_own_messages(
    opened: Callable[[], Opened], checkpointed: bool
) -> None:
    first = opened()
    first.state.create_topic("orders", 2)
    first.state.create_topic("others", 1)
    first.send("orders", 0, 1)
    first.send("others", 0, 1)
    first.state.checkpoint()
    first.send("orders", 0, 2)
    files = first.state.delete_topic("orders", True)
    assert [file.path.name for file in files] == [f"{0:020}.index"]
    if checkpointed:
        first.state.checkpoint()
    second = opened()
    assert files[0].path.parent.parent.name == "orders"
    assert [*files[0].path.parent.parent.parent.iterdir()] == [files[0].path.parent.parent.with_name("others")]
    with pytest.raises(TopicDeleted):
        second.state.bounds("orders")
    assert (second.state.consumed("orders", 0) or 0) > 4, "it holds back no file"
    second.state.create_topic("orders", 1)
    assert second.state.coordinator.topic("orders").version == 2
    assert second.state.bounds("orders") == {0: (4, 4)}
    second.send("orders", 0, 1)
    third = opened()
    assert third.state.bounds("orders") == {0: (4, 6)}
    assert [batch.first_offset for batch in read_batches(third.store, "orders", 0, 0, 10, 1 << 20)] == [4]
    assert third.state.bounds("others") == {0: (0, 2)}
    assert not third.store.reader.damaged


def test_messages_of_a_deleted_topic_do_not_come_back_when_a_checkpoint_and_an_index_are_lost(tmp_path: Path) -> None:
    first = Opened(tmp_path, Clock())
    first.state.create_topic("orders", 1)
    first.send("orders", 0, 1)
    delete_index_files(first.state.delete_topic("orders", True))
    first.state.create_topic("orders", 1)
    first.send("orders", 0, 2)
    first.state.checkpoint()
    first.store.abandon()
    for path in tmp_path.glob("queues/orders/0/*.index"):
        path.write_bytes(b"damaged")
    again = Opened(tmp_path, Clock())
    assert [batch.first_offset for batch in read_batches(again.store, "orders", 0, 0, 10, 1 << 20)] == [2]
    again.store.abandon()
    for name in ("checkpoint", "checkpoint.before"):
        (tmp_path / name).unlink()
    once_more = Opened(tmp_path, Clock())
    assert once_more.state.bounds("orders") == {0: (2, 4)}
    assert [batch.first_offset for batch in read_batches(once_more.store, "orders", 0, 0, 10, 1 << 20)] == [2]
    once_more.store.abandon()


@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_deleted_queue_is_empty_after_crashes_and_others_are_not(
    opened: Callable[[], Opened], checkpointed: bool
) -> None:
    first = opened()
    first.state.create_topic("orders", 2)
    for queue in (0, 1):
        first.send("orders", queue, queue + 1)
    lease = first.state.acquire("group", "orders", 0, "one", 60.0, 0)
    first.state.commit("group", "orders", {0: Commit(lease.epoch, 1, [Receipt(0, b"r")], 5)})
    first.state.checkpoint()
    first.send("orders", 0, 3)
    first.state.show("orders", 0, False, False, True)
    files = first.state.delete_queue("orders", 0, True)
    assert [file.path.parent.name for file in files] == ["0"]
    if checkpointed:
        first.state.checkpoint()
    second = opened()
    assert second.state.bounds("orders") == {0: (4, 4), 1: (0, 2)}
    assert second.state.coordinator.committed("group", "orders") == {0: 4, 1: 0}
    assert second.state.coordinator.receipts("group", "orders", 0) == []
    assert [batch.first_offset for batch in read_batches(second.store, "orders", 1, 0, 10, 1 << 20)] == [0]
    second.send("orders", 0, 4)
    third = opened()
    assert [batch.first_offset for batch in read_batches(third.store, "orders", 0, 0, 10, 1 << 20)] == [4]
    assert not third.store.reader.damaged


@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_paused_group_is_paused_after_crashes(opened: Callable[[], Opened], checkpointed: bool) -> None:
    state = opened().state
    state.create_topic("orders", 2)
    state.join("group", "orders", "one", 60)
    state.join("other", "orders", "two", 60)
    state.pause_group("group", "orders", True)
    state.pause_group("other", "orders", True)
    state.pause_group("other", "orders", False)
    if checkpointed:
        state.checkpoint()
    state = opened().state
    assert state.coordinator.paused_groups("orders") == ["group"]
    assert not state.join("group", "orders", "one", 60).queues
    assert state.join("other", "orders", "two", 60).queues == {0, 1}


@pytest.mark.parametrize("checkpointed", [True, False])
def test_the_retention_of_a_topic_is_known_after_crashes(opened: Callable[[], Opened], checkpointed: bool) -> None:
    state = opened().state
    state.create_topic("orders", 2)
    state.set_retention("orders", 3_600.0)
    if checkpointed:
        state.checkpoint()
    again = opened()
    assert again.state.retention("orders") == again.store.deletion.own_age("orders") == 3_600.0
    assert again.store.deletion.own_age("others") is None
