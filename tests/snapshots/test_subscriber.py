"""Snapshots are made while events arrive, whatever happens to the messages, and hold nothing up."""

from __future__ import annotations

import pytest
from django.test import override_settings

from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventing.registry import subscribers
from enode_django.eventing.snapshot_processor import AT_ONCE
from enode_django.eventing.snapshot_subscriber import snapshot_subscriber
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import ConfigurationError
from enode_django.models import Checkpoint
from enode_django.repository.fingerprint import forget
from enode_django.repository.postgres import PostgresSnapshotStore
from enode_django.runtime import make_processor, make_snapshots, running_subscribers
from enode_django.serialization.codec import STREAM
from enode_django.serialization.plain import pack
from tests.following.harness import Harness, shuffled
from tests.following.test_sweeping import Sweep
from tests.snapshots.domain import Fussy, Misdeclared, Off, Put, Shelf, Undeclared
from tests.snapshots.histories import snapshot_at, store_history, streams

NAME = "enode.snapshots"


@pytest.fixture
def harness(transactional_db: None) -> Harness:
    return Harness()


@pytest.fixture
def snapshots() -> PostgresSnapshotStore:
    return PostgresSnapshotStore()


def versions(snapshots: PostgresSnapshotStore, *ids: str) -> dict[str, int]:
    return {id: found.version for id, found in snapshots.versions(ids).items()}


def stored(
    harness: Harness, id: str, until: int, cls: type[AggregateRoot] = Shelf, after: int = 0
) -> list[StreamRecord]:
    return store_history(harness.store, id, until, cls, after=after)


def test_a_snapshot_is_made_when_the_version_calls_for_it(harness: Harness, snapshots: PostgresSnapshotStore) -> None:
    subscription = harness.subscription(snapshot_subscriber)
    records = stored(harness, "a", 35)
    reached = []
    for record in records:
        harness.deliver(subscription, [record])
        reached.append(versions(snapshots, "a").get("a", 0))
    assert reached == [0] * 9 + [10] * 10 + [20] * 10 + [30] * 6
    assert snapshots.load(["a"])["a"].payload == snapshot_at(harness.store, "a", 30).payload
    assert not harness.window.unfinished
    assert Checkpoint.objects.count() == 0


def test_a_batch_makes_one_snapshot_of_an_aggregate(harness: Harness, snapshots: PostgresSnapshotStore) -> None:
    harness.deliver(harness.subscription(snapshot_subscriber), stored(harness, "a", 35))
    assert versions(snapshots, "a") == {"a": 35}


@pytest.mark.parametrize("seed", range(3))
def test_messages_may_come_twice_and_out_of_order(
    harness: Harness, snapshots: PostgresSnapshotStore, seed: int
) -> None:
    records = shuffled([*stored(harness, "a", 30), *stored(harness, "b", 30)], seed)
    subscription = harness.subscription(snapshot_subscriber)
    for at in range(0, len(records), 7):
        harness.deliver(subscription, records[at : at + 7])
    assert all(version > 20 for version in versions(snapshots, "a", "b").values())
    assert not harness.window.unfinished


def test_what_is_off_or_not_known_here_is_passed_over(harness: Harness, snapshots: PostgresSnapshotStore) -> None:
    unknown = [record._replace(aggregate_root_type="newer.Thing") for record in streams("u", range(1, 31))]
    harness.store.append(unknown)
    harness.deliver(harness.subscription(snapshot_subscriber), [*stored(harness, "o", 30, Off), *unknown])
    assert versions(snapshots, "o", "u") == {}
    assert not harness.window.unfinished


def test_an_event_of_an_unknown_type_parks_nothing(harness: Harness, snapshots: PostgresSnapshotStore) -> None:
    """A snapshot that nobody can make is missed by nobody."""
    records = stored(harness, "a", 12)
    events = STREAM + pack(([("removed.Event", 1, {})], None))
    removed = records[-1]._replace(version=13, command_id="removed", events=events)
    harness.store.append([removed])
    harness.deliver(harness.subscription(snapshot_subscriber), [*records, removed])
    assert harness.parked(NAME) == []
    assert versions(snapshots, "a") == {}
    assert not harness.window.unfinished


