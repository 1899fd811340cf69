"""The latency of ``execute_command`` while other commands arrive by a schedule.

A sender that waits for one answer before it sends the next command hides the time in which the system stands: it sends
nothing then (coordinated omission). Here a command's latency begins at the time at which it was to arrive, whether or
not a thread was free to send it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks import loads
from benchmarks.arrivals import arrival_times
from benchmarks.children import Asked
from benchmarks.figures import Figure, quantile
from benchmarks.processors import Processors
from benchmarks.workspace import COMMANDS, Services, Workspace
from enode_django import execute_command
from enode_django.bus.command_bus import QueueCommandBus
from enode_django.runtime import use_bus
from sample_project.bank.domain import Deposit

ACCOUNTS = 2_000
SHARES = (0.1, 0.5, 0.8)
"""Arrival rates, as shares of the peak. The peak is the rate with a sender that waits for nothing."""
SAMPLES = 500
"""Measured commands a second, beside those of the load."""
THREADS = 32
HEAD_START = 0.2
"""Seconds, for the threads to begin."""
PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


def run(services: Services, quick: bool) -> list[Figure]:
    seconds, count = (3.0, 40_000) if quick else (20.0, 200_000)
    accounts = loads.account_ids(ACCOUNTS)
    with (
        services.on_broker() as workspace,
        Processors(workspace) as processors,
        Asked("benchmarks.arrivals", *accounts, env=workspace.environment) as load,
    ):
        workspace.send(loads.opens(accounts))
        processors.wait_published(len(accounts))
        peak = _peak(workspace, processors, load, count)
        found = [Figure("open loop: peak", peak, "commands/s", note="with its sender beside")]
        for number, share in enumerate(SHARES):
            found += _at(workspace, processors, load, accounts, share, share * peak, seconds, number)
    return found


def _peak(workspace: Workspace, processors: Processors, load: Asked, count: int) -> float:
    """Return the rate at which as many commands are published as are to arrive at once."""
    before = workspace.published()
    arriving = load.ask(f"{count * 100} 0.01 0")
    began = time.perf_counter()
    load.ask(str(began))
    return float(arriving / (processors.wait_published(before + arriving) - began))


def _at(
    workspace: Workspace,
    processors: Processors,
    load: Asked,
    accounts: Sequence[str],
    share: float,
    rate: float,
    seconds: float,
    seed: int,
) -> list[Figure]:
    before = workspace.published()
    arriving = load.ask(f"{rate} {seconds} {seed}")
    began = time.perf_counter() + HEAD_START
    load.tell(str(began))
    latencies = _latencies(workspace, accounts, began, arrival_times(SAMPLES, seconds, seed))
    late = load.answer()["late"]
    processors.wait_published(before + arriving + len(latencies))
    name = f"open loop, {share:.0%} of the peak"
    note = f"of {len(latencies):,} among {arriving / seconds:,.0f} commands/s, sent up to {late:.3f} s late"
    return [
        Figure(f"{name}: {percentile}", 1e3 * quantile(latencies, at), "ms", note=note if at == 0.5 else "")
        for percentile, at in PERCENTILES.items()
    ]


def _latencies(workspace: Workspace, accounts: Sequence[str], began: float, times: Sequence[float]) -> list[float]:
    bus = QueueCommandBus(workspace.transport, workspace.producer, COMMANDS)

    def measured(number: int) -> float:
        scheduled = began + times[number]
        if (wait := scheduled - time.perf_counter()) > 0:
            time.sleep(wait)
        execute_command(Deposit(accounts[number % len(accounts)], amount=loads.AMOUNT))
        return time.perf_counter() - scheduled

    with use_bus(bus), ThreadPoolExecutor(THREADS) as pool:
        latencies = list(pool.map(measured, range(len(times))))
    bus.close()
    return latencies
