"""The part of `EventStoreContract` about reading, finding and pruning."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from enode_django.eventstore.base import Appended, EventStore, Outcome, StreamRecord
from enode_django.ids import new_id

STORED, REPEATED, CONFLICT = Outcome.STORED, Outcome.REPEATED, Outcome.CONFLICT
INVALID, DEPENDENT = Outcome.INVALID, Outcome.DEPENDENT
START = datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC)


def stream(root_id: str, version: int | None, command_id: str = "", **changes: Any) -> StreamRecord:
    """Return a record, with a new command id unless one is given."""
    record = StreamRecord(
        aggregate_root_id=root_id,
        version=version,
        command_id=command_id or new_id(),
        aggregate_root_type="bank.BankAccount",
        command_type="bank.Deposit",
        created_at=START + timedelta(microseconds=version or 0),
        events=f"events {version} of {root_id}".encode(),
        metadata=b"\x00\xff",
    )
    return record._replace(**changes)


def refusal(root_id: str, command_id: str = "", **changes: Any) -> StreamRecord:
    return stream(root_id, None, command_id, **changes)


def history(root_id: str, until: int) -> list[StreamRecord]:
    return [stream(root_id, version) for version in range(1, until + 1)]


def outcomes(results: Sequence[Appended]) -> list[Outcome]:
    return [result.outcome for result in results]


class EventStoreReadContract:
    @pytest.fixture
    def store(self) -> EventStore:
        raise NotImplementedError("give the contract a store by overriding the fixture 'store'")

    @pytest.fixture
    def second_store(self, store: EventStore) -> EventStore:
        """Return a store on the same rows, as another process has it. Override it if that takes another object."""
        return store

    def leave_thread(self) -> None:
        """Called at the end of each thread that used the store. Override it to close the thread's connections."""

    def test_a_history_is_loaded_by_version_without_refusals(self, store: EventStore) -> None:
        streams = history("a", 12)
        store.append([*streams[:5], refusal("a"), stream("b", 1), *streams[5:], refusal("a")])
        assert list(store.load("a")) == streams

    @pytest.mark.parametrize(
        ("after", "until", "expected"),
        [(0, None, [1, 2, 3, 4]), (2, None, [3, 4]), (1, 3, [2, 3]), (0, 2, [1, 2]), (4, None, []), (3, 2, [])],
    )
    def test_a_part_of_a_history_is_loaded(
        self, store: EventStore, after: int, until: int | None, expected: list[int]
    ) -> None:
        store.append(history("a", 4))
        assert [record.version for record in store.load("a", after=after, until=until)] == expected

    @pytest.mark.parametrize("length", [1_000, 2_501])
    def test_a_long_history_is_loaded_without_gap_or_repeat(self, store: EventStore, length: int) -> None:
        streams = history("a", length)
        store.append(streams)
        assert list(store.load("a")) == streams
        assert list(store.load("a", after=999, until=1_001)) == streams[999:1_001]

    def test_many_histories_are_loaded_at_once(self, store: EventStore) -> None:
        first, second = history("a", 11), history("b", 2)
        store.append([*first, refusal("c"), *second, stream("d", 1)])
        assert store.load_many(["b", "a", "c", "unknown", "a"]) == {"a": first, "b": second}
        assert store.load_many([]) == {}

    @pytest.mark.parametrize(
        ("after", "until", "expected"),
        [(0, 4, [1, 2, 3, 4]), (2, 100, [3, 4]), (1, 3, [2, 3]), (3, 3, []), (4, 9, []), (3, 2, [])],
    )
    def test_a_part_of_each_history_is_loaded(
        self, store: EventStore, after: int, until: int, expected: list[int]
    ) -> None:
        first, second = history("a", 4), history("b", 2)
        store.append([*first, refusal("a"), *second, refusal("b"), stream("c", 1)])
        loaded = store.load_ranges({"b": (0, 2), "a": (after, until), "unknown": (0, 9)})
        wanted = [record for record in first if record.version in expected]
        assert loaded == ({"a": wanted, "b": second} if wanted else {"b": second})

    def test_of_each_part_the_first_versions_are_loaded_up_to_the_limit(self, store: EventStore) -> None:
        first, second, third = history("a", 7), history("b", 3), history("c", 2)
        store.append([*first, *second, *third])
        loaded = store.load_ranges({"a": (2, 7), "b": (0, 3), "c": (1, 2)}, limit=3)
        assert loaded == {"a": first[2:5], "b": second, "c": third[1:]}

    def test_no_parts_are_no_streams(self, store: EventStore) -> None:
        store.append([stream("a", 1)])
        assert store.load_ranges({}) == {}
        assert store.load_ranges({"unknown": (0, 9), "a\0": (0, 9), "\udc80": (0, 9)}) == {}

    def test_commands_are_found_with_their_streams_and_refusals(self, store: EventStore) -> None:
        success, refused, other = stream("a", 1), refusal("a"), stream("b", 1)
        store.append([success, refused, other])
        keys = [success.command_key, refused.command_key, ("unknown", "a"), (other.command_id, "a")]
        assert store.find([*keys, success.command_key]) == {
            success.command_key: success,
            refused.command_key: refused,
        }
        assert store.find([]) == {}

    def test_heads_are_the_newest_versions(self, store: EventStore) -> None:
        store.append([*history("a", 3), stream("b", 1), refusal("b"), refusal("c")])
        assert store.heads(["a", "b", "c", "unknown", "a"]) == {"a": 3, "b": 1}
        assert store.heads([]) == {}

    @pytest.mark.parametrize("impossible", ["a\0", "\udc80", "a" * 256, ""], ids=ascii)
    def test_an_id_that_cannot_be_stored_is_not_found(self, store: EventStore, impossible: str) -> None:
        known = stream("a", 1)
        store.append([known])
        assert list(store.load(impossible)) == []
        assert store.load_many([impossible, "a"]) == {"a": [known]}
        assert store.heads([impossible, "a"]) == {"a": 1}
        keys = [(impossible, "a"), (known.command_id, impossible), known.command_key]
        assert store.find(keys) == {known.command_key: known}

    def test_old_refusals_are_pruned_oldest_first(self, store: EventStore) -> None:
        refusals = [refusal("a", created_at=START + timedelta(days=day)) for day in range(5)]
        old = stream("a", 1, created_at=START - timedelta(days=100))
        store.append([*refusals[::-1], old])
        keys = [record.command_key for record in refusals]

        assert store.prune_refusals(START + timedelta(days=4), limit=3) == 3
        assert set(store.find(keys)) == set(keys[3:])
        assert store.prune_refusals(START + timedelta(days=4)) == 1
        assert store.prune_refusals(START + timedelta(days=4)) == 0
        assert set(store.find(keys)) == set(keys[4:])
        assert list(store.load("a")) == [old]

    def test_a_command_whose_refusal_was_pruned_may_be_decided_anew(self, store: EventStore) -> None:
        store.append([refusal("a", "k")])
        store.prune_refusals(START + timedelta(days=1))
        anew = stream("a", 1, "k")
        assert outcomes(store.append([anew])) == [STORED]
        assert store.find([("k", "a")]) == {("k", "a"): anew}

    def test_an_owner_without_sessions_has_none_to_end(self, store: EventStore) -> None:
        assert store.end_sessions("nobody") == 0
