"""The growth of a worker's memory: its peak after each tenth of the commands, to many more aggregates than it may
cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import psutil

from benchmarks import loads
from benchmarks.figures import Figure
from benchmarks.processors import Processors, wait_for
from benchmarks.workspace import Services, Workspace

MAX_AGGREGATES = 20_000
COMMANDS_EACH = 5
AHEAD = 40_000
"""The most commands sent ahead of the published ones, because the queue is not measured."""
LARGE = 200 * 1024
"""The bytes of an event of the second load."""
MIB = 1024 * 1024
LARGE_BOUNDS: dict[str, object] = {
    "AGGREGATE_CACHE": {"MAX_BYTES": 64 * MIB},
    "COMMANDS": {"MAX_UNFINISHED_BYTES": 32 * MIB, "COPY_MAX_BYTES": 8 * MIB},
}


def run(services: Services, quick: bool) -> list[Figure]:
    return [*_many(services, quick), *_large(services, quick)]


def _many(services: Services, quick: bool) -> list[Figure]:
    aggregates = 20_000 if quick else 200_000
    limit = MAX_AGGREGATES // 10 if quick else MAX_AGGREGATES
    bounds: dict[str, object] = {"AGGREGATE_CACHE": {"MAX_AGGREGATES": limit}}
    if quick:  # the other defaults are meant for longer runs
        bounds |= {"COMMANDS": {"RECENT_COMMANDS": limit, "MAX_UNFINISHED": limit}}
    total = aggregates * COMMANDS_EACH
    peaks: list[list[int]] = []
    with services.workspace(**bounds) as workspace, Processors(workspace) as processors:
        sender = threading.Thread(target=_send, args=(workspace, aggregates))
        sender.start()
        print(f"  {total:,} commands over {aggregates:,} aggregates, a worker may cache {limit:,}; peak MB of each:")
        for tenth in range(1, 11):
            processors.wait_published(total * tenth // 10)
            peaks.append([peak_bytes(pid) for pid in processors.pids()])
            print(f"  {tenth:2}/10  {'  '.join(f'{peak / 1e6:7.1f}' for peak in peaks[-1])}", flush=True)
        sender.join()
    return [
        Figure("memory after the first tenth", max(peaks[0]) / 1e6, "MB", note="peak of the larger worker"),
        Figure("memory after the last tenth", max(peaks[-1]) / 1e6, "MB", [max(peak) / 1e6 for peak in peaks]),
    ]


def _large(services: Services, quick: bool) -> list[Figure]:
    """Measure aggregates whose events, and so states, have 200 KiB: together several times a worker's limits."""
    total = 2_000 if quick else 10_000
    peaks: list[list[int]] = []
    with services.workspace(**LARGE_BOUNDS) as workspace, Processors(workspace) as processors:
        sender = threading.Thread(target=_send_large, args=(workspace, total))
        sender.start()
        print(f"  {total:,} commands with events of {LARGE // 1024} KiB; peak MB of each:")
        for tenth in range(1, 11):
            processors.wait_published(total * tenth // 10)
            peaks.append([peak_bytes(pid) for pid in processors.pids()])
            print(f"  {tenth:2}/10  {'  '.join(f'{peak / 1e6:7.1f}' for peak in peaks[-1])}", flush=True)
        sender.join()
    note = f"peak of the larger worker, events of {LARGE // 1024} KiB"
    return [
        Figure("memory with large events, middle", max(peaks[4]) / 1e6, "MB", note=note),
        Figure("memory with large events, end", max(peaks[-1]) / 1e6, "MB", [max(peak) / 1e6 for peak in peaks]),
    ]


def _send_large(workspace: Workspace, total: int, at_once: int = 100) -> None:
    for sent in range(0, total, at_once):
        wait_for("the workers keep up", partial(_has_published, workspace, sent - 10 * at_once))
        workspace.send(loads.large_opens(loads.account_ids(at_once), LARGE))


def _send(workspace: Workspace, aggregates: int) -> None:
    sent = 0
    for messages in _portions(loads.account_ids(aggregates)):
        wait_for("the workers keep up", partial(_has_published, workspace, sent - AHEAD))
        workspace.send(messages)
        sent += len(messages)


def _has_published(workspace: Workspace, more_than: int) -> bool:
    return workspace.published() > more_than


def _portions(accounts: list[str], size: int = 10_000) -> Iterator[loads.Messages]:
    """Yield openings and deposits of every account, in rounds of one command for each account.

    A quarter of the accounts comes first, so that the first tenth already does everything: it fills the caches with
    accounts that have a balance and the queues with deposits, and returns to accounts that have left the cache.
    """
    quarter = len(accounts) // 4
    for some in (accounts[:quarter], accounts[quarter:]):
        yield from _in_portions(loads.opens, some, size)
        for _ in range(2):
            yield from _in_portions(_deposits, some, size)
    for _ in range(COMMANDS_EACH - 3):
        yield from _in_portions(_deposits, accounts, size)


def _deposits(accounts: Sequence[str]) -> loads.Messages:
    """Return one deposit to each account, so that a cache for fewer accounts does not help."""
    return [loads.deposit(id) for id in accounts]


def _in_portions(
    make: Callable[[Sequence[str]], loads.Messages], accounts: Sequence[str], size: int
) -> Iterator[loads.Messages]:
    for start in range(0, len(accounts), size):
        yield make(accounts[start : start + size])


def peak_bytes(pid: int) -> int:
    """Return the peak resident memory of a process, or the current one if the peak is unknown."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return int(psutil.Process(pid).memory_info().rss)
