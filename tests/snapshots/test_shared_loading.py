"""A load begins with a shared state, is held against the store, and is never made wrong by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import UnusableSnapshot
from enode_django.repository import loading, reading
from enode_django.repository.loading import AggregateLoader, Begin, History
from enode_django.repository.states import MemoryStates
from enode_django.repository.store import MemorySnapshotStore, Snapshot
from tests.snapshots.domain import Off, Put, Shelf
from tests.snapshots.histories import snapshot_at, store_history, streams, total
from tests.snapshots.test_loading import Watched, WatchedSnapshots


class WatchedStates(MemoryStates):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[str]] = []

    def load(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Snapshot]:
        ids = list(aggregate_root_ids)
        self.asked.append(ids)
        return super().load(ids)


@pytest.fixture
def store() -> Watched:
    return Watched()


@pytest.fixture
def snapshots() -> WatchedSnapshots:
    return WatchedSnapshots()


@pytest.fixture
def states() -> WatchedStates:
    return WatchedStates()


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    reading._told.clear()


def state_at(store: EventStore, id: str, version: int) -> Snapshot:
    """Return the state as a command mailbox shares it."""
    (last,) = store.load(id, after=version - 1, until=version)
    return snapshot_at(store, id, version)._replace(created_at=last.created_at)


def load_one(loader: AggregateLoader, id: str = "a") -> AggregateRoot | None:
    return loader.load(id)


def load_in_batch(loader: AggregateLoader, id: str = "a") -> AggregateRoot | None:
    """Load the aggregate as a command mailbox does."""
    portions, large = loader.sorted_by_size(["other", id])
    histories: dict[str, History] = {}
    for portion in portions:
        histories.update(loader.histories_of(portion))
    if id in large:
        return loader.load(id)
    try:
        return histories[id].rebuild()
    except UnusableSnapshot as error:
        aggregate = loader.load(id, begin=histories[id].next_begin)
        loader.reject(histories[id], error)
        return aggregate


ways = pytest.mark.parametrize("load", [load_one, load_in_batch])
Load = Callable[..., Any]


# -- in which order ---------------------------------------------------------------------------------------------------


@ways
def test_a_shared_state_is_completed_with_the_streams_after_it(
    store: Watched, snapshots: WatchedSnapshots, states: WatchedStates, load: Load
) -> None:
    store_history(store, "a", 30)
    states.save([state_at(store, "a", 27)])
    snapshots.save([snapshot_at(store, "a", 20)])
    store.read.clear()
    shelf = load(AggregateLoader(store, snapshots, states))
    assert (shelf.version, shelf.total) == (30, total(1, 30))
    assert store.read == {"a": [27, 28, 29, 30]}
    assert [ids for ids in snapshots.asked if ids] == [], "what is shared is not asked of the snapshots"


@ways
def test_a_state_that_may_be_older_than_a_correction_is_not_asked_for(
    store: Watched, snapshots: WatchedSnapshots, states: WatchedStates, load: Load
) -> None:
    store_history(store, "a", 30)
    states.save([state_at(store, "a", 27)])
    snapshots.save([snapshot_at(store, "a", 20)])
    store.read.clear()
    loader = AggregateLoader(store, snapshots, states)
    loader.without_states = {"a"}
    assert load(loader).total == total(1, 30)
    assert "a" not in {id for ids in states.asked for id in ids}
    assert store.read["a"][0] == 20


@ways
def test_without_a_shared_state_the_snapshot_is_next(
    store: Watched, snapshots: WatchedSnapshots, states: WatchedStates, load: Load
) -> None:
    store_history(store, "a", 30)
    snapshots.save([snapshot_at(store, "a", 20)])
    store.read.clear()
    assert load(AggregateLoader(store, snapshots, states)).total == total(1, 30)
    assert store.read == {"a": list(range(20, 31))}


@ways
def test_young_aggregates_have_shared_states_too(store: Watched, states: WatchedStates, load: Load) -> None:
    store_history(store, "a", 3)
    states.save([state_at(store, "a", 3)])
    store.read.clear()
    assert load(AggregateLoader(store, None, states)).total == total(1, 3)
    assert store.read == {"a": [3]}


def test_aggregates_that_do_not_exist_are_not_asked_for(store: Watched, states: WatchedStates) -> None:
    store_history(store, "a", 3)
    AggregateLoader(store, None, states).sorted_by_size(["new", "a", "newer"])
    assert states.asked == [["a"]]


@ways
def test_a_history_that_has_gone_far_since_is_streamed(
    store: Watched, states: WatchedStates, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "PORTION", 5)
    store_history(store, "a", 30)
    states.save([state_at(store, "a", 12)])
    store.read.clear()
    loader = AggregateLoader(store, None, states)
    assert loader.sorted_by_size(["a"]) == ([], ["a"])
    assert load(loader).total == total(1, 30)
    assert store.read == {"a": list(range(12, 31))}


@pytest.mark.parametrize("begin", [Begin.SNAPSHOT, Begin.NOTHING])
def test_from_the_store_alone_no_shared_state_is_asked_for(
    store: Watched, snapshots: WatchedSnapshots, states: WatchedStates, begin: Begin
) -> None:
    store_history(store, "a", 30)
    states.save([state_at(store, "a", 27)])
    loader = AggregateLoader(store, snapshots, states)
    shelf = loader.load("a", begin=begin)
    loader.sorted_by_size(["a"], begin=begin)
    assert shelf is not None
    assert shelf.version == 30
    assert states.asked == []
    assert (snapshots.asked == []) is (begin is Begin.NOTHING)


def test_a_state_newer_than_what_is_asked_for_is_not_used(store: Watched, states: WatchedStates) -> None:
    store_history(store, "a", 30)
    states.save([state_at(store, "a", 27)])
    shelf = AggregateLoader(store, None, states).load("a", until=20)
    assert shelf is not None
    assert shelf.version == 20
    assert "a" in states.states


# -- unusable states --------------------------------------------------------------------------------------------------


def _garbled(one: Snapshot, store: MemoryEventStore) -> Snapshot:
    return one._replace(payload=one.payload[:-1] + bytes([one.payload[-1] ^ 1]))


def _of_another_aggregate(one: Snapshot, store: MemoryEventStore) -> Snapshot:
    store_history(store, "other", 27)
    return state_at(store, "other", 27)._replace(aggregate_root_id="a")


def _at_another_version(one: Snapshot, store: MemoryEventStore) -> Snapshot:
    return one._replace(version=one.version - 1)


def _by_another_command(one: Snapshot, store: MemoryEventStore) -> Snapshot:
    elsewhere = MemoryEventStore()
    elsewhere.append(streams("a", range(1, 31)))
    return state_at(elsewhere, "a", 27)


def _of_another_time(one: Snapshot, store: MemoryEventStore) -> Snapshot:
    """Return a state by the same command, with another outcome: the store has lost the first one."""
    return one._replace(created_at=one.created_at - timedelta(microseconds=1))


def _ahead_of_the_store(one: Snapshot, store: MemoryEventStore) -> Snapshot:
    elsewhere = MemoryEventStore()
    elsewhere.append(list(store.load("a")))
    elsewhere.append(streams("a", range(31, 41)))
    return state_at(elsewhere, "a", 35)


@ways
@pytest.mark.parametrize("with_snapshot", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        _garbled,
        _of_another_aggregate,
        _at_another_version,
        _by_another_command,
        _of_another_time,
        _ahead_of_the_store,
    ],
)
def test_what_does_not_join_is_told_once_deleted_and_made_up_for(
    store: Watched,
    snapshots: WatchedSnapshots,
    states: WatchedStates,
    load: Load,
    change: Callable[[Snapshot, MemoryEventStore], Snapshot],
    with_snapshot: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store_history(store, "a", 30)
    if with_snapshot:
        snapshots.save([snapshot_at(store, "a", 20)])
    planted = change(state_at(store, "a", 27), store)
    loader = AggregateLoader(store, snapshots, states)
    for _ in range(2):
        states.save([planted])
        store.read.clear()
        shelf = load(loader)
        assert (shelf.version, shelf.total) == (30, total(1, 30))
        assert states.states == {}
    assert set(snapshots.load(["a"])) == ({"a"} if with_snapshot else set())
    assert len([line for line in caplog.records if "shared state of 'a'" in line.getMessage()]) == 1


@ways
def test_a_state_that_other_code_made_is_left_alone(store: Watched, states: WatchedStates, load: Load) -> None:
    """In a rolling deployment its makers still use it; ours replaces it when the aggregate changes."""
    store_history(store, "a", 30)
    states.save([state_at(store, "a", 27)._replace(fingerprint="of other code")])
    assert load(AggregateLoader(store, None, states)).total == total(1, 30)
    assert set(states.states) == {"a"}


@ways
def test_a_class_without_snapshots_uses_none(store: Watched, states: WatchedStates, load: Load) -> None:
    store_history(store, "a", 30, Off)
    states.save([state_at(store, "a", 27)])
    store.read.clear()
    assert load(AggregateLoader(store, None, states)).total == total(1, 30)
    assert store.read == {"a": list(range(1, 31))}


@ways
def test_if_state_and_snapshot_are_both_of_no_use_all_streams_are(
    store: Watched, snapshots: WatchedSnapshots, states: WatchedStates, load: Load
) -> None:
    store_history(store, "a", 30)
    states.save([_of_another_time(state_at(store, "a", 27), store)])
    snapshots.save([_by_another_command(snapshot_at(store, "a", 27), store)])
    assert load(AggregateLoader(store, snapshots, states)).total == total(1, 30)
    assert (states.states, snapshots.load(["a"])) == ({}, {})


# -- whatever is there ------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(data=st.data(), until=st.integers(1, 8))
def test_whatever_the_states_hold_a_load_gives_what_a_replay_gives(data: st.DataObject, until: int) -> None:
    """States of this history and of another one, of any version, some with other bytes."""
    store, elsewhere, states = MemoryEventStore(), MemoryEventStore(), MemoryStates()
    store_history(store, "a", until)
    shared = data.draw(st.integers(0, until))
    elsewhere.append(list(store.load("a", until=shared)))
    store_history(elsewhere, "a", 10, after=shared)
    one = state_at(data.draw(st.sampled_from([elsewhere, store]), "made from"), "a", data.draw(st.integers(1, until)))
    flip = data.draw(st.none() | st.integers(0, len(one.payload) - 1))
    if flip is not None:
        one = one._replace(payload=one.payload[:flip] + bytes([one.payload[flip] ^ 255]) + one.payload[flip + 1 :])
    states.save([one])
    loaded = load_in_batch(AggregateLoader(store, MemorySnapshotStore(), states))
    replayed = AggregateLoader(store).load("a")
    assert isinstance(loaded, Shelf)
    assert isinstance(replayed, Shelf)
    assert (loaded.version, loaded.total) == (replayed.version, replayed.total) == (until, total(1, until))
    loaded.apply(Put(amount=5))
    assert loaded.total == total(1, until) + 5
