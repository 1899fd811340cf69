"""Contract tests of the services that the settings name: run them before using another queue, database or cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import pytest
from django.db import connections
from django.test import override_settings

from enode_django.equeue.transport import Transport
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.unique_values import UniqueValues, unique_values_of
from enode_django.repository.states import SharedStates
from enode_django.repository.store import SnapshotStore
from enode_django.runtime import make_snapshots, make_states, make_store, make_transport
from enode_django.testing.contracts import (
    EventStoreContract,
    SharedStatesContract,
    SnapshotStoreContract,
    TransportContract,
    UniqueValuesContract,
)


class TestTheQueue(TransportContract):
    @pytest.fixture
    def transport(self) -> Iterator[Transport]:
        with closing(make_transport()) as transport:
            yield transport

    @pytest.fixture
    def another(self) -> Iterator[Transport]:
        with closing(make_transport()) as transport:
            yield transport


@pytest.mark.django_db(transaction=True)
class TestTheEventStore(EventStoreContract):
    @pytest.fixture
    def store(self) -> EventStore:
        return make_store()

    @pytest.fixture
    def second_store(self) -> EventStore:
        return make_store()

    def leave_thread(self) -> None:
        connections.close_all()


@pytest.mark.django_db(transaction=True)
class TestTheSnapshots(SnapshotStoreContract):
    @pytest.fixture
    def snapshots(self) -> SnapshotStore:
        snapshots = make_snapshots(make_store())
        assert snapshots is not None
        return snapshots

    def leave_thread(self) -> None:
        connections.close_all()


@pytest.mark.django_db(transaction=True)
class TestTheUniqueValues(UniqueValuesContract):
    @pytest.fixture
    def values(self) -> UniqueValues:
        return unique_values_of(make_store())

    def leave_thread(self) -> None:
        connections.close_all()


class TestTheSharedStates(SharedStatesContract):
    @pytest.fixture
    def states(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedStates]:
        # Calls for shared states time out after 50 ms, which is too short for many of them on a busy machine.
        monkeypatch.setattr("enode_django.repository.redis_states.TIMEOUT", 60.0)
        cache = {"LOCATION": os.environ["REDIS_URL"], "PREFIX": f"test-{os.getpid()}"}
        with override_settings(ENODE={"AGGREGATE_CACHE": cache}):
            states = make_states()
        assert states is not None
        with closing(states):
            yield states
