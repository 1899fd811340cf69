"""Engines that work as Spark does, without Spark."""

from __future__ import annotations

from collections.abc import Sequence

from enode_django.rebuilding.catch_up_tasks import CatchUpTask, work_off
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.replaying import Replayed
from enode_django.rebuilding.shadow import Shadow
from tests.integration.store_sessions import Call


class Threads(InProcess):
    """Does three tasks at a time, each in its own thread. ``given`` are the lists of tasks that it was given, in order,
    and ``shadow`` is that of the last list."""

    shadow: Shadow

    def __init__(self) -> None:
        self.given: list[Sequence[CatchUpTask]] = []

    def tasks_at_once(self) -> int:
        return 3

    def work_off(self, shadow: Shadow, tasks: Sequence[CatchUpTask]) -> Replayed:
        self.given.append(tasks)
        self.shadow = shadow
        total = Replayed()
        for done in [again(shadow, task) for task in tasks]:
            total += done.result()
        return total


def again(shadow: Shadow, task: CatchUpTask) -> Call:
    """Begin to do a task in another thread."""
    return Call(lambda: work_off(shadow, [task]))
