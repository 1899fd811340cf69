"""The part of `EventStoreContract` about corrections of stored streams."""

from __future__ import annotations

import pytest

from enode_django.eventstore.base import EventStore
from enode_django.exceptions import AggregateNotFound, CorrectionOutdated
from enode_django.testing.event_store_read_contract import (
    REPEATED,
    STORED,
    EventStoreReadContract,
    history,
    outcomes,
    refusal,
    stream,
)

WHO = {"by": "ann", "reason": "a typing error"}


class EventStoreCorrectionContract(EventStoreReadContract):
    def test_a_corrected_stream_is_read_as_corrected_everywhere(self, store: EventStore) -> None:
        records = [*history("a", 3), *history("b", 2), refusal("a")]
        store.append(records)
        made = store.correct("a", 2, b"better", **WHO, last=0)
        better = records[1]._replace(events=b"better")
        assert list(store.load("a")) == [records[0], better, records[2]]
        assert list(store.load("a", after=1, until=2)) == [better]
        assert store.load_many(["a"]) == {"a": [records[0], better, records[2]]}
        assert store.load_many("ab") == {"a": [records[0], better, records[2]], "b": records[3:5]}
        assert store.load_ranges({"a": (1, 3), "b": (0, 1)}) == {"a": [better, records[2]], "b": records[3:4]}
        assert store.find([records[1].command_key, records[5].command_key]) == {
            records[1].command_key: better,
            records[5].command_key: records[5],
        }
        assert made[1:6] == ("a", 2, b"better", "ann", "a typing error")

    def test_the_original_stays_and_can_count_again(self, store: EventStore) -> None:
        records = history("a", 2)
        store.append(records)
        first = store.correct("a", 1, b"better", **WHO, last=0)
        second = store.correct("a", 1, b"best", **WHO, last=first.number)
        assert next(iter(store.load("a"))).events == b"best"
        assert store.original("a", 1) == records[0]
        last = store.correct("a", 1, None, by="bob", reason="it was right", last=second.number)
        assert list(store.load("a")) == records
        assert store.corrections("a") == [first, second, last]
        assert first.number < second.number < last.number
        assert first.corrected_at <= last.corrected_at
        assert store.corrections("b") == []
        assert store.original("a", 3) is store.original("b", 1) is store.original("\0", 1) is None

    def test_a_correction_of_what_somebody_else_has_corrected_is_refused(self, store: EventStore) -> None:
        store.append(history("a", 2))
        first = store.correct("a", 1, b"better", **WHO, last=0)
        with pytest.raises(CorrectionOutdated, match="was corrected meanwhile"):
            store.correct("a", 1, b"worse", **WHO, last=0)
        store.correct("a", 2, b"of another stream", **WHO, last=0)
        assert store.correct("a", 1, b"best", **WHO, last=first.number).events == b"best"

    def test_what_is_not_stored_cannot_be_corrected(self, store: EventStore) -> None:
        store.append([stream("a", 1), refusal("b")])
        for id, version in (("a", 2), ("b", 1), ("unknown", 1), ("\0", 1)):
            with pytest.raises(AggregateNotFound, match="no stored version"):
                store.correct(id, version, b"better", **WHO, last=0)
        assert store.corrections("a") == []

    def test_a_repeated_command_is_held_against_the_original(self, store: EventStore) -> None:
        record = stream("a", 1)
        store.append([record])
        store.correct("a", 1, b"better", **WHO, last=0)
        assert outcomes(store.append([record], doubtful=True)) == [STORED]
        (appended,) = store.append([record._replace(events=b"better")], doubtful=True)
        assert (appended.outcome, appended.stored) == (REPEATED, record)

    def test_the_shard_tells_what_was_corrected(self, store: EventStore) -> None:
        store.append([*history("a", 2), *history("b", 1)])
        numbers = [store.correct(id, version, b"x", **WHO, last=0).number for id, version in (("a", 2), ("b", 1))]
        shards = {store.place_of(id): store.shards[store.place_of(id)] for id in "ab"}
        told = [one for shard in shards.values() for one in shard.corrected_since(0)]
        assert sorted(one[1:] for one in told) == [("a", 2), ("b", 1)]
        assert {one.number for one in told} == {*numbers}
        for shard in shards.values():
            assert shard.corrected_since(max(numbers)) == []
