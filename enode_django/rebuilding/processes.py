"""An engine that rebuilds in plain processes of this machine, without Spark and Java."""

from __future__ import annotations

import time
from collections.abc import Sequence

from enode_django.exceptions import ConfigurationError
from enode_django.jobs.progress import Report, figures_of
from enode_django.rebuilding.catch_up_tasks import CatchUpTask, work_off
from enode_django.rebuilding.engine import InProcess, Plan
from enode_django.rebuilding.pool import Pool
from enode_django.rebuilding.ranges import scans
from enode_django.rebuilding.replaying import Replayed, Todo
from enode_django.rebuilding.shadow import Shadow
from enode_django.rebuilding.task_messages import Task

ALONE = 2_000
"""The most aggregates of a task. Up to so many are caught up in this process: a task costs more."""
TELL_EVERY = 1.0


class Processes:
    """An `Engine` that replays ranges of aggregates in several processes at once. Not thread-safe."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def replay(self, plan: Plan, report: Report) -> Replayed:
        if plan.archive is not None:
            raise ConfigurationError(
                "an archive is read by Spark; leave out the archive, or let Spark be the engine of the rebuild"
            )
        if not plan.types:
            return Replayed()
        tasks = [Task(plan.shadow, scan) for scan in scans(plan, self._pool.size)]
        return self._pool.run(tasks, _Telling(report, len(tasks)))

    def catch_up(self, shadow: Shadow, todo: Sequence[Todo]) -> Replayed:
        if len(todo) <= ALONE:
            return InProcess().catch_up(shadow, todo)
        starts = range(0, len(todo), ALONE)
        return self._pool.run([Task(shadow, None, list(todo[start : start + ALONE])) for start in starts])

    def tasks_at_once(self) -> int:
        return self._pool.size

    def work_off(self, shadow: Shadow, tasks: Sequence[CatchUpTask]) -> Replayed:
        if len(tasks) == 1:
            return work_off(shadow, tasks)
        return self._pool.run([Task(shadow, None, (), task) for task in tasks])


class _Telling:
    """Reports a replay every second, with the same figures as Spark's engine."""

    def __init__(self, report: Report, tasks: int) -> None:
        self._report = report
        self._tasks = tasks
        self._began = self._told = time.monotonic()

    def __call__(self, done: int, total: Replayed) -> None:
        now = time.monotonic()
        if now < self._told + TELL_EVERY and done < self._tasks:
            return
        self._told = now
        self._report("replay", **figures_of(self._tasks, done, now - self._began, total.streams))
