"""That of PostgreSQL is held to the contract by the sample's tests of its services, too, outside of a transaction."""

from __future__ import annotations

import pytest

from enode_django.eventstore.base import EventStore, Settled
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.positions import BEGINNING, END
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.testing.event_store_contract import EventStoreAppendContract, EventStoreContract
from enode_django.testing.event_store_position_contract import settled_between
from enode_django.testing.event_store_read_contract import history, refusal


class TestMemoryEventStore(EventStoreContract):
    @pytest.fixture
    def store(self) -> EventStore:
        return MemoryEventStore()


@pytest.mark.django_db
class TestPostgresEventStoreInsideAnAtomicBlock(EventStoreAppendContract):
    @pytest.fixture
    def store(self) -> EventStore:
        return PostgresEventStore()

    # Not part of it: the threads of other writers do not see an uncommitted block.
    test_writers_that_race_leave_histories_without_gap_or_repeat = None  # type: ignore[assignment]

    def test_what_the_block_has_stored_is_not_below_the_position(self, store: EventStore) -> None:
        before = store.position()
        for record in history("a", 2):
            store.append([record, refusal("a")])
            assert before <= store.position()
            assert settled_between(store, BEGINNING, store.position()) == Settled({}, [])
            assert store.heads_before("a", store.position()) == {}
        assert store.heads_before("a", END) == {"a": 2}
