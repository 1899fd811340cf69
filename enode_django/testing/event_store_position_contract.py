"""What every event store must say about positions; the part of `EventStoreContract` that subscribers rest on."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta

from enode_django.eventstore.base import EventStore, Settled
from enode_django.testing.event_store_read_contract import (
    START,
    STORED,
    EventStoreReadContract,
    history,
    outcomes,
    refusal,
    stream,
)

SECONDS = 20.0
ENOUGH = 1_000


class EventStorePositionContract(EventStoreReadContract):
    def test_what_is_stored_comes_to_lie_below_the_position(self, store: EventStore) -> None:
        before = store.position()
        store.append([*history("a", 3), refusal("a"), stream("b", 1, aggregate_root_type="notes.Note")])
        settled = self.when_settled(store, before, "ab")
        assert settled.heads == {"a": ("bank.BankAccount", 3), "b": ("notes.Note", 1)}

    def test_positions_never_go_back(self, store: EventStore) -> None:
        positions = [store.position()]
        for version in range(1, 20):
            store.append([stream("a", version)])
            positions.append(store.position())
        assert positions == sorted(positions)

    def test_ranges_end_to_end_show_every_row_once(self, store: EventStore) -> None:
        begin = store.position()
        refusals = [refusal("a"), refusal("c")]
        store.append([*history("a", 2), refusals[0]])
        self.when_settled(store, begin, "a")
        middle = store.position()
        store.append([stream("a", 3), stream("b", 1), refusals[1]])
        self.when_settled(store, middle, "ab")
        end = store.position()

        first = store.settled(begin, middle, limit=ENOUGH)
        assert first == Settled({"a": ("bank.BankAccount", 2)}, refusals[:1])
        second = store.settled(middle, end, limit=ENOUGH)
        assert second == Settled({"a": ("bank.BankAccount", 3), "b": ("bank.BankAccount", 1)}, refusals[1:])
        whole = store.settled(begin, end, limit=ENOUGH)
        assert whole is not None
        assert whole.heads == second.heads
        assert sorted(whole.refusals) == sorted(refusals)

    def test_an_empty_range_shows_nothing(self, store: EventStore) -> None:
        store.append([stream("a", 1), refusal("a")])
        self.when_settled(store, 0, "a")
        position = store.position()
        for after, before in ((position, position), (position, 0), (0, 0)):
            assert store.settled(after, before, limit=0) == Settled({}, [])

    def test_more_rows_than_the_limit_are_not_shown(self, store: EventStore) -> None:
        before = store.position()
        store.append([*history("a", 3), refusal("a"), stream("b", 1)])
        shown = self.when_settled(store, before, "ab")
        position = store.position()
        assert store.settled(before, position, limit=5) == shown
        assert store.settled(before, position, limit=4) is None
        assert store.settled(before, position, limit=0) is None

    def test_the_type_is_that_of_the_highest_version(self, store: EventStore) -> None:
        before = store.position()
        store.append([stream("a", 1), stream("a", 2, aggregate_root_type="bank.Renamed")])
        assert self.when_settled(store, before, "a").heads == {"a": ("bank.Renamed", 2)}

    def test_a_pruned_refusal_is_shown_no_more(self, store: EventStore) -> None:
        before = store.position()
        kept = refusal("a", created_at=START + timedelta(days=2))
        store.append([stream("a", 1), refusal("a"), kept])
        shown = self.when_settled(store, before, "a")
        assert len(shown.refusals) == 2
        store.prune_refusals(START + timedelta(days=1))
        assert store.settled(before, store.position(), limit=2) == Settled(shown.heads, [kept])

    def test_a_record_sent_again_keeps_its_position(self, store: EventStore) -> None:
        record = stream("a", 1)
        store.append([record])
        self.when_settled(store, 0, "a")
        position = store.position()
        store.append([record, stream("b", 1)], doubtful=True)
        assert set(self.when_settled(store, position, "b").heads) == {"b"}

    def test_heads_before_a_position_leave_out_what_came_later(self, store: EventStore) -> None:
        store.append([*history("a", 2), stream("b", 1), refusal("d")])
        self.when_settled(store, 0, "ab")
        position = store.position()
        later = [stream("a", 3), stream("a", 4), stream("c", 1)]
        store.append(later)
        self.when_settled(store, position, "ac")
        ids = ["a", "b", "c", "d", "unknown", "a\0", "a"]
        assert store.heads_before(ids, position) == {"a": 2, "b": 1}
        assert store.heads_before(ids, store.position()) == {"a": 4, "b": 1, "c": 1}
        assert store.heads_before(ids, 0) == {}
        assert store.heads_before([], position) == {}

    def test_a_command_decided_anew_has_a_new_position(self, store: EventStore) -> None:
        store.append([refusal("a", "k"), stream("b", 1)])
        self.when_settled(store, 0, "b")
        position = store.position()
        store.prune_refusals(START + timedelta(days=1))
        assert outcomes(store.append([stream("a", 1, "k")])) == [STORED]
        assert self.when_settled(store, position, "a") == Settled({"a": ("bank.BankAccount", 1)}, [])

    @staticmethod
    def when_settled(store: EventStore, after: int, root_ids: Iterable[str]) -> Settled:
        """What is settled from ``after`` on, as soon as these aggregates are among it: the position may be held back
        for a moment by somebody else."""
        wanted = set(root_ids)
        deadline = time.monotonic() + SECONDS
        while True:
            settled = store.settled(after, store.position(), limit=ENOUGH)
            if settled is not None and wanted <= set(settled.heads):
                return settled
            assert time.monotonic() < deadline, "what was stored does not settle"
            time.sleep(0.005)
