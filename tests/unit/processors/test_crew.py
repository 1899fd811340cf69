from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest

from enode_django.conf import Conf
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.processors.children import ContextChildren
from enode_django.processors.control import Beat, Role, send
from enode_django.processors.crew import Crew, Plan, Worker


class EndsWhenAskedFor:
    """A process that says its last word, and ends, at the very moment at which somebody asks whether it lives."""

    pid = 1
    exitcode = 0

    def __init__(self) -> None:
        self.connection, self._theirs = multiprocessing.Pipe()

    def is_alive(self) -> bool:
        send(self._theirs, Beat({"finished": 7}))
        self._theirs.close()
        return False

    def join(self) -> None:
        pass


def ending_worker() -> Worker:
    worker: Any = object.__new__(Worker)
    worker.name, worker.process = "w", EndsWhenAskedFor()
    worker.connection, worker.notes = worker.process.connection, []
    worker.report, worker.started, worker.last_beat = {}, 0.0, 0.0
    return worker


@pytest.mark.parametrize("turn", [Crew.look, Crew.reap])
def test_the_last_word_of_a_worker_counts(turn: Callable[[Crew], object]) -> None:
    transport = MemoryTransport()
    transport.create_topic("commands", 1)
    plan = Plan(Role.COMMAND, 1, "commands", 1, ["g"])
    crew = Crew(Conf(), plan, transport, children=ContextChildren(), supervisor="s", verbosity=0)
    crew._workers[0] = ending_worker()
    turn(crew)
    assert crew.workers == []
    assert crew.reports() == [{"finished": 7}]
