"""A command's logged steps, which cost nothing without a listener."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from enode_django import metadata
from enode_django.bus.command_bus import QueueCommandBus
from enode_django.commanding.logged_steps import log_committed
from enode_django.domain.messages import Command, DomainEvent
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventing.event_handlers import EventHandler, EventHandlerGroup
from enode_django.eventing.logged_steps import log_handled
from enode_django.eventing.pending import Failure, Message, PendingAggregate, Progress
from enode_django.eventing.registry import subscribers
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.middleware import EnodeMiddleware
from enode_django.telemetry import steplog
from sample_project.bank.projections import AccountSummaries
from tests.races.counting import Add, AddWithin, ApplyThenRaise, Create
from tests.races.harness import Worker

Told = tuple[str, str, str, int | None, str]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG, logger="enode_django.flow"):
        yield caplog


def steps(told: pytest.LogCaptureFixture) -> list[Told]:
    found = [record for record in told.records if record.name == "enode_django.flow"]
    return [tuple(getattr(one, name) for name in ("part", "subject", "aggregate_root_id", "version", "outcome"))
            for one in found]  # fmt: skip


def handled(*commands: Command) -> Worker:
    worker = Worker(MemoryEventStore())
    worker.send(*commands)
    worker.handle()
    log_committed(worker.commit(), 0.0)
    return worker


def test_commands_are_told_as_they_are_handled_and_committed(told: pytest.LogCaptureFixture) -> None:
    handled(Create("x", id="c1"), Add("x", amount=3))
    assert steps(told) == [
        ("command", "races.Create", "x", 1, "races.Created"),
        ("command", "races.Add", "x", 2, "races.Added"),
        ("commit", "races.Create", "x", 1, "stored"),
        ("commit", "races.Add", "x", 2, "stored"),
    ]
    assert told.records[0].flow_id == told.records[0].command_id == "c1"


def test_refusals_failures_and_repeats_are_told_as_what_they_are(told: pytest.LogCaptureFixture) -> None:
    again = Add("x", amount=3)
    handled(
        Create("x"),
        AddWithin("x", amount=9, limit=1),
        ApplyThenRaise("x"),
        again,
        again,
    )
    outcomes = [outcome for part, _, _, _, outcome in steps(told) if part == "command"]
    assert outcomes[1] == "refused: races.TooMuch"
    assert outcomes[2].startswith("failed: ")
    assert outcomes[4].startswith("repeated")


def test_nothing_is_told_and_nothing_is_looked_up_unless_somebody_listens(caplog: pytest.LogCaptureFixture) -> None:
    assert not steplog.enabled()
    handled(Create("x"))
    assert steps(caplog) == []


def test_what_is_sent_is_told_with_its_place_and_its_request(told: pytest.LogCaptureFixture) -> None:
    transport = MemoryTransport()
    bus = QueueCommandBus(transport, Producer(transport, queues=1), "commands")
    with metadata(correlation_id="order-4711"):
        bus.send([Create("x"), Add("x", amount=1)])
    assert [one[0] for one in steps(told)] == ["queue", "queue"]
    assert steps(told)[1] == ("queue", "races.Add", "x", None, "stored in commands/0 at 1")
    assert {record.flow_id for record in told.records} == {"order-4711"}


def test_a_request_is_told_without_its_query(told: pytest.LogCaptureFixture) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=204)

    EnodeMiddleware(view)(RequestFactory().post("/teller/?token=secret", headers={"x-request-id": "r-1"}))
    assert steps(told) == [("web", "POST /teller/", "", None, "204")]
    assert told.records[0].flow_id == "r-1"


@pytest.mark.parametrize(
    ("progress", "outcome"),
    [
        (Progress(1), "handled"),
        (Progress(0, parked="KeyError"), "waits: the aggregate is parked by KeyError"),
        (Progress(0, Failure(1, "", ValueError("odd"), None)), "failed: ValueError: ValueError('odd')"),  # type: ignore[arg-type]
        (Progress(0, Failure(2, "", ValueError("odd"), None)), None),  # type: ignore[arg-type]
    ],
    ids=["handled", "parked", "failed", "not tried"],
)
def test_what_a_projection_made_of_a_stream_is_told(
    told: pytest.LogCaptureFixture, progress: Progress, outcome: str | None
) -> None:
    record = handled(Create("x", id="c1")).finished[0].record
    assert record is not None
    work = PendingAggregate("x", record.aggregate_root_type)
    work.add(record)
    work.messages.append(Message(None, 0, "x", 1, "c1", ""))  # type: ignore[arg-type]
    told.clear()
    if progress.failure is not None:
        progress = progress._replace(failure=progress.failure._replace(command_id="c1"))
    log_handled(subscribers.instance(AccountSummaries), [work], {"x": progress}, 0.0)
    assert steps(told) == []  # it handles none of these events
    follows_all = EventHandlerGroup("test.All")
    follows_all.add(EventHandler(DomainEvent, "test.all", 1, print, "now"))
    log_handled(follows_all, [work], {"x": progress}, 0.0)
    assert [one[4] for one in steps(told)] == ([outcome] if outcome else [])
