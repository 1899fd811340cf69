"""Measurement of a projection on a full topic, by its rows in the database."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, LiteralString, NamedTuple

import psycopg

from benchmarks.processors import PATIENCE, BenchmarkError, Processors
from benchmarks.workspace import Workspace, count

Connection = psycopg.Connection[tuple[Any, ...]]

LOOK = 0.05
"""Seconds between looks, rare enough to leave the cores to the workers."""


class Fed(NamedTuple):
    """``started`` is the seconds from the start of ``runprocessors`` to the first row; ``rate`` is the rows per second
    from the first look that found rows to the one that found all."""

    started: float
    rate: float


def feed(
    workspace: Workspace,
    progress: LiteralString,
    total: int,
    check: Callable[[Connection], None],
    nearly: LiteralString | None = None,
) -> Fed:
    """Run two event workers until the query ``progress`` returns ``total``. ``check`` raises if the rows are wrong.

    ``nearly`` is a cheaper query that returns as much or more. It is asked first, so that counting rows again and again
    does not take the cores from the workers."""
    workspace.checkpoint()
    called = time.perf_counter()
    with workspace.connect() as connection, Processors(workspace, role="event", ready=False) as processors:
        first, begun = look_for(processors, connection, progress, 1, pause=LOOK / 10)
        if nearly is not None:
            look_for(processors, connection, nearly, total)
        _, ended = look_for(processors, connection, progress, total)
        check(connection)
        others = processors.report().get("subscribers", {}).keys() - set(workspace.subscribers)
        if others:
            raise BenchmarkError(f"{', '.join(others)} ran, too")
    return Fed(begun - called, (total - first) / (ended - begun))


def look_for(
    processors: Processors, connection: Connection, progress: LiteralString, at_least: int, *, pause: float = LOOK
) -> tuple[int, float]:
    """Return the first result of the query that is at least ``at_least``, and its time."""
    deadline = time.perf_counter() + PATIENCE
    while (found := count(connection, progress)) < at_least:
        processors.check()
        if time.perf_counter() > deadline:
            raise BenchmarkError(f"{progress!r} gives {found}, not {at_least}, after {PATIENCE:g} s")
        time.sleep(pause)
    return found, time.perf_counter()
