"""The latency of ``execute_command`` on an idle system: to the durable answer, or until the events are handled."""

from __future__ import annotations

import statistics
import time

from benchmarks import loads
from benchmarks.figures import Figure
from benchmarks.processors import Processors
from benchmarks.workspace import COMMANDS, Services, Workspace
from enode_django import WaitFor, execute_command
from enode_django.bus.command_bus import QueueCommandBus
from enode_django.eventing.registry import subscribers
from enode_django.runtime import use_bus
from sample_project.bank.domain import Deposit, OpenAccount

WARM_UP = 100
SUBSCRIBERS = ("bank.AccountSummaries", "bank.Ledger", "bank.transfers")


def run(services: Services, quick: bool) -> list[Figure]:
    return _on_both(services, quick, "execute_command", WaitFor.EXECUTED, "command")


def run_handled(services: Services, quick: bool) -> list[Figure]:
    """Measure until a deposit is handled by both projections; the process manager ignores it."""
    with subscribers.only(*map(subscribers.get, SUBSCRIBERS)):  # as in the workers: others are not awaited
        return _on_both(services, quick, "handled", WaitFor.HANDLED, "all")


def _on_both(services: Services, quick: bool, name: str, wait_for: WaitFor, role: str) -> list[Figure]:
    """Measure with the broker, which is the default queue, and with Redis Streams."""
    count = 500 if quick else 2_000
    with services.on_broker(SUBSCRIBERS) as workspace:
        found = _measured(workspace, count, name, wait_for, role)
    with services.workspace(SUBSCRIBERS) as workspace:
        return found + _measured(workspace, count, f"{name}, Redis Streams", wait_for, role)


def _measured(workspace: Workspace, count: int, name: str, wait_for: WaitFor, role: str) -> list[Figure]:
    with Processors(workspace, role=role):
        bus = QueueCommandBus(workspace.transport, workspace.producer, COMMANDS)
        with use_bus(bus):
            accounts = _opened(10)
            seconds = [_timed(id, wait_for) for id in accounts for _ in range((count + WARM_UP) // 10)][WARM_UP:]
        bus.close()
    percentiles = statistics.quantiles(seconds, n=100)
    return [
        Figure(f"{name} p50", percentiles[49] * 1e3, "ms", note=f"{count:,} one after another"),
        Figure(f"{name} p99", percentiles[98] * 1e3, "ms"),
    ]


def _opened(count: int) -> list[str]:
    accounts = loads.account_ids(count)
    for id in accounts:
        execute_command(OpenAccount(id, owner="somebody"))
    return accounts


def _timed(id: str, wait_for: WaitFor) -> float:
    command = Deposit(id, amount=loads.AMOUNT)
    started = time.perf_counter()
    result = execute_command(command, wait_for=wait_for)
    seconds = time.perf_counter() - started
    result.raise_for_status()
    return seconds
