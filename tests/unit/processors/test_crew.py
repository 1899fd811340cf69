from __future__ import annotations

import multiprocessing
import re
import socket
import time
from collections.abc import Callable, Collection
from typing import Any

import pytest

from enode_django.concurrency.in_flight import NOTHING_IN_FLIGHT, position_of
from enode_django.conf import make_conf
from enode_django.conf.groups import Conf
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.processes.children import ContextChildren, Job, Started
from enode_django.processors.control import Role, send
from enode_django.processors.supervisor import supervisor_name
from enode_django.processors.worker import worker_name
from enode_django.processors.worker_group import (
    FAILING_AFTER,
    HEALTHY_AFTER,
    RESTART_DELAYS,
    STARTS_WITHIN,
    Plan,
    Worker,
    WorkerGroup,
)
from tests.acceptance.waiting import wait_until


@pytest.mark.parametrize("host", ["h\xf6st-\u0436", "h\udcff st/1", ""])
def test_a_worker_is_named_in_ascii_whatever_its_host_is_called(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """PostgreSQL replaces other characters in an ``application_name``, so that a successor finds no session of it."""
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    supervisor = supervisor_name()
    assert re.fullmatch(
        r"enode-[\w.-]*-\d+-[0-9a-f]{6}/event-0-[0-9a-f]{6}", worker_name(supervisor, Role.EVENT, 0), re.A
    )


class EndsWhenAskedFor:
    """A process that says its last word, and ends, at the very moment at which somebody asks whether it lives."""

    pid = 1
    exitcode = 0

    def __init__(self) -> None:
        self.connection, self._theirs = multiprocessing.Pipe()

    def is_alive(self) -> bool:
        send(self._theirs, {"finished": 7})
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


@pytest.mark.parametrize("turn", [WorkerGroup.look, WorkerGroup.reap])
def test_the_last_word_of_a_worker_counts(turn: Callable[[WorkerGroup], object]) -> None:
    transport = MemoryTransport()
    transport.create_topic("commands", 1)
    plan = Plan(Role.COMMAND, 1, "commands", 1, ["g"])
    crew = WorkerGroup(Conf(), plan, transport, children=ContextChildren(), supervisor="s", verbosity=0)
    crew._workers[0] = ending_worker()
    turn(crew)
    assert crew.workers == []
    assert crew.reports() == [{"finished": 7}]


class Buries(MemoryTransport):
    """Notes the deaths that it is told of."""

    def __init__(self) -> None:
        super().__init__()
        self.deaths: list[list[tuple[int, int]]] = []

    def bury(self, group: str, topic: str, member: str, deaths: Collection[tuple[int, int]] = ()) -> None:
        self.deaths.append(list(deaths))


@pytest.mark.parametrize(("status", "deaths"), [(70, []), (71, [(3, 41)]), (-9, [(3, 41)]), (0, [(3, 41)])])
def test_a_command_counts_as_cause_of_an_end_unless_a_thread_died_that_handled_none(
    status: int, deaths: list[tuple[int, int]]
) -> None:
    transport = Buries()
    transport.create_topic("commands", 1)
    plan = Plan(Role.COMMAND, 1, "commands", 1, ["g"])
    crew = WorkerGroup(Conf(), plan, transport, children=ContextChildren(), supervisor="s", verbosity=0)
    worker: Any = ending_worker()
    worker.process.exitcode, worker.notes = status, [position_of(3, 41)]
    crew._workers[0] = worker
    crew.look()
    assert transport.deaths == [deaths]


def test_worker_that_ends_by_itself_is_buried_though_nothing_is_to_blame(caplog: pytest.LogCaptureFixture) -> None:
    """Others get its queues at once, and do not wait for its leases."""
    transport = Buries()
    crew = crew_of(ending_worker(), transport)
    crew._workers[0].notes = [NOTHING_IN_FLIGHT]
    crew.look()
    assert transport.deaths == [[]]
    assert "worker w ended" in caplog.text


@pytest.mark.parametrize(("status", "is_clean", "deaths"), [(0, True, []), (1, False, [[]]), (-9, False, [[]])])
def test_worker_that_was_killed_at_the_shutdown_is_buried_and_its_command_is_not_to_blame(
    status: int, is_clean: bool, deaths: list[object]
) -> None:
    transport = Buries()
    worker: Any = ending_worker()
    worker.process.exitcode, worker.notes = status, [position_of(3, 41)]
    crew = crew_of(worker, transport)
    assert crew.reap() is is_clean
    assert (crew.workers, transport.deaths) == ([], deaths)


@pytest.mark.parametrize(("lived", "waits"), [(HEALTHY_AFTER + 0.1, False), (HEALTHY_AFTER, True)])
def test_only_worker_that_has_lived_for_a_while_is_started_again_at_once(lived: float, waits: bool) -> None:
    crew = crew_of(ending_worker(), Buries())
    crew._workers[0].started = -lived
    crew._restarts[0] = (0.0, len(RESTART_DELAYS))
    crew.look()
    assert (crew.next_start > 0.0) is waits


def crew_of(worker: Worker, transport: MemoryTransport) -> WorkerGroup:
    plan = Plan(Role.COMMAND, 1, "commands", 1, ["g"])
    crew = WorkerGroup(
        Conf(), plan, transport, children=ContextChildren(), supervisor="s", verbosity=0, clock=lambda: 0.0
    )
    crew._workers[0] = worker
    return crew


class FailingChildren:
    """Starts a process that lives, but for the first times."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = [*errors]
        self.jobs: list[Job] = []

    def start(self, job: Job) -> Started:
        self.jobs.append(job)
        if self._errors:
            raise self._errors.pop(0)
        ours, _ = multiprocessing.Pipe()
        return Started(EndsWhenAskedFor(), ours, [])  # type: ignore[arg-type]

    def close(self) -> None:
        pass


def test_whatever_the_start_of_a_worker_raises_it_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    children = FailingChildren(EOFError(), BlockingIOError(11, "no process"), ImportError("broken"))
    plan = Plan(Role.COMMAND, 2, "commands", 1, ["g"])
    crew = WorkerGroup(Conf(), plan, MemoryTransport(), children=children, supervisor="s", verbosity=0)
    crew.start_missing()
    assert (len(crew.workers), crew.next_start) == (0, 0.0)
    began = time.monotonic()
    crew.start_missing()
    assert len(crew.workers) == 1, "the third start has failed, the fourth has not"
    assert crew._restarts[0][0] >= began + RESTART_DELAYS[1]
    wait_until(lambda: crew.next_start == 0.0, "the delay is over")
    crew.start_missing()
    assert len(crew.workers) == 2
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [
        EOFError,
        BlockingIOError,
        ImportError,
    ]


def test_a_worker_that_can_never_be_started_counts_as_failing() -> None:
    children = FailingChildren(*[EOFError() for _ in range(FAILING_AFTER)])
    plan = Plan(Role.COMMAND, 1, "commands", 1, ["g"])
    crew = WorkerGroup(Conf(), plan, MemoryTransport(), children=children, supervisor="s", verbosity=0)
    for tries in range(FAILING_AFTER):
        assert crew.failing == 0
        crew._restarts[0] = (0.0, tries)
        crew.start_missing()
    assert crew.failing == 1


def test_an_event_worker_has_two_notes_for_each_subscriber_and_is_killed_when_one_hangs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    children = FailingChildren()
    transport = MemoryTransport()
    transport.create_topic("events", 4)
    plan = Plan(Role.EVENT, 1, "events", 4, ["a", "b"], [50.0, 0.0])
    crew = WorkerGroup(Conf(), plan, transport, children=children, supervisor="s", verbosity=0)
    crew.start_missing()
    (job,), (worker,) = children.jobs, crew.workers
    assert (job.notes, job.arguments[-1]) == (4, "a\nb")
    process: Any = LivesUntilKilled()
    worker.process, worker.notes = process, [position_of(1, 5), 1, position_of(3, 8), 1]
    crew.look()
    wait_until(lambda: crew.look() or process.exitcode, "it is killed")  # type: ignore[func-returns-value]
    assert "hangs in b, at queue 3, offset 8, for more than 0.0 s; killing it" in caplog.text
    crew.look()
    assert transport.acquire("a", "events", 1, "next", 60).deaths == {5: 1}
    assert transport.acquire("b", "events", 3, "next", 60).deaths == {8: 1}
    assert transport.acquire("b", "events", 1, "next", 60).deaths == {}


class LivesUntilKilled:
    pid = 1
    exitcode: int | None = None

    def is_alive(self) -> bool:
        return self.exitcode is None

    def kill(self) -> None:
        self.exitcode = -9

    def join(self) -> None:
        pass


@pytest.mark.parametrize(("beats", "patience"), [(True, 6.0), (False, STARTS_WITHIN)])
def test_silent_worker_is_killed_when_it_had_the_time_to_start_or_to_end_its_work(beats: bool, patience: float) -> None:
    now = [0.0]
    conf = make_conf({"WORKERS": {"GRACE": 1.0}, "COMMANDS": {"TIME_LIMIT": 5.0}})
    plan = Plan(Role.COMMAND, 1, "commands", 1, ["g"])
    crew = WorkerGroup(
        conf, plan, Buries(), children=FailingChildren(), supervisor="s", verbosity=0, clock=lambda: now[0]
    )
    crew.start_missing()
    (worker,) = crew.workers
    process: Any = LivesUntilKilled()
    worker.process, worker.notes = process, [NOTHING_IN_FLIGHT]
    worker.connection, theirs = multiprocessing.Pipe()
    if beats:
        send(theirs, {})
    while now[0] <= patience:
        crew.look()
        assert process.exitcode is None
        now[0] += 0.5
    crew.look()
    assert process.exitcode == -9


def test_no_time_counts_in_which_the_supervisor_did_not_look() -> None:
    """All processes were suspended for an hour. The supervisor is the first that goes on."""
    now = [0.0]
    plan = Plan(Role.EVENT, 1, "events", 1, ["a"], [60.0])
    transport = MemoryTransport()
    transport.create_topic("events", 1)
    crew = WorkerGroup(
        Conf(), plan, transport, children=FailingChildren(), supervisor="s", verbosity=0, clock=lambda: now[0]
    )
    crew.start_missing()
    (worker,) = crew.workers
    process: Any = LivesUntilKilled()
    worker.process, worker.notes = process, [position_of(0, 5), 1]
    worker.connection, theirs = multiprocessing.Pipe()
    send(theirs, {})
    crew.look()
    now[0] = 3_600.0
    crew.look()
    assert (process.exitcode, crew.beating) == (None, 1), "it had no time to beat, nor to end its work"
    for _ in range(100):
        now[0] += 0.5
        crew.look()
    assert (process.exitcode, crew.beating) == (None, 0)
    for _ in range(20):
        now[0] += 0.5
        crew.look()
    assert process.exitcode == -9, "its work takes longer than its limit"
