"""``execute_command`` alone on an idle system: from the call to the durable answer."""

from __future__ import annotations

import statistics
import time

from benchmarks import loads
from benchmarks.figures import Figure
from benchmarks.processors import Processors
from benchmarks.workspace import COMMANDS, Services
from enode_django import execute_command
from enode_django.commanding.bus import QueueCommandBus
from enode_django.runtime import use_bus
from sample_project.bank.domain import Deposit, OpenAccount

WARM_UP = 100


def run(services: Services, quick: bool) -> list[Figure]:
    count = 500 if quick else 2_000
    with services.workspace() as workspace, Processors(workspace):
        bus = QueueCommandBus(workspace.transport, workspace.producer, COMMANDS)
        with use_bus(bus):
            seconds = [_timed(id) for id in _opened(10) for _ in range((count + WARM_UP) // 10)][WARM_UP:]
        bus.close()
    percentiles = statistics.quantiles(seconds, n=100)
    return [
        Figure("execute_command p50", percentiles[49] * 1e3, "ms", note=f"{count:,} one after another"),
        Figure("execute_command p99", percentiles[98] * 1e3, "ms"),
    ]


def _opened(count: int) -> list[str]:
    accounts = loads.account_ids(count)
    for id in accounts:
        execute_command(OpenAccount(aggregate_root_id=id, owner="somebody")).raise_for_status()
    return accounts


def _timed(id: str) -> float:
    command = Deposit(aggregate_root_id=id, amount=loads.AMOUNT)
    started = time.perf_counter()
    result = execute_command(command)
    seconds = time.perf_counter() - started
    result.raise_for_status()
    return seconds
