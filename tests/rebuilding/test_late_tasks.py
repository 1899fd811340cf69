"""A task that goes on after it was given up does not overwrite rows that were handled since."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from enode_django import DomainEvent
from enode_django.eventing import checkpoints
from enode_django.jobs.progress import Report
from enode_django.rebuilding.catch_up_tasks import CatchUpTask
from enode_django.rebuilding.engine import InProcess, Plan
from enode_django.rebuilding.rebuild import rebuild
from enode_django.rebuilding.replaying import Replayed
from enode_django.rebuilding.shadow import Shadow
from tests.following.domain import Added, Closed, Opened
from tests.following.harness import Harness
from tests.integration.store_sessions import Call
from tests.rebuilding.domain import Balances, Effects
from tests.rebuilding.histories import balances, follow, nothing


class StallingEngine(InProcess):
    """The first run of the replay stalls in its last handler, and a second run ends. The first one goes on when the
    shadow has caught up with the events that ``meanwhile`` stores."""

    def __init__(self, effects: Effects, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile
        self._go_on = threading.Event()
        self._stalls = threading.Event()
        self._late: Call | None = None
        self._thread = 0
        effects.balance = self._stall

    def _stall(self, row: Any, event: DomainEvent) -> None:
        if threading.get_ident() == self._thread and event.aggregate_root_id == "z":
            self._stalls.set()
            assert self._go_on.wait(60)

    def replay(self, plan: Plan, report: Report) -> Replayed:
        def run_late() -> Replayed:
            self._thread = threading.get_ident()
            return super(StallingEngine, self).replay(plan, nothing)

        self._late = Call(run_late)
        assert self._stalls.wait(60)
        replayed = super().replay(plan, report)
        self._meanwhile()
        return replayed

    def work_off(self, shadow: Shadow, tasks: Sequence[CatchUpTask]) -> Replayed:
        done = super().work_off(shadow, tasks)
        if self._late is not None:
            self._go_on.set()
            self._late.result()
            self._late = None
        return done


def test_a_late_task_does_not_bring_a_row_back_that_was_deleted_since(postings: Harness, effects: Effects) -> None:
    postings.stored("z", Opened(owner="z"), Added(amount=2))
    follow()
    engine = StallingEngine(effects, lambda: (postings.stored("z", Closed(), after=2), follow()))
    assert rebuild(Balances.name, engine, nothing).comparison.is_equal
    assert balances() == {}
    assert checkpoints.read("default", Balances.name, ["z"]) == {"z": 3}


@pytest.mark.parametrize("after", [[Added(amount=5)], [Added(amount=5), Closed(), Added(amount=5)]])
def test_a_late_task_leaves_no_checkpoint_beside_a_row_that_was_made_since(
    postings: Harness, effects: Effects, after: list[DomainEvent]
) -> None:
    postings.stored("z", Added(amount=2), Closed())
    follow()
    engine = StallingEngine(effects, lambda: (postings.stored("z", *after, after=2), follow()))
    assert rebuild(Balances.name, engine, nothing).comparison.is_equal
    assert balances() == {"z": (5, 1, 2 + len(after))}
    assert checkpoints.read("default", Balances.name, ["z"]) == {}