def test_many_that_are_due_at_once_are_made_in_turns(
    harness: Harness, snapshots: PostgresSnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enode_django.eventing.snapshot_processor.AT_ONCE", 3)
    ids = [f"a{n}" for n in range(10)]
    harness.deliver(harness.subscription(snapshot_subscriber), [one for id in ids for one in stored(harness, id, 12)])
    assert versions(snapshots, *ids) == dict.fromkeys(ids, 12)
    assert not harness.window.unfinished
    assert AT_ONCE > 3


def test_nobody_waits_for_it(harness: Harness) -> None:
    harness.deliver(harness.subscription(snapshot_subscriber), stored(harness, "a", 12))
    assert harness.notices == []
    with subscribers.only():
        assert list(subscribers.following(["snapshots.Put"])) == []
    assert NAME not in subscribers.following(["snapshots.Put"])


def test_a_sweep_makes_what_is_missing_and_nothing_else(harness: Harness, snapshots: PostgresSnapshotStore) -> None:
    for id, until in (("a", 25), ("b", 9), ("c", 25), ("d", 25)):
        stored(harness, id, until)
    recent, corrupt = snapshot_at(harness.store, "c", 20), snapshot_at(harness.store, "d", 12)
    snapshots.save([recent, corrupt._replace(payload=b"nonsense")])
    Sweep(harness, snapshot_subscriber).run()
    assert versions(snapshots, "a", "b", "c", "d") == {"a": 25, "c": 20, "d": 25}
    assert snapshots.load(["c"])["c"] == recent


def test_what_other_code_made_is_replaced_when_events_arrive(
    harness: Harness, snapshots: PostgresSnapshotStore, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    stored(harness, "a", 20)
    old = snapshot_at(harness.store, "a", 20)
    snapshots.save([old])

    def otherwise(self: Shelf, event: Put) -> None:
        self.total += 2

    monkeypatch.setattr(Shelf, "_put", otherwise)
    forget(Shelf)
    request.addfinalizer(lambda: forget(Shelf))
    harness.deliver(harness.subscription(snapshot_subscriber), stored(harness, "a", 21, after=20))
    made = snapshots.load(["a"])["a"]
    assert made.version == 21
    assert made.fingerprint != old.fingerprint
    assert make_processor(snapshot_subscriber, harness.store, harness._send).positions(["a"]) == {"a": 21}


def test_an_aggregate_that_cannot_be_loaded_is_parked_alone(harness: Harness, snapshots: PostgresSnapshotStore) -> None:
    subscription = harness.subscription(snapshot_subscriber, attempts=3)
    broken = store_history(harness.store, "bad", 30, fails_at=15)
    for part in (broken[:12], broken[12:20], broken[20:25], broken[25:]):
        harness.deliver(subscription, [*part, *stored(harness, f"good{part[0].version}", 12)])
        harness.clock.now += 10
        subscription.retry_due()
    (parked,) = harness.parked(NAME)
    assert (parked.aggregate_root_id, parked.version, parked.error_type) == ("bad", 13, "BrokenHistory")
    assert versions(snapshots, "bad", "good1", "good13", "good21", "good26") == {
        "bad": 12, "good1": 12, "good13": 12, "good21": 12, "good26": 12,
    }  # fmt: skip
    assert not harness.window.unfinished


def test_a_policy_that_raises_parks_the_aggregate_too(harness: Harness, snapshots: PostgresSnapshotStore) -> None:
    subscription = harness.subscription(snapshot_subscriber, attempts=1)
    for record in stored(harness, "f", 14, Fussy):
        harness.deliver(subscription, [record])
    (parked,) = harness.parked(NAME)
    assert (parked.aggregate_root_id, parked.error_type) == ("f", "RuntimeError")
    assert versions(snapshots, "f") == {"f": 11}


def test_a_class_that_no_snapshot_can_hold_is_named_once_and_parks_nothing(
    harness: Harness, snapshots: PostgresSnapshotStore, caplog: pytest.LogCaptureFixture
) -> None:
    subscription = harness.subscription(snapshot_subscriber, attempts=1)
    for id in "abc":
        harness.deliver(subscription, stored(harness, id, 15, Undeclared))
    assert [message for message in caplog.messages if "no snapshots are made" in message] == [
        "no snapshots are made: Undeclared keeps state in 'seen', which is not a declared field: declare it, define "
        "snapshot() and restore(), or say snapshot_every = None"
    ]
    assert harness.parked(NAME) == []
    assert versions(snapshots, *"abc") == {}
    assert not harness.window.unfinished


def test_a_state_that_does_not_fit_its_field_parks_its_aggregate(harness: Harness) -> None:
    harness.deliver(harness.subscription(snapshot_subscriber, attempts=1), stored(harness, "m", 12, Misdeclared))
    (parked,) = harness.parked(NAME)
    assert (parked.aggregate_root_id, parked.error_type) == ("m", "InvalidState")
    assert "Misdeclared.total" in parked.error


def test_event_workers_run_it_unless_settings_or_classes_do_without(
    settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert NAME in [one.name for one in running_subscribers()]
    assert NAME not in [one.name for one in subscribers.all()]
    assert subscribers.get(NAME) is snapshot_subscriber
    with subscribers.only():
        assert list(running_subscribers()) == []
    with override_settings(ENODE={"SNAPSHOTS": {"ENABLED": False}}):
        assert NAME not in [one.name for one in running_subscribers()]
    monkeypatch.setattr("enode_django.repository.policy.lowest", lambda: None)
    assert NAME not in [one.name for one in running_subscribers()]


def test_switched_off_there_are_none(harness: Harness) -> None:
    with override_settings(ENODE={"SNAPSHOTS": {"ENABLED": False}}):
        assert make_snapshots(harness.store) is None
        with pytest.raises(ConfigurationError, match="snapshots are switched off"):
            make_processor(snapshot_subscriber, harness.store, harness._send)
