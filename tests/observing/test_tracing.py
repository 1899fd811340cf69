from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler

from enode_django import execute_command, metadata
from enode_django.domain.metadata import Metadata
from enode_django.eventing.registry import subscribers
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import CommandFailed
from enode_django.ids import new_id
from enode_django.runtime import close_bus, make_store, make_subscription, make_transport
from enode_django.serialization.codec import decode_metadata
from enode_django.telemetry import tracing
from enode_django.telemetry.tracing import NO_TRACING, current_tracing
from sample_project.bank.domain import Deposit, OpenAccount
from sample_project.bank.domain.transfers import StartTransfer
from tests.integration.running import processors, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def set_provider(monkeypatch: pytest.MonkeyPatch, sampler: Sampler | None = None) -> InMemorySpanExporter:
    """Set a tracer provider for one test, as a project does when it starts. Return its exporter."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return set_provider(monkeypatch)


@pytest.fixture
def running(redis_url: str) -> Iterator[None]:
    close_bus()
    with processors():
        yield
    close_bus()


def follow(records: list[StreamRecord], *names: str) -> None:
    """Let these subscribers handle the records, as event workers do."""
    for name in names:
        make_subscription(subscribers.get(name), make_transport(), make_store()).follow(records)


def request_span() -> Any:
    return trace.get_tracer("test").start_as_current_span("request")


def named(spans: Any) -> dict[str, ReadableSpan]:
    found = {span.name: span for span in spans}
    assert len(found) == len(spans), "each span once"
    return found


def parents(spans: dict[str, ReadableSpan]) -> dict[str, str | None]:
    names = {span.context.span_id: name for name, span in spans.items() if span.context is not None}
    return {name: names[span.parent.span_id] if span.parent else None for name, span in spans.items()}


def test_one_trace_goes_from_the_request_to_the_subscribers(
    monkeypatch: pytest.MonkeyPatch, exporter: InMemorySpanExporter, running: None
) -> None:
    account = new_id()
    with request_span():
        command = OpenAccount(account, owner="somebody")
        execute_command(command)
    follow(list(make_store().load(account)), "bank.AccountSummaries", "bank.Ledger")
    wait_for(lambda: any(span.name == "publish" for span in exporter.get_finished_spans()))
    spans = named(exporter.get_finished_spans())
    assert parents(spans) == {
        "request": None,
        "send OpenAccount": "request",
        "handle bank.OpenAccount": "send OpenAccount",
        "commit": "handle bank.OpenAccount",
        "publish": "handle bank.OpenAccount",
        "bank.AccountSummaries follows": "handle bank.OpenAccount",
    }
    assert len({span.context.trace_id for span in spans.values() if span.context is not None}) == 1
    told = {"enode.command_id": command.id, "enode.aggregate_root_id": account}
    for name in ("handle bank.OpenAccount", "commit", "publish"):
        assert spans[name].attributes == told
    assert spans["bank.AccountSummaries follows"].attributes == {**told, "enode.subscriber": "bank.AccountSummaries"}


def test_commands_of_process_managers_continue_the_trace(exporter: InMemorySpanExporter, running: None) -> None:
    source, target, transfer = new_id(), new_id(), new_id()
    for account in (source, target):
        execute_command(OpenAccount(account, owner="somebody"))
    execute_command(Deposit(source, amount=Decimal(5)))
    subscription = make_subscription(subscribers.get("bank.transfers"), make_transport(), make_store())
    subscription.begin()
    exporter.clear()
    with request_span():
        start = StartTransfer(transfer, source=source, target=target, amount=Decimal(5))
        execute_command(start)
    subscription.follow(make_store().load(transfer))
    wait_for(lambda: any(span.name == "handle bank.ReserveWithdrawal" for span in exporter.get_finished_spans()))
    spans = {span.name: span for span in exporter.get_finished_spans()}
    found = parents(spans)
    assert found["bank.transfers follows"] == found["handle bank.ReserveWithdrawal"] == "handle bank.StartTransfer"


def test_a_failed_command_is_seen_in_its_trace(exporter: InMemorySpanExporter, running: None) -> None:
    with pytest.raises(CommandFailed):
        execute_command(Deposit(new_id(), amount=Decimal(5)))
    span = named(exporter.get_finished_spans())["handle bank.Deposit"]
    assert (span.status.status_code, span.status.description) == (trace.StatusCode.ERROR, "AggregateNotFound")


def test_what_is_not_sampled_leaves_no_trace_and_no_mark(monkeypatch: pytest.MonkeyPatch, running: None) -> None:
    exporter = set_provider(monkeypatch, ParentBased(ALWAYS_OFF))
    close_bus()
    account = new_id()
    with metadata(user_id="7", traceparent="a former one"), request_span():
        execute_command(OpenAccount(account, owner="somebody"))
    (record,) = make_store().load(account)
    assert decode_metadata(record.metadata) == Metadata(user_id="7")
    follow([record], "bank.AccountSummaries")
    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize(
    "traceparent", ["", "00-zz", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "é" * 600, 7, ["a"], None]
)
def test_a_mark_that_is_none_changes_nothing(
    exporter: InMemorySpanExporter, running: None, monkeypatch: pytest.MonkeyPatch, traceparent: Any
) -> None:
    monkeypatch.setattr(tracing._Traced, "sending", tracing.Tracing.sending)  # a sender that does not trace
    close_bus()
    account = new_id()
    with metadata(traceparent=traceparent):
        execute_command(OpenAccount(account, owner="somebody"))
    follow(list(make_store().load(account)), "bank.AccountSummaries")
    assert exporter.get_finished_spans() == ()


def test_without_a_provider_nothing_is_hooked_in() -> None:
    assert current_tracing() is NO_TRACING
    handle = lambda slot, carrier: None  # noqa: E731
    assert NO_TRACING.handling(handle) is handle
    events: Any = object()
    assert NO_TRACING.following("a", events) is events


def test_without_the_package_nothing_is_hooked_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "sdk_tracer_provider")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert current_tracing() is NO_TRACING


@pytest.mark.parametrize(
    ("variables", "expected"), [({}, False), ({"OTEL_PYTHON_TRACER_PROVIDER": "sdk_tracer_provider"}, True)]
)
def test_the_package_is_imported_only_where_a_provider_may_be_set(variables: dict[str, str], expected: bool) -> None:
    asks = (
        "import sys; from enode_django.telemetry.tracing import current_tracing as c; "
        "c(); print('opentelemetry' in sys.modules)"
    )
    asked = subprocess.run(
        [sys.executable, "-c", asks],
        env=variables,
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.stdout.strip() == str(expected), asked.stderr
