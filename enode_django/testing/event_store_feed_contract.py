"""The contract of every event store's feed, for readers of all rows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta

import pytest

from enode_django.eventstore.base import FeedEntry, Shard, StreamRecord
from enode_django.eventstore.positions import BEGINNING, END, Position
from enode_django.testing.event_store_position_contract import SECONDS, EventStorePositionContract
from enode_django.testing.event_store_read_contract import START, history, refusal, stream


def read_on(store: Shard, after: Position, *, limit: int) -> tuple[list[FeedEntry], Position]:
    """Return the settled entries after a position, read page by page, and the position to continue from."""
    entries: list[FeedEntry] = []
    while True:
        page = store.feed(after, limit=limit)
        assert after <= page.position, "a page never leads back"
        assert all(after < entry.position <= page.position for entry in page.entries)
        entries += page.entries
        after = page.position
        if len(page.entries) < limit:
            return entries, after


class EventStoreFeedContract(EventStorePositionContract):
    def test_the_feed_of_an_empty_store_is_empty(self, store: Shard) -> None:
        page = store.feed(BEGINNING, limit=10)
        assert page.entries == []
        assert store.feed(page.position, limit=10).entries == []

    def test_the_feed_has_every_row_as_it_was_stored(self, store: Shard) -> None:
        rows = [*history("a", 3), refusal("a"), stream("b", 1, aggregate_root_type="notes.Note")]
        store.append(rows)
        entries = self.when_fed(store, BEGINNING, rows)
        assert sorted(record.command_id for _, record in entries) == sorted(row.command_id for row in rows)
        assert {record.command_id: record for _, record in entries} == {row.command_id: row for row in rows}

    def test_the_feed_has_a_row_as_it_is_read_now(self, store: Shard) -> None:
        rows = [*history("a", 3), refusal("a")]
        store.append(rows)
        before = self.when_fed(store, BEGINNING, rows)
        made = store.correct("a", 2, b"better", by="ann", reason="a typing error", last=0)
        after = read_on(store, BEGINNING, limit=2)[0]
        assert [position for position, _ in after] == [position for position, _ in before]
        assert [record.events for _, record in after] == [
            b"better" if record.version == 2 else record.events for _, record in before
        ]
        store.correct("a", 2, None, by="ann", reason="it was right", last=made.number)
        assert read_on(store, BEGINNING, limit=2)[0] == before

    def test_versions_come_in_their_order_and_later_calls_later(self, store: Shard) -> None:
        first, second = history("b", 3), [*history("a", 2), stream("b", 4)]
        store.append(first)
        store.append(second)
        entries = self.when_fed(store, BEGINNING, [*first, *second])
        assert [record.version for _, record in entries if record.aggregate_root_id == "b"] == [1, 2, 3, 4]
        assert {record.aggregate_root_id for _, record in entries[:3]} == {"b"}

    def test_positions_rise_and_stay_with_their_rows(self, store: Shard) -> None:
        rows = history("a", 5)
        for row in rows:
            store.append([row])
        entries = self.when_fed(store, BEGINNING, rows)
        positions = [position for position, _ in entries]
        assert positions == sorted(set(positions))
        assert positions[0] > BEGINNING
        assert positions[-1] < store.position()
        assert read_on(store, BEGINNING, limit=2)[0] == entries
        for number, position in enumerate(positions, 1):
            assert read_on(store, position, limit=2)[0] == entries[number:]
            assert store.feed(Position.parse(str(position)), limit=10).entries == entries[number:]

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
    def test_pages_end_within_what_one_call_stored(self, store: Shard, limit: int) -> None:
        rows = [*history("a", 7), *history("b", 6)]
        store.append(rows)
        whole = self.when_fed(store, BEGINNING, rows)
        entries, _ = read_on(store, BEGINNING, limit=limit)
        assert entries == whole
        assert len({(position.generation, position.transaction_id) for position, _ in entries}) == 1

    def test_a_short_page_leads_past_what_is_settled(self, store: Shard) -> None:
        rows = history("a", 3)
        store.append(rows)
        self.when_fed(store, BEGINNING, rows)
        before = store.position()
        assert store.feed(BEGINNING, limit=10).position >= before
        assert store.feed(BEGINNING, limit=3).position < before

    def test_a_position_ahead_of_the_store_is_given_back(self, store: Shard) -> None:
        store.append([stream("a", 1)])
        assert store.feed(END, limit=10) == ([], END)

    def test_a_page_without_rows_is_refused(self, store: Shard) -> None:
        for limit in (0, -1):
            with pytest.raises(ValueError, match=str(limit)):
                store.feed(BEGINNING, limit=limit)

    def test_the_feed_leaves_out_what_was_pruned(self, store: Shard) -> None:
        kept, pruned = refusal("a", created_at=START + timedelta(days=2)), refusal("a")
        rows = [stream("a", 1), pruned, kept, stream("a", 2)]
        for row in rows:
            store.append([row])
        before = self.when_fed(store, BEGINNING, rows)
        store.prune_refusals(START + timedelta(days=1))
        assert read_on(store, BEGINNING, limit=1)[0] == [entry for entry in before if entry.record != pruned]
        assert read_on(store, before[1].position, limit=1)[0] == before[2:]

    def test_a_row_sent_again_does_not_come_again(self, store: Shard) -> None:
        rows = [stream("a", 1), stream("b", 1)]
        store.append(rows[:1])
        (seen,) = self.when_fed(store, BEGINNING, rows[:1])
        store.append(rows, doubtful=True)
        (new,) = self.when_fed(store, seen.position, rows[1:])
        assert new.record == rows[1]

    def test_the_feed_goes_on_in_a_new_generation(self, store: Shard) -> None:
        rows = [*history("a", 3), *history("b", 2)]
        store.append(rows[:3])
        before = self.when_fed(store, BEGINNING, rows[:3])
        at = store.position()
        store.begin_generation(at.generation)
        store.append(rows[3:])
        after = self.when_fed(store, at._replace(transaction_id=at.transaction_id + 1_000), rows[3:])
        for limit in (1, 2, 100):
            assert read_on(store, BEGINNING, limit=limit)[0] == before + after
            assert read_on(store, before[0].position, limit=limit)[0] == before[1:] + after

    @staticmethod
    def when_fed(store: Shard, after: Position, rows: Iterable[StreamRecord]) -> list[FeedEntry]:
        """Return the feed from ``after`` on as soon as it has these rows: another session may hold it back briefly."""
        wanted = {row.command_id for row in rows}
        deadline = time.monotonic() + SECONDS
        while True:
            entries, _ = read_on(store, after, limit=1_000)
            if wanted <= {record.command_id for _, record in entries}:
                return entries
            assert time.monotonic() < deadline, "what was stored does not come"
            time.sleep(0.005)
