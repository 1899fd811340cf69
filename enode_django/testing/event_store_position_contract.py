"""The part of `EventStoreContract` about positions, on which subscribers depend."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta

from enode_django.eventstore.base import Settled, Shard, StreamRecord
from enode_django.eventstore.positions import BEGINNING, END, Position
from enode_django.testing.event_store_read_contract import (
    START,
    STORED,
    EventStoreReadContract,
    history,
    outcomes,
    refusal,
    stream,
)

SECONDS = 60.0
ENOUGH = 1_000


def settled_between(store: Shard, after: Position, before: Position, limit: int = ENOUGH) -> Settled:
    """Return all parts of a range as one."""
    heads: dict[str, tuple[str, int]] = {}
    refusals: list[StreamRecord] = []
    while after < before:
        until, part = store.settled(after, before, limit=limit)
        assert after < until <= before, "a part has to lead on"
        for root_id, head in part.heads.items():
            heads[root_id] = max(head, heads.get(root_id, head), key=lambda one: one[1])
        refusals += part.refusals
        after = until
    return Settled(heads, refusals)


class EventStorePositionContract(EventStoreReadContract):
    def test_what_is_stored_comes_to_lie_below_the_position(self, store: Shard) -> None:
        before = store.position()
        store.append([*history("a", 3), refusal("a"), stream("b", 1, aggregate_root_type="notes.Note")])
        settled = self.when_settled(store, before, "ab")
        assert settled.heads == {"a": ("bank.BankAccount", 3), "b": ("notes.Note", 1)}

    def test_positions_never_go_back(self, store: Shard) -> None:
        positions = [store.position()]
        for version in range(1, 20):
            store.append([stream("a", version)])
            positions.append(store.position())
        assert positions == sorted(positions)

    def test_ranges_end_to_end_show_every_row_once(self, store: Shard) -> None:
        begin = store.position()
        refusals = [refusal("a"), refusal("c")]
        store.append([*history("a", 2), refusals[0]])
        self.when_settled(store, begin, "a")
        middle = store.position()
        store.append([stream("a", 3), stream("b", 1), refusals[1]])
        self.when_settled(store, middle, "ab")
        end = store.position()

        first = settled_between(store, begin, middle)
        assert first == Settled({"a": ("bank.BankAccount", 2)}, refusals[:1])
        second = settled_between(store, middle, end)
        assert second == Settled({"a": ("bank.BankAccount", 3), "b": ("bank.BankAccount", 1)}, refusals[1:])
        whole = settled_between(store, begin, end)
        assert whole.heads == second.heads
        assert sorted(whole.refusals) == sorted(refusals)

    def test_an_empty_range_shows_nothing(self, store: Shard) -> None:
        store.append([stream("a", 1), refusal("a")])
        self.when_settled(store, BEGINNING, "a")
        position = store.position()
        for after, before in ((position, position), (position, BEGINNING), (BEGINNING, BEGINNING)):
            assert store.settled(after, before, limit=1) == (before, Settled({}, []))

    def test_more_rows_than_the_limit_are_shown_in_parts(self, store: Shard) -> None:
        begin = store.position()
        for number in range(5):
            store.append([stream("a", number + 1), refusal("a"), stream(f"b{number}", 1)])
        whole = self.when_settled(store, begin, ["b4"])
        position = store.position()
        assert len(whole.heads) == 6
        for limit in (15, 14, 6, 3):
            parts = self._parts(store, begin, position, limit)
            assert all(len(part.refusals) * 3 <= limit for part in parts)
            assert len(parts) >= 15 // limit
            assert settled_between(store, begin, position, limit).heads == whole.heads
            assert sorted(settled_between(store, begin, position, limit).refusals) == sorted(whole.refusals)

    def test_rows_of_one_transaction_are_not_parted(self, store: Shard) -> None:
        begin = store.position()
        store.append([*history("a", 3), refusal("a"), stream("b", 1)])
        whole = self.when_settled(store, begin, "ab")
        parts = self._parts(store, begin, store.position(), 1)
        assert [part for part in parts if part != Settled({}, [])] == [whole]

    @staticmethod
    def _parts(store: Shard, after: Position, before: Position, limit: int) -> list[Settled]:
        parts = []
        while after < before:
            after, part = store.settled(after, before, limit=limit)
            parts.append(part)
        return parts

    def test_the_whole_store_lies_below_the_end(self, store: Shard) -> None:
        store.append([*history("a", 3), refusal("a")])
        assert settled_between(store, BEGINNING, END).heads == {"a": ("bank.BankAccount", 3)}

    def test_the_type_is_that_of_the_highest_version(self, store: Shard) -> None:
        before = store.position()
        store.append([stream("a", 1), stream("a", 2, aggregate_root_type="bank.Renamed")])
        assert self.when_settled(store, before, "a").heads == {"a": ("bank.Renamed", 2)}

    def test_a_pruned_refusal_is_shown_no_more(self, store: Shard) -> None:
        before = store.position()
        kept = refusal("a", created_at=START + timedelta(days=2))
        store.append([stream("a", 1), refusal("a"), kept])
        shown = self.when_settled(store, before, "a")
        assert len(shown.refusals) == 2
        store.prune_refusals(START + timedelta(days=1))
        assert settled_between(store, before, store.position()) == Settled(shown.heads, [kept])

    def test_a_record_sent_again_keeps_its_position(self, store: Shard) -> None:
        record = stream("a", 1)
        store.append([record])
        self.when_settled(store, BEGINNING, "a")
        position = store.position()
        store.append([record, stream("b", 1)], doubtful=True)
        assert set(self.when_settled(store, position, "b").heads) == {"b"}

    def test_heads_before_a_position_leave_out_what_came_later(self, store: Shard) -> None:
        store.append([*history("a", 2), stream("b", 1), refusal("d")])
        self.when_settled(store, BEGINNING, "ab")
        position = store.position()
        later = [stream("a", 3), stream("a", 4), stream("c", 1)]
        store.append(later)
        self.when_settled(store, position, "ac")
        ids = ["a", "b", "c", "d", "unknown", "a\0", "a"]
        assert store.heads_before(ids, position) == {"a": 2, "b": 1}
        assert store.heads_before(ids, store.position()) == {"a": 4, "b": 1, "c": 1}
        assert store.heads_before(ids, BEGINNING) == {}
        assert store.heads_before(ids, END) == {"a": 4, "b": 1, "c": 1}
        assert store.heads_before([], position) == {}

    def test_what_was_stored_before_a_position_is_known_by_its_command(self, store: Shard) -> None:
        store.append([stream("a", 1, "k"), refusal("b", "k"), refusal("b", "other")])
        self.when_settled(store, BEGINNING, "a")
        position = store.position()
        store.append([refusal("b", "later"), stream("c", 1, "k")])
        self.when_settled(store, position, "c")
        keys = [("k", "a"), ("k", "b"), ("later", "b"), ("k", "c"), ("unknown", "b"), ("k", "a\0"), ("k", "unknown")]
        assert sorted(store.stored_before(keys, position)) == [("k", "a"), ("k", "b")]
        assert sorted(store.stored_before(keys, END)) == [("k", "a"), ("k", "b"), ("k", "c"), ("later", "b")]
        assert list(store.stored_before(keys, BEGINNING)) == []
        assert list(store.stored_before([], position)) == []

    def test_a_command_decided_anew_has_a_new_position(self, store: Shard) -> None:
        store.append([refusal("a", "k"), stream("b", 1)])
        self.when_settled(store, BEGINNING, "b")
        position = store.position()
        store.prune_refusals(START + timedelta(days=1))
        assert outcomes(store.append([stream("a", 1, "k")])) == [STORED]
        assert self.when_settled(store, position, "a") == Settled({"a": ("bank.BankAccount", 1)}, [])

    def test_what_is_stored_in_a_new_generation_comes_after_every_earlier_position(self, store: Shard) -> None:
        store.append([*history("a", 2), stream("b", 1)])
        self.when_settled(store, BEGINNING, "ab")
        before = store.position()
        ahead = before._replace(transaction_id=before.transaction_id + 1_000_000)
        store.begin_generation(before.generation)
        store.begin_generation(before.generation)  # has begun already
        after = store.position()
        assert ahead < after
        store.append([stream("a", 3), stream("c", 1)])
        assert set(self.when_settled(store, after, "ac").heads) == {"a", "c"}
        assert settled_between(store, ahead, store.position()).heads == {
            "a": ("bank.BankAccount", 3),
            "c": ("bank.BankAccount", 1),
        }
        assert store.heads_before(["a", "b", "c"], ahead) == {"a": 2, "b": 1}
        assert store.heads_before(["a", "b", "c"], after) == {"a": 2, "b": 1}
        assert set(settled_between(store, BEGINNING, store.position()).heads) == {"a", "b", "c"}

    @staticmethod
    def when_settled(store: Shard, after: Position, root_ids: Iterable[str]) -> Settled:
        """Return the settled rows from ``after`` on as soon as they include these aggregates: another session may hold
        the position back briefly."""
        wanted = set(root_ids)
        deadline = time.monotonic() + SECONDS
        while True:
            settled = settled_between(store, after, store.position())
            if wanted <= set(settled.heads):
                return settled
            assert time.monotonic() < deadline, "what was stored does not settle"
            time.sleep(0.005)
