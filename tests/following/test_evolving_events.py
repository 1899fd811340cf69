"""Events whose class was renamed and whose schema changed twice since they were stored, in the real store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from enode_django import (
    AggregateRoot,
    Command,
    DomainEvent,
    DomainException,
    ProcessManager,
    applies,
    handles,
    upcasts,
)
from enode_django.eventing.projections import ModelProjection
from enode_django.eventstore.base import StreamRecord
from enode_django.repository.loading import AggregateLoader
from enode_django.serialization.codec import encode_stream
from enode_django.serialization.plain import pack
from tests.following.domain import Console, CounterRow
from tests.following.harness import Harness

Stored = tuple[str, int, dict[str, Any]]


class Earned(DomainEvent):
    """Schema version 1 was named ``evolving.Got`` and had ``points`` as a text, version 2 had them as a number. Version
    3 has ``amount`` and ``reason``."""

    type_name = "evolving.Earned"
    aliases = ("evolving.Got",)
    schema_version = 3
    amount: int
    reason: str = "unknown"


@upcasts(Earned, from_version=1)
def points_as_number(fields: dict[str, Any]) -> dict[str, Any]:
    return {"points": int(fields["points"])}


@upcasts(Earned, from_version=2)
def points_as_amount(fields: dict[str, Any]) -> dict[str, Any]:
    fields["amount"] = fields.pop("points")
    return fields


class Overdrawn(DomainException):
    type_name = "evolving.Overdrawn"
    aliases = ("evolving.NotEnough",)
    schema_version = 2
    amount: int


@upcasts(Overdrawn, from_version=1)
def missing_as_amount(fields: dict[str, Any]) -> dict[str, Any]:
    return {"amount": fields["missing"]}


class Score(AggregateRoot):
    type_name = "evolving.Score"
    aliases = ("evolving.Points",)
    total: int = 0

    @applies(Earned)
    def _earned(self, event: Earned) -> None:
        self.total += event.amount


class Scores(ModelProjection[CounterRow]):
    abstract = True
    name = "evolving.scores"
    model = CounterRow

    @handles(Earned)
    def earned(self, row: CounterRow, event: Earned) -> None:
        row.owner = event.reason
        row.total += event.amount


class Consoler(ProcessManager):
    abstract = True
    name = "evolving.consoler"
    start = "beginning"

    @handles(Overdrawn)
    def refused(self, refusal: Overdrawn) -> Iterator[Command]:
        yield Console(aggregate_root_id="guest", amount=refusal.amount)


def row(version: int | None, kind: str, command: str, events: bytes) -> StreamRecord:
    return StreamRecord("ada", version, command, kind, "evolving.Play", datetime.now(UTC), events, b"")


def stream(*events: Stored) -> bytes:
    return b"\x01" + pack((events, None))


@pytest.fixture
def history(harness: Harness) -> list[StreamRecord]:
    records = [
        row(1, "evolving.Points", "c1", stream(*(("evolving.Got", 1, {"points": points}) for points in ("1", "2")))),
        row(2, "evolving.Points", "c2", stream(("evolving.Got", 2, {"points": 4}))),
        row(3, "evolving.Score", "c3", stream(("evolving.Earned", 2, {"points": 8}))),
        row(4, "evolving.Score", "c4", encode_stream([Earned(amount=16, reason="won")])),
    ]
    harness.store.append(records)
    return records


def test_aggregate_is_loaded_from_rows_of_every_version_and_name(harness: Harness, history: list[StreamRecord]) -> None:
    score = AggregateLoader(harness.store).load("ada")
    assert isinstance(score, Score)
    assert (score.total, score.version) == (31, 4)


@pytest.mark.parametrize("delivered", [slice(0, 4), slice(3, 4)], ids=["all", "the last: the rest is from the store"])
def test_projection_handles_them(harness: Harness, history: list[StreamRecord], delivered: slice) -> None:
    harness.deliver(harness.subscription(Scores()), history[delivered])
    assert harness.rows() == {"ada": ("won", 31, 4)}
    assert harness.parked("evolving.scores") == []


def test_process_manager_handles_a_refusal_of_an_older_version_and_name(harness: Harness) -> None:
    refused = row(None, "evolving.Points", "c1", b"\x02" + pack(("evolving.NotEnough", 1, "no", {"missing": 3})))
    harness.store.append([refused])
    harness.deliver(harness.subscription(Consoler()), [refused])
    assert [command.amount for command in harness.sent if isinstance(command, Console)] == [3]


def test_aggregate_is_parked_at_an_event_that_cannot_be_upcast(harness: Harness, history: list[StreamRecord]) -> None:
    broken = row(5, "evolving.Score", "c5", stream(("evolving.Got", 1, {"points": "many"})))
    harness.store.append([broken])
    subscription = harness.subscription(Scores(), attempts=1)
    harness.deliver(subscription, [*history, broken])
    (parked,) = harness.parked("evolving.scores")
    assert (parked.version, parked.error_type) == (5, "MalformedMessage")
    assert "'evolving.Got' of schema version 1" in parked.error
    assert "points_as_number(), from 1, raised ValueError" in parked.error
    assert harness.rows() == {"ada": ("won", 31, 4)}


def test_event_that_is_newer_than_the_code_is_parked_not_misread(harness: Harness, history: list[StreamRecord]) -> None:
    newer = row(5, "evolving.Score", "c5", stream(("evolving.Earned", 4, {"sum": 1})))
    harness.store.append([newer])
    harness.deliver(harness.subscription(Scores(), attempts=1), [newer])
    (parked,) = harness.parked("evolving.scores")
    assert (parked.version, parked.error_type) == (5, "UnknownMessageType")
    assert harness.rows() == {"ada": ("won", 31, 4)}
