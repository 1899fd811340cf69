"""A rebuild folds streams into rows as the live way does, which handles one stream after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import groupby
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enode_django import DomainEvent, ModelProjection
from enode_django.eventing.base_projections import makes_row
from enode_django.eventing.pending import HandledEvents
from enode_django.eventing.read_models.row_changes import changed_row
from enode_django.eventing.registry import subscribers
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.fetched import Row, itself
from enode_django.rebuilding.folding import Folded, fold
from enode_django.serialization.codec import STREAM
from enode_django.serialization.plain import pack
from sample_project.bank.domain import AccountClosed, AccountOpened, Deposited, Withdrawn
from sample_project.bank.projections import AccountSummaries
from tests.following.domain import Added, Closed, Noted, Opened
from tests.following.harness import stream_of
from tests.rebuilding.domain import Balances, Effects

LARGE = 2_000
"""Characters of a text that is decoded in the thorough way."""
REFUSED = 13
"""An amount at which the handler of `Balances` raises."""

counters = st.sampled_from(
    [Opened(owner="a"), Opened(owner="b" * LARGE), Noted(), Closed(), *(Added(amount=n) for n in (1, 2, REFUSED))]
)
accounts = st.sampled_from(
    [
        AccountOpened(owner="a"),
        AccountOpened(owner="b" * LARGE),
        Deposited(amount=Decimal("1.50"), balance=Decimal("2.50")),
        Withdrawn(amount=Decimal(1), balance=Decimal("1.5")),
        AccountClosed(),
    ]
)
broken = st.sampled_from([b"", b"\x01", STREAM + pack(([("unknown.Event", 1, {})], None)), STREAM + pack(([7], None))])


@pytest.fixture(autouse=True)
def _refusing(effects: Effects) -> None:
    def refuse(row: Any, event: DomainEvent) -> None:
        if isinstance(event, Added) and event.amount == REFUSED:
            raise ValueError("not thirteen")

    effects.balance = refuse


@st.composite
def histories(draw: st.DrawFn, events: st.SearchStrategy[DomainEvent]) -> list[StreamRecord]:
    """Return sorted streams of some aggregates. Some streams are missing, and some are broken."""
    records: list[StreamRecord] = []
    for id in draw(st.lists(st.sampled_from("abc"), unique=True).map(sorted)):
        streams = draw(st.lists(st.lists(events, max_size=3), max_size=6))
        stored = [stream_of(id, version, some) for version, some in enumerate(streams, 1)]
        for place in draw(st.sets(st.integers(0, 5), max_size=1)) & set(range(len(stored))):
            if draw(st.booleans()):
                del stored[place]
            else:
                stored[place] = stored[place]._replace(events=draw(broken))
        records += stored
    return records


def normalise(row: Any) -> None:
    """Leave a trace in the row."""
    row.trace = (*row.__dict__.get("trace", ()), row.version)


def step_by_step(projection: ModelProjection[Any], records: Sequence[StreamRecord]) -> Iterator[Folded]:
    followed, creates = HandledEvents(projection), makes_row(projection)
    for id, streams in groupby(records, attrgetter("aggregate_root_id")):
        row, count, failed = None, 0, False
        for record in streams:
            count += 1
            failed = failed or record.version != count
            if not failed:
                try:
                    row = changed_row(projection.model, id, row, followed.of(record), normalise, creates)
                except Exception:
                    failed = True
                if row is not None:
                    row.version = count
        yield Folded(id, record.aggregate_root_type, record.version or 0, count, row, failed)


def seen(folded: Iterator[Folded]) -> list[tuple[Any, ...]]:
    """Return all that is of use, with the rows' attributes."""
    return [(*one[:4], one.failed, None if one.failed else values(one.row)) for one in folded]


def values(row: Any) -> dict[str, Any] | None:
    return row and {name: value for name, value in vars(row).items() if name != "_state"}


@pytest.mark.parametrize(("cls", "events"), [(Balances, counters), (AccountSummaries, accounts)])
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_rebuild_folds_any_history_as_it_is_handled_stream_by_stream(
    cls: type[ModelProjection[Any]], events: st.SearchStrategy[DomainEvent], data: st.DataObject
) -> None:
    projection: Any = subscribers.instance(cls)
    records = data.draw(histories(events))
    assert seen(fold(projection, records, itself, normalise)) == seen(step_by_step(projection, records))


def test_a_row_becomes_a_record_only_for_events_whose_handlers_ask_for_it() -> None:
    projection: Any = subscribers.instance(AccountSummaries)
    stored = [
        stream_of("a", 1, [AccountOpened(owner="a")]),
        stream_of("a", 2, [Deposited(amount=Decimal(1), balance=Decimal(1))]),
    ]
    asked: list[Row] = []

    def record_of(row: Row) -> StreamRecord:
        asked.append(row)
        return stored[row[1] - 1]

    (folded,) = fold(projection, map(tuple, stored), record_of, normalise)
    assert [row[1] for row in asked] == [1], "the time of the opening"
    assert folded.row.opened_at == stored[0].created_at
    assert not folded.failed


def test_what_the_reading_of_streams_raises_is_no_failure_of_an_aggregate() -> None:
    def streams() -> Iterator[StreamRecord]:
        yield stream_of("a", 1, [Added(amount=1)])
        raise ConnectionError

    projection: Any = subscribers.instance(Balances)
    with pytest.raises(ConnectionError):
        list(fold(projection, streams(), itself, normalise))
