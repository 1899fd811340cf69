"""The cost of middleware of commands, which is zero if the settings name none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.test import override_settings

from benchmarks import loads
from benchmarks.figures import Figure, best
from benchmarks.processors import BenchmarkError
from benchmarks.workspace import Services
from enode_django.bus.interception import handlers_in_use
from enode_django.commanding.command_processor import CommandProcessor
from enode_django.commanding.decisions import STREAM, Envelope
from enode_django.concurrency.backoff import once
from enode_django.domain.handlers import Handlers, command_handlers
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.repository.loading import AggregateLoader
from enode_django.serialization.codec import decode_command, restore_command

ACCOUNTS = 100
Handle = Callable[[Any, Any], Any]


def nothing_added(handle: Handle) -> Handle:
    def call(command: Any, context: Any) -> Any:
        return handle(command, context)

    return call


def run(services: Services, quick: bool) -> list[Figure]:
    """Measure one command mailbox in this process, without queue and store. The rounds of all variants take turns."""
    count, rounds = (2_000, 15) if quick else (5_000, 40)
    accounts = loads.account_ids(ACCOUNTS)
    opening = _envelopes(loads.opens(accounts))
    deposits = _envelopes(loads.deposits(accounts, count))
    rates: Mapping[str, list[float]] = {"handlers alone": [], "without middleware": [], "with one middleware": []}
    for _ in range(rounds):
        for name, found in rates.items():
            with override_settings(ENODE=_settings(name)):
                handlers = command_handlers if name == "handlers alone" else handlers_in_use()
                found.append(count / _seconds(handlers, opening, deposits))
    return [best(name, found, "commands/s", "processor time, in memory") for name, found in rates.items()]


def _settings(name: str) -> dict[str, Any]:
    return {"COMMAND_MIDDLEWARE": [f"{__name__}.nothing_added"]} if name == "with one middleware" else {}


def _envelopes(messages: loads.Messages) -> Sequence[Envelope]:
    wires = [decode_command(body) for _, body in messages]
    return [Envelope(one.id, one.aggregate_root_id, one.type_name, restore_command(one)) for one in wires]


def _seconds(handlers: Handlers, opening: Sequence[Envelope], deposits: Sequence[Envelope]) -> float:
    processor = CommandProcessor(
        AggregateLoader(MemoryEventStore()),
        handlers,
        persist=once,
        max_aggregates=ACCOUNTS,
        max_recent=2 * len(deposits),
        max_bytes=sys.maxsize,
    )
    processor.handle(opening)
    began = time.process_time()
    entries = processor.handle(deposits)
    seconds = time.process_time() - began
    if any(entry.kind is not STREAM for entry in entries):
        raise BenchmarkError("a deposit has failed")
    return seconds
