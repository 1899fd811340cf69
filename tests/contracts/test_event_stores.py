from __future__ import annotations

import pytest
from django.db import connections

from enode_django.eventstore.base import EventStore
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.testing.event_store_contract import EventStoreContract


class TestMemoryEventStore(EventStoreContract):
    @pytest.fixture
    def store(self) -> EventStore:
        return MemoryEventStore()


@pytest.mark.django_db(transaction=True)
class TestPostgresEventStore(EventStoreContract):
    @pytest.fixture
    def store(self) -> EventStore:
        return PostgresEventStore()

    @pytest.fixture
    def second_store(self) -> EventStore:
        return PostgresEventStore()

    def leave_thread(self) -> None:
        connections.close_all()


@pytest.mark.django_db
class TestPostgresEventStoreInsideAnAtomicBlock(EventStoreContract):
    @pytest.fixture
    def store(self) -> EventStore:
        return PostgresEventStore()

    # Not part of it: the threads of other writers do not see an uncommitted block.
    test_writers_that_race_leave_histories_without_gap_or_repeat = None  # type: ignore[assignment]
