"""The processor time of a command: by process under the spread load, and by stage of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median as middle

import psutil

from benchmarks import loads
from benchmarks.children import Asked
from benchmarks.figures import Figure, median
from benchmarks.processors import Processors, timed_run
from benchmarks.stages import WITHIN
from benchmarks.workspace import Services, Workspace
from sample_project.embedded import Broker

ACCOUNTS = 10_000
STAGES_ACCOUNTS = 5_000


def run(services: Services, quick: bool) -> list[Figure]:
    count, rounds = (20_000, 3) if quick else (200_000, 5)
    return [*_by_process(services, count, rounds), *_by_stage(services, count // 10, 3 * rounds)]


def _by_process(services: Services, count: int, rounds: int) -> list[Figure]:
    accounts = loads.account_ids(ACCOUNTS)
    opening, messages = loads.opens(accounts), loads.deposits(accounts, count)
    taken: dict[str, list[float]] = {"workers": [], "broker": [], "PostgreSQL": []}
    for _ in range(rounds):
        with Broker() as server, services.workspace(queue=server.url) as workspace, Processors(workspace) as processors:
            workspace.send(opening)
            processors.wait_published(len(opening))
            before = _seconds(processors, server, workspace)
            timed_run(workspace, processors, messages, count)
            for name, seconds in _seconds(processors, server, workspace).items():
                taken[name].append(1e6 * (seconds - before[name]) / count)
    total = sum(middle(found) for found in taken.values() if found)
    return [
        median(f"a command: {name}", found, "µs", f"{middle(found) / total:.0%} of all")
        for name, found in taken.items()
        if found
    ]


def _seconds(processors: Processors, server: Broker, workspace: Workspace) -> Mapping[str, float]:
    """Return the processor time of each kind of process so far; without PostgreSQL if it is on another machine. The
    broker's includes the messages that are sent to it before the workers go on."""
    found = {"workers": processors.processor_seconds(), "broker": _of(psutil.Process(server.pid))}
    with workspace.connect() as connection:  # its server process ends with it
        try:
            postmaster = psutil.Process(connection.info.backend_pid).parent()
        except psutil.NoSuchProcess:
            postmaster = None
    if postmaster is not None and postmaster.name() == "postgres":
        found["PostgreSQL"] = sum(map(_of, [postmaster, *postmaster.children()]))
    return found


def _of(process: psutil.Process) -> float:
    """Return the seconds of processor time, with those of ended children; none of a process that has just ended, which
    is a child by now."""
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.NoSuchProcess:
        return 0.0


def _by_stage(services: Services, count: int, rounds: int) -> list[Figure]:
    with (
        services.on_broker() as workspace,
        Asked("benchmarks.stages", STAGES_ACCOUNTS, count, env=workspace.environment) as line,
    ):
        found = [line.ask("") for _ in range(rounds + 1)][1:]  # the first one warms up
        instructions = line.ask("instructions")["instructions"]
    micro, blocks = ([one[kind] for one in found] for kind in ("microseconds", "blocks"))
    stages = [stage for stage in micro[0] if not stage.startswith(WITHIN)]
    total = [sum(one[stage] for stage in stages) for one in micro]
    figures = [
        median(
            f"stage: {stage}",
            [one[stage] for one in micro],
            "µs",
            _note(stage, middle([one[stage] for one in micro]) / middle(total), middle([one[stage] for one in blocks])),
        )
        for stage in micro[0]
    ]
    whole = sum(instructions[stage] for stage in stages)
    return [
        *figures,
        median("stages, together", total, "µs", "in one thread, without waits"),
        *(
            Figure(f"instructions: {stage}", instructions[stage], "", note=f"{instructions[stage] / whole:.0%}")
            for stage in stages
        ),
        Figure("instructions, together", whole, "", note="of the interpreter for a deposit; the same on each machine"),
    ]


def _note(stage: str, share: float, blocks: float) -> str:
    return f"{share:.0%}" if stage.startswith(WITHIN) else f"{share:.0%}, {blocks:+.1f} blocks"
