"""A rebuild folds the streams of an aggregate into its row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from enode_django.eventing.registry import subscribers
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.fetched import itself
from enode_django.rebuilding.folding import Folded, fold
from enode_django.serialization.codec import STREAM
from enode_django.serialization.plain import pack
from sample_project.bank.domain import AccountOpened, Deposited
from sample_project.bank.projections import AccountSummaries
from tests.following.domain import Added
from tests.following.harness import stream_of
from tests.rebuilding.domain import Balances


def normalise(row: Any) -> None:
    """Leave a trace in the row."""
    row.trace = (*row.__dict__.get("trace", ()), row.version)


def folded(records: Sequence[StreamRecord]) -> dict[str, Folded]:
    projection: Any = subscribers.instance(Balances)
    return {one.aggregate_root_id: one for one in fold(projection, records, itself, normalise)}


def test_aggregates_are_folded_one_after_the_other_and_rows_normalised_between_events() -> None:
    records = [
        *(stream_of("a", version, [Added(amount=1), Added(amount=2)]) for version in (1, 2)),
        stream_of("b", 1, [Added(amount=5)]),
    ]
    one, other = folded(records).values()
    assert (one.until, one.streams, one.failed, one.row.version, one.row.trace) == (2, 2, False, 2, (0, 1, 1))
    assert (other.until, other.streams, other.failed, other.row.version) == (1, 1, False, 1)


@pytest.mark.parametrize(
    "broken", [b"", b"\x01", STREAM + pack(([("unknown.Event", 1, {})], None)), STREAM + pack(([7], None))]
)
def test_an_aggregate_with_a_stream_that_cannot_be_read_has_failed_and_others_have_not(broken: bytes) -> None:
    streams = [stream_of("a", version, [Added(amount=1)]) for version in (1, 2, 3)]
    streams[1] = streams[1]._replace(events=broken)
    found = folded([*streams, stream_of("b", 1, [Added(amount=1)])])
    assert {id: (one.until, one.failed) for id, one in found.items()} == {"a": (3, True), "b": (1, False)}


def test_an_aggregate_without_one_of_its_streams_has_failed() -> None:
    found = folded([stream_of("a", version, [Added(amount=1)]) for version in (1, 3)])
    assert {id: (one.until, one.streams, one.failed) for id, one in found.items()} == {"a": (3, 2, True)}


def test_a_time_is_read_only_for_events_whose_handlers_ask_for_it() -> None:
    projection: Any = subscribers.instance(AccountSummaries)
    stored = [
        stream_of("a", 1, [AccountOpened(owner="a")]),
        stream_of("a", 2, [Deposited(amount=Decimal(1), balance=Decimal(1))]),
    ]
    asked: list[datetime] = []

    def time_of(time: datetime) -> datetime:
        asked.append(time)
        return time

    (folded,) = fold(projection, map(tuple, stored), time_of, normalise)
    assert asked == [stored[0].created_at], "the time of the opening"
    assert folded.row.opened_at == stored[0].created_at
    assert not folded.failed


def test_what_the_reading_of_streams_raises_is_no_failure_of_an_aggregate() -> None:
    def streams() -> Iterator[StreamRecord]:
        yield stream_of("a", 1, [Added(amount=1)])
        raise ConnectionError

    projection: Any = subscribers.instance(Balances)
    with pytest.raises(ConnectionError):
        list(fold(projection, streams(), itself, normalise))
