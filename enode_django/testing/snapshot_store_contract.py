"""The contract of every `SnapshotStore`. Subclass it and define the fixture ``snapshots``."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from enode_django.repository.store import Snapshot, SnapshotStore, SnapshotVersion


def snapshot(id: str = "a", version: int = 100, fingerprint: str = "f", payload: bytes = b"state") -> Snapshot:
    made_at = datetime(2026, 3, 1, 12, 30, 15, 123456, UTC)
    return Snapshot(id, "bank.BankAccount", version, fingerprint, payload, made_at)


class SnapshotStoreContract:
    """The whole contract of a snapshot store.

    For example::

        class TestMySnapshots(SnapshotStoreContract):
            @pytest.fixture
            def snapshots(self) -> SnapshotStore:
                return MemorySnapshotStore()
    """

    @pytest.fixture
    def snapshots(self) -> SnapshotStore:
        raise NotImplementedError

    def leave_thread(self) -> None:
        """Called at the end of each thread that a test starts."""

    def test_what_is_saved_comes_back(self, snapshots: SnapshotStore) -> None:
        one, other = snapshot("a", payload=bytes(range(256)) * 100), snapshot("ü🙂" * 50, 2**40, payload=b"")
        assert snapshots.save([one, other]) == 2
        assert snapshots.load(["a", other.aggregate_root_id, "b"]) == {"a": one, other.aggregate_root_id: other}
        assert snapshots.versions(["a", "b"]) == {"a": SnapshotVersion("bank.BankAccount", 100, "f")}

    def test_nothing_asked_nothing_found(self, snapshots: SnapshotStore) -> None:
        assert snapshots.save([]) == 0
        assert snapshots.load([]) == {}
        assert snapshots.versions([]) == {}
        assert list(snapshots.sample(5)) == []

    def test_an_id_that_cannot_be_stored_has_none(self, snapshots: SnapshotStore) -> None:
        assert snapshots.load(["\0", "\ud800", "x" * 1000]) == {}
        assert snapshots.versions(["\0"]) == {}

    def test_a_newer_one_takes_the_place(self, snapshots: SnapshotStore) -> None:
        snapshots.save([snapshot(version=100)])
        assert snapshots.save([snapshot(version=200, payload=b"new")]) == 1
        assert snapshots.load(["a"]) == {"a": snapshot(version=200, payload=b"new")}

    def test_an_older_one_that_comes_later_changes_nothing(self, snapshots: SnapshotStore) -> None:
        snapshots.save([snapshot(version=200)])
        assert snapshots.save([snapshot(version=100), snapshot("b")]) == 1
        assert snapshots.save([snapshot(version=200, payload=b"again")]) == 0
        assert snapshots.load(["a"]) == {"a": snapshot(version=200)}

    def test_one_that_other_code_made_gives_way_to_an_older_version(self, snapshots: SnapshotStore) -> None:
        snapshots.save([snapshot(version=200, fingerprint="old code")])
        assert snapshots.save([snapshot(version=100, fingerprint="new code")]) == 1
        assert snapshots.versions(["a"])["a"][1:] == (100, "new code")

    def test_only_the_very_one_is_discarded(self, snapshots: SnapshotStore) -> None:
        snapshots.save([snapshot(payload=b"good")])
        assert snapshots.discard(snapshot(payload=b"bad")) is False
        assert snapshots.discard(snapshot(version=101, payload=b"good")) is False
        assert snapshots.discard(snapshot("b", payload=b"good")) is False
        assert snapshots.discard(snapshot(payload=b"good")) is True
        assert snapshots.discard(snapshot(payload=b"good")) is False
        assert snapshots.load(["a"]) == {}

    def test_a_sample_holds_different_ones_of_the_types(self, snapshots: SnapshotStore) -> None:
        many = [snapshot(f"a{n}") for n in range(20)]
        strangers = [snapshot(f"b{n}")._replace(aggregate_root_type="notes.Note") for n in range(20)]
        snapshots.save([*many, *strangers])
        sample = snapshots.sample(5, ["bank.BankAccount"])
        assert len({one.aggregate_root_id for one in sample}) == 5
        assert set(sample) <= set(many)
        assert set(snapshots.sample(100)) == {*many, *strangers}
        assert list(snapshots.sample(3, ["no.Such"])) == []

    def test_of_writers_that_race_the_newest_version_stays(self, snapshots: SnapshotStore) -> None:
        ids = [f"a{n}" for n in range(10)]

        def write(versions: range, order: int) -> None:
            try:
                for version in versions:
                    snapshots.save([snapshot(id, version) for id in ids[::order]])
            finally:
                self.leave_thread()

        tasks: list[Callable[[], None]] = [
            lambda: write(range(1, 60), 1),
            lambda: write(range(59, 0, -1), -1),
            lambda: write(range(20, 40), -1),
        ]
        with ThreadPoolExecutor(len(tasks)) as pool:
            for done in [pool.submit(task) for task in tasks]:
                done.result(timeout=60)
        assert {one.version for one in snapshots.versions(ids).values()} == {59}
        assert len(snapshots.versions(ids)) == 10

    def test_a_snapshot_is_deleted_from_a_version_on(self, snapshots: SnapshotStore) -> None:
        snapshots.save([snapshot("a", 5), snapshot("b", 5)])
        assert not snapshots.discard_from("a", 6)
        assert snapshots.load(["a"]).keys() == {"a"}
        assert snapshots.discard_from("a", 5)
        assert snapshots.discard_from("b", 1)
        assert snapshots.load("ab") == {}
        assert not snapshots.discard_from("a", 1)
