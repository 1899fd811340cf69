from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest
from django.db import connection, connections, transaction

from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import StoreUnavailable
from enode_django.repository.postgres import PostgresSnapshotStore
from enode_django.repository.store import MemorySnapshotStore, SnapshotStore
from enode_django.testing.event_store_read_contract import history
from enode_django.testing.snapshot_store_contract import SnapshotStoreContract, snapshot


class TestMemorySnapshotStore(SnapshotStoreContract):
    @pytest.fixture
    def snapshots(self) -> SnapshotStore:
        return MemorySnapshotStore()


@pytest.mark.django_db(transaction=True)
class TestPostgresSnapshotStore(SnapshotStoreContract):
    @pytest.fixture
    def snapshots(self) -> SnapshotStore:
        return PostgresSnapshotStore()

    def leave_thread(self) -> None:
        connections.close_all()


@pytest.mark.django_db(transaction=True)
def test_a_lost_connection_is_retriable_and_the_next_call_has_another() -> None:
    snapshots = PostgresSnapshotStore()
    snapshots.save([snapshot()])
    with psycopg.connect(**connection.get_connection_params(), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", (connection.connection.info.backend_pid,))
        with suppress(StoreUnavailable):  # a retriable error may be raised once
            snapshots.load(["a"])
    assert set(snapshots.load(["a"])) == {"a"}


@pytest.mark.django_db(transaction=True)
def test_a_snapshot_of_a_corrected_version_or_a_later_one_is_not_loaded() -> None:
    store, snapshots = PostgresEventStore(), PostgresSnapshotStore()
    store.append(history("a", 3))
    store.correct("a", 2, b"better", by="ann", reason="a typing error", last=0)
    found = []
    for version in (1, 2, 3):
        snapshots.save([snapshot(version=version)])
        found += [one.version for one in snapshots.load(["a"]).values()]
    assert found == [1]


@pytest.mark.django_db(transaction=True)
def test_what_a_transaction_takes_back_takes_its_snapshots_along() -> None:
    snapshots = PostgresSnapshotStore()
    with transaction.atomic():
        snapshots.save([snapshot()])
        transaction.set_rollback(True)
    assert snapshots.load(["a"]) == {}
