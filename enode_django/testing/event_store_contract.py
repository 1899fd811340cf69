"""The contract of every event store as tests: subclass `EventStoreContract` and define its store.

.. code-block:: python

    class TestMyStore(EventStoreContract):
        @pytest.fixture
        def store(self) -> EventStore:
            return MyStore()
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from enode_django.eventstore.base import Appended, EventStore, StreamRecord
from enode_django.exceptions import StoreUnavailable
from enode_django.testing.event_store_correction_contract import EventStoreCorrectionContract
from enode_django.testing.event_store_feed_contract import EventStoreFeedContract
from enode_django.testing.event_store_read_contract import (
    CONFLICT,
    DEPENDENT,
    INVALID,
    REPEATED,
    START,
    STORED,
    history,
    outcomes,
    refusal,
    stream,
)


class EventStoreAppendContract(EventStoreCorrectionContract):
    # Storing

    def test_what_is_stored_comes_back_byte_for_byte(self, store: EventStore, second_store: EventStore) -> None:
        records = [
            stream("a", 1, events=bytes(range(256)), metadata=b""),
            stream("a", 2, events=b"", created_at=datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC)),
            stream("a", 3, created_at=datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
            stream("a", 4, "käse ☃ 😀 '\\\"{},\t\n", command_type="größe.Ändern"),
            stream("a", 5, "x" * 255, events=b"e" * 3_000_000),
        ]
        assert outcomes(store.append(records)) == [STORED] * 5
        loaded = list(second_store.load("a"))
        assert loaded == records
        assert {record.created_at.utcoffset() for record in loaded} == {timedelta(0)}
        assert {type(record.events) for record in loaded} == {bytes}

    @pytest.mark.parametrize("root_id", ["x" * 255, "ü" * 255, "😀" * 255, " padded ", "a'b\"c\\d{e},NULL"])
    def test_every_id_within_the_limits_is_kept_apart(self, store: EventStore, root_id: str) -> None:
        record = stream(root_id, 1)
        store.append([record, stream(root_id.strip()[:200] + "-", 1)])
        assert store.load_many([root_id]) == {root_id: [record]}
        assert store.find([record.command_key]) == {record.command_key: record}

    def test_appending_nothing_gives_nothing(self, store: EventStore) -> None:
        assert list(store.append([])) == []
        assert list(store.append([], doubtful=True)) == []

    def test_results_come_in_the_order_of_the_records(self, store: EventStore) -> None:
        taken = stream("b", 1)
        store.append([taken])
        sent = [stream("c", 1), stream("b", 1), stream("a", 1), stream("b", 2), stream("c", 2)]
        assert outcomes(store.append(sent)) == [STORED, CONFLICT, STORED, DEPENDENT, STORED]
        assert store.load_many("abc") == {"a": [sent[2]], "b": [taken], "c": [sent[0], sent[4]]}

    def test_one_command_may_concern_several_aggregates(self, store: EventStore) -> None:
        assert outcomes(store.append([stream("a", 1, "k"), stream("b", 1, "k")])) == [STORED, STORED]

    # The prefix rule

    def test_later_versions_of_a_lost_state_are_never_stored(self, store: EventStore, second_store: EventStore) -> None:
        others = history("a", 3)
        second_store.append(others[:2])
        assert outcomes(store.append([stream("a", v) for v in (2, 3, 4)])) == [CONFLICT, DEPENDENT, DEPENDENT]
        assert list(store.load("a")) == others[:2]
        assert outcomes(second_store.append(others[2:])) == [STORED]

    def test_what_comes_before_the_refused_record_is_stored(self, store: EventStore) -> None:
        first = stream("a", 1)
        store.append([first])
        sent = [stream("a", 2), stream("a", 3, first.command_id), stream("a", 4), refusal("a")]
        results = store.append(sent)
        assert outcomes(results) == [STORED, REPEATED, DEPENDENT, DEPENDENT]
        assert results[1].stored == first
        assert list(store.load("a")) == [first, sent[0]]

    def test_a_refusal_takes_part_in_the_prefix_rule(self, store: EventStore) -> None:
        stored = refusal("a")
        store.append([stored, stream("b", 1)])
        sent = [
            *(stream("a", 1), refusal("a", stored.command_id, events=b"other"), stream("a", 2)),
            *(stream("b", 1), refusal("b"), stream("b", 2)),
        ]
        expected = [STORED, REPEATED, DEPENDENT, CONFLICT, DEPENDENT, DEPENDENT]
        assert outcomes(store.append(sent)) == expected
        assert store.find([sent[4].command_key]) == {}

    def test_only_the_refused_aggregate_of_a_batch_stays_behind(self, store: EventStore) -> None:
        names = [f"aggregate-{number}" for number in range(40)]
        store.append([stream(name, 1) for name in names])
        store.append([stream("aggregate-7", 2)])
        sent = [stream(name, version) for version in (2, 3) for name in names]
        results = store.append(sent)
        refused = [record for record, result in zip(sent, results, strict=True) if result.outcome is not STORED]
        assert [(record.aggregate_root_id, record.version) for record in refused] == [
            ("aggregate-7", 2),
            ("aggregate-7", 3),
        ]
        assert store.heads(names) == {name: 2 if name == "aggregate-7" else 3 for name in names}

    # Seen again

    @pytest.mark.parametrize("doubtful", [False, True])
    def test_our_own_row_seen_again_is_stored_and_its_successors_stay(self, store: EventStore, doubtful: bool) -> None:
        sent = [*history("a", 3), refusal("a"), stream("a", 4), stream("b", 1)]
        store.append(sent[:2])
        assert outcomes(store.append(sent, doubtful=doubtful)) == [STORED] * 6
        assert outcomes(store.append(sent, doubtful=doubtful)) == [STORED] * 6
        assert list(store.load("a")) == [*sent[:3], sent[4]]

    @pytest.mark.parametrize(
        "change",
        [
            {"version": 2},
            {"version": None},
            {"events": b"other"},
            {"metadata": b"other"},
            {"created_at": START},
            {"aggregate_root_type": "bank.Other"},
            {"command_type": "bank.Other"},
        ],
        ids=lambda change: next(iter(change)),
    )
    @pytest.mark.parametrize("doubtful", [False, True])
    def test_another_stream_of_a_stored_command_gives_what_is_stored(
        self, store: EventStore, change: dict[str, Any], doubtful: bool
    ) -> None:
        stored = stream("a", 1, "k")
        store.append([stored])
        results = store.append([stored._replace(**change), stream("a", 3)], doubtful=doubtful)
        assert list(results) == [Appended(REPEATED, stored), Appended(DEPENDENT)]
        assert list(store.load("a")) == [stored]

    @pytest.mark.parametrize("versions", [(1, None), (None, 1)])
    def test_success_and_refusal_of_a_command_exclude_each_other(
        self, store: EventStore, versions: tuple[int | None, int | None]
    ) -> None:
        first, second = (stream("a", version, "k") for version in versions)
        assert outcomes(store.append([first])) == [STORED]
        assert list(store.append([second])) == [Appended(REPEATED, first)]
        assert store.find([("k", "a")]) == {("k", "a"): first}

    def test_a_version_is_taken_whatever_the_type_of_the_aggregate(self, store: EventStore) -> None:
        store.append([stream("a", 1)])
        assert outcomes(store.append([stream("a", 1, aggregate_root_type="notes.Note")])) == [CONFLICT]

    def test_a_doubtful_batch_is_judged_like_any_other(self, store: EventStore, second_store: EventStore) -> None:
        second_store.append([stream("a", 1), stream("b", 1)])
        sent = [stream("a", 1), stream("b", 2), stream("a", 2), stream("c", 1)]
        assert outcomes(store.append(sent, doubtful=True)) == [CONFLICT, STORED, DEPENDENT, STORED]

    # Twice within a batch

    def test_a_record_twice_in_a_batch_is_stored_once(self, store: EventStore) -> None:
        first, second, refused = stream("a", 1), stream("a", 2), refusal("a")
        assert outcomes(store.append([first, first, refused, refused, second])) == [STORED] * 5
        assert list(store.load("a")) == [first, second]

    @pytest.mark.parametrize("versions", [(1, 2), (1, None), (None, 1), (1, 1), (None, None)])
    def test_a_command_twice_in_a_batch_has_its_first_outcome(
        self, store: EventStore, versions: tuple[int | None, int | None]
    ) -> None:
        first, second = (stream("a", version, "k", events=bytes([n])) for n, version in enumerate(versions))
        results = store.append([first, second, stream("a", 3), stream("b", 1)])
        assert list(results) == [Appended(STORED), Appended(REPEATED, first), Appended(DEPENDENT), Appended(STORED)]

    def test_a_version_twice_in_a_batch_belongs_to_the_first(self, store: EventStore) -> None:
        first = stream("a", 1)
        assert outcomes(store.append([first, stream("a", 1), stream("a", 2)])) == [STORED, CONFLICT, DEPENDENT]
        assert list(store.load("a")) == [first]

    def test_a_command_twice_in_a_batch_is_not_stored_after_its_first_place_was_refused(
        self, store: EventStore
    ) -> None:
        store.append([stream("a", 1)])
        assert outcomes(store.append([stream("a", 1, "k"), stream("a", 2, "k")])) == [CONFLICT, DEPENDENT]
        assert store.find([("k", "a")]) == {}

    # Data that cannot be stored

    @pytest.mark.parametrize("bad", ["x" * 256, "x" * 255 + " ", "a\0b", "\udc80"], ids=ascii)
    @pytest.mark.parametrize("field", ["aggregate_root_id", "command_id", "aggregate_root_type", "command_type"])
    @pytest.mark.parametrize("doubtful", [False, True])
    def test_data_that_cannot_be_stored_fails_alone(
        self, store: EventStore, field: str, bad: str, doubtful: bool
    ) -> None:
        guilty = StreamRecord(**{**stream("a", 2)._asdict(), field: bad})
        sent = [stream("a", 1), stream("b", 1), guilty, stream("b", 2)]
        results = store.append(sent, doubtful=doubtful)
        assert outcomes(results) == [STORED, STORED, INVALID, STORED]
        assert results[2].error
        assert store.heads("ab") == {"a": 1, "b": 2}

    @pytest.mark.parametrize("bad", [{"version": 2**63}, {"command_type": "a\0b"}], ids=["version", "text"])
    def test_successors_of_data_that_cannot_be_stored_depend_on_it(
        self, store: EventStore, bad: dict[str, Any]
    ) -> None:
        sent = [stream("a", 1), stream("a", 2)._replace(**bad), stream("a", 3), refusal("a"), stream("b", 1)]
        assert outcomes(store.append(sent)) == [STORED, INVALID, DEPENDENT, DEPENDENT, STORED]
        assert list(store.load("a")) == sent[:1]
        assert store.find([sent[3].command_key]) == {}

    def test_a_conflict_before_bad_data_leaves_the_bad_data_dependent(self, store: EventStore) -> None:
        store.append([stream("a", 1)])
        assert outcomes(store.append([stream("a", 1), stream("a", 2, "\0")])) == [CONFLICT, DEPENDENT]

    # Several writers

    @pytest.mark.parametrize("seed", range(3))
    def test_writers_that_race_leave_histories_without_gap_or_repeat(self, store: EventStore, seed: int) -> None:
        commands = [f"command-{number}" for number in range(120)]
        roots = [f"root-{number}" for number in range(4)]
        stored: list[StreamRecord] = []

        def write(number: int) -> None:
            chance = random.Random(seed * 100 + number)
            for _ in range(25):
                batch = _next_batch(chance, roots, commands, store.heads(roots))
                results = _append_for_sure(store, batch, doubtful=chance.random() < 0.3)
                kept = [record for record, result in zip(batch, results, strict=True) if result.outcome is STORED]
                stored.extend(kept)
                _assert_prefixes(batch, results)

        self.run_threads([partial(write, number) for number in range(3)])
        rows = store.find([(command, root) for command in commands for root in roots])
        for root, streams in store.load_many(roots).items():
            assert [record.version for record in streams] == list(range(1, len(streams) + 1)), root
            assert all(rows[record.command_key] == record for record in streams)
        assert all(rows[record.command_key] == record for record in stored)
        assert set(rows.values()) == set(stored)
        assert max(Counter(record.aggregate_root_id for record in stored).values()) > 1

    def run_threads(self, calls: Sequence[Callable[[], None]]) -> None:
        """Run the calls at the same time, each in a thread. Raises the first error."""
        errors: list[BaseException] = []
        start = threading.Barrier(len(calls))

        def run(call: Callable[[], None]) -> None:
            try:
                start.wait(10)
                call()
            except BaseException as error:
                errors.append(error)
            finally:
                self.leave_thread()

        threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "a writer hangs"
        if errors:
            raise errors[0]


class EventStoreContract(EventStoreAppendContract, EventStoreFeedContract):
    """The whole contract of an event store.

    For example::

        class TestMyStore(EventStoreContract):
            @pytest.fixture
            def store(self) -> EventStore:
                return MemoryEventStore()
    """


def _append_for_sure(store: EventStore, batch: Sequence[StreamRecord], *, doubtful: bool) -> Sequence[Appended]:
    """Append with retries, as callers must: two writers that share commands may deadlock, and one must try again."""
    for _ in range(100):
        try:
            return store.append(batch, doubtful=doubtful)
        except StoreUnavailable:
            doubtful = True
    raise AssertionError("the store stays unavailable")


def _next_batch(chance: random.Random, roots: Sequence[str], commands: Sequence[str], heads: Any) -> list[StreamRecord]:
    """Return the rows of some commands, decided by the heads that this writer knows, as a worker does."""
    versions = {root: heads.get(root, 0) for root in roots}
    batch = []
    for _ in range(chance.randint(1, 6)):
        root, command = chance.choice(roots), chance.choice(commands)
        if chance.random() < 0.2:
            batch.append(refusal(root, command, events=chance.randbytes(4)))
        else:
            versions[root] += 1
            batch.append(stream(root, versions[root], command, events=chance.randbytes(4)))
    return batch


def _assert_prefixes(batch: Sequence[StreamRecord], results: Sequence[Appended]) -> None:
    refused = set()
    for record, result in zip(batch, results, strict=True):
        if record.aggregate_root_id in refused:
            assert result.outcome is DEPENDENT
        elif result.outcome is not STORED:
            assert result.outcome in (REPEATED, CONFLICT)
            refused.add(record.aggregate_root_id)
