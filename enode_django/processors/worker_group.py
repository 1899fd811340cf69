"""The workers of one role: started, watched, buried.

A group does not assign queues. Its workers are members of consumer groups, beside the workers of other hosts. The queue
is told only which of them are dead, and their work in hand.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from math import inf
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from enode_django.conf.groups import Conf
from enode_django.equeue.transport import Transport
from enode_django.eventing.in_flight import is_of_a_sweep
from enode_django.processes.children import Children, ending
from enode_django.processors.control import Grace, Report, Role, receive, send
from enode_django.processors.dead_workers import DeadWorkers
from enode_django.processors.exit_statuses import is_nobodys_fault
from enode_django.processors.statistics import add_reports, without_momentary
from enode_django.processors.suspects import (
    Hand,
    Overdue,
    Patience,
    Seat,
    WatchedTime,
    ended_well,
    found_with,
    hands_of,
)
from enode_django.processors.worker import WorkerOptions, worker_job, worker_name

logger = logging.getLogger("enode_django.supervisor")

RESTART_DELAYS = (0.0, 0.5, 1.0, 2.0, 5.0)
BEATS_WITHIN = 5.0
"""The highest age of a beating worker's last sign of life, in seconds."""
STARTS_WITHIN = 60.0
"""The least seconds that a worker has until its first sign of life: it imports the project."""
FAILING_AFTER = 10
"""Short lives in a row after which a worker counts as failing."""
HEALTHY_AFTER = 10.0
"""Seconds that a worker must live for its next restart to be immediate again."""
LONGEST_TURN = 2.0
"""The seconds that the time from one look at the workers to the next counts for at most. A supervisor that looks every
half second was suspended if it took longer, or waited for the queue."""


class Worker:
    """One worker process, as its supervisor sees it. Its times are seconds of a `WatchedTime`."""

    def __init__(self, children: Children, options: WorkerOptions, seats: Sequence[Seat], now: float) -> None:
        self.name = options.name
        self.process, self.connection, self.notes = children.start(worker_job(options, [one.group for one in seats]))
        self.started = now
        self.last_beat: float | None = None
        self.report: Report = {}
        self.patience = Patience(seats)
        self.stalled = False
        self.is_killed = False

    def hear(self) -> bool:
        """Receive the worker's messages. Return True if there was a sign of life."""
        reports = list(_reports(self.connection))
        if reports:
            self.report = reports[-1]
        return bool(reports)

    def stop(self, grace: Grace) -> None:
        try:
            send(self.connection, grace)
        except OSError:
            logger.debug("worker %s does not listen any more", self.name)

    def kill(self) -> None:
        self.is_killed = True
        self.process.kill()

    def close(self) -> None:
        self.process.join()
        self.connection.close()


class Plan(NamedTuple):
    """A number of workers of a role, which are members of these groups on its topic. Event workers have
    ``time_limits``, in seconds, one for each group."""

    role: Role
    processes: int
    topic: str
    queues: int
    groups: Sequence[str] = ()
    time_limits: Sequence[float] = ()

    def seats(self, conf: Conf) -> Sequence[Seat]:
        """Return the threads of each worker that note their work in hand."""
        if self.role is Role.EVENT:
            return [Seat(*one) for one in zip(self.groups, self.time_limits, strict=True)]
        return [Seat(group, conf.COMMANDS.TIME_LIMIT) for group in self.groups] * conf.command_mailboxes


class WorkerGroup:
    """The workers of one role. All methods are called by the supervisor's thread. `start_missing`, `look` and `reap`
    may block: they start processes, or tell the queue of dead workers."""

    def __init__(
        self,
        conf: Conf,
        plan: Plan,
        transport: Transport,
        *,
        children: Children,
        supervisor: str,
        verbosity: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._children = children
        self._watched = WatchedTime(LONGEST_TURN, clock=clock)
        self.role = plan.role
        self.planned = plan.processes
        self._conf = conf
        self._verbosity = verbosity
        self._supervisor = supervisor
        self._seats = plan.seats(conf)
        self._title = "worker" if plan.role is Role.COMMAND else "event worker"
        self._workers: dict[int, Worker] = {}
        self._restarts: dict[int, tuple[float, int]] = dict.fromkeys(range(plan.processes), (0.0, 0))
        self._past: dict[str, Any] = {}
        self.restarts = 0
        limits = [one.time_limit for one in self._seats if one.time_limit < inf]
        self._patience = conf.WORKERS.GRACE + max([conf.COMMANDS.TIME_LIMIT, *limits])
        self._dead = DeadWorkers(transport, plan.topic, plan.groups)

    @property
    def workers(self) -> Sequence[Worker]:
        return list(self._workers.values())

    @property
    def beating(self) -> int:
        """The number of workers that have shown a sign of life lately."""
        beats = [worker.last_beat for worker in self.workers if worker.last_beat is not None]
        return sum(1 for last_beat in beats if self._watched.seconds - last_beat <= BEATS_WITHIN)

    @property
    def failing(self) -> int:
        """The number of workers that are of no use because they die soon after each start."""
        now = self._watched.seconds
        started = {number: worker.started for number, worker in self._workers.items()}
        lives = ((tries, now - started.get(number, now)) for number, (_, tries) in self._restarts.items())
        return sum(is_failing(tries, lived) for tries, lived in lives)

    @property
    def next_start(self) -> float:
        """Seconds until `start_missing` has something to do."""
        missing = [due for number, (due, _) in self._restarts.items() if number not in self._workers]
        return max(0.0, min(missing, default=inf) - time.monotonic())

    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self.workers if worker.process.pid is not None]

    def reports(self) -> list[dict[str, Any]]:
        """Return the reports of all workers, ended ones included."""
        return [self._past, *(worker.report for worker in self.workers)]

    # -- starting and watching ------------------------------------------------------------------------------------

    def start_missing(self) -> None:
        for number, (due, _) in self._restarts.items():
            if number not in self._workers and due <= time.monotonic():
                self._start(number)

    def _start(self, number: int) -> None:
        """Start a worker. An error, which must not end the living workers, is logged, and the start tried again."""
        name = worker_name(self._supervisor, self.role, number)
        options = WorkerOptions(name, self.role, self._conf.WORKERS.GRACE, self._verbosity)
        try:
            worker = Worker(self._children, options, self._seats, self._watched.seconds)
        except Exception:  # the process that forks was killed, memory or process ids are used up, a module is broken
            logger.exception("%s %s cannot be started; trying again", self._title, name)
            tries = self._restarts[number][1]
            self._restarts[number] = (time.monotonic() + _restart_delay(tries), tries + 1)
            return
        self._workers[number] = worker
        logger.info("started %s %s, process %s", self._title, name, worker.process.pid)

    def look(self) -> None:
        """Receive the workers' messages, bury the dead, kill those that hang."""
        self._watched.turn()
        for number, worker in list(self._workers.items()):
            is_alive = worker.process.is_alive()  # checked before `_hear`, so that the last messages are read
            self._hear(worker)
            if not is_alive:
                self._bury(number, worker)
            else:
                self._watch(worker)
        self._dead.tick()

    def _hear(self, worker: Worker) -> None:
        if worker.hear():
            worker.last_beat = self._watched.seconds
            worker.stalled = False

    def _watch(self, worker: Worker) -> None:
        now, pid, has_beaten = self._watched.seconds, worker.process.pid, worker.last_beat is not None
        silent = now - (worker.started if worker.last_beat is None else worker.last_beat)
        if has_beaten and not worker.stalled and silent > self._conf.WORKERS.LEASE:
            logger.warning("worker %s, process %s, is silent; its queues go to others", worker.name, pid)
            worker.stalled = True
        patience = self._patience if has_beaten else max(self._patience, STARTS_WITHIN)
        if silent > patience and not worker.is_killed:
            logger.error("worker %s, process %s, is silent for %.1f s; killing it", worker.name, pid, silent)
            worker.kill()
        overdue = worker.patience.overdue(self._hands_of(worker), now)
        if overdue is not None and not worker.is_killed:
            what, limit = self._described(overdue), overdue.seat.time_limit
            logger.error(
                "worker %s, process %s, hangs in %s for more than %.1f s; killing it", worker.name, pid, what, limit
            )
            worker.kill()

    def _hands_of(self, worker: Worker) -> list[Hand]:
        return hands_of(worker.notes, self._seats)

    def _described(self, overdue: Overdue) -> str:
        place = f"queue {overdue.queue}, offset {overdue.offset}"
        if self.role is Role.COMMAND:
            return f"the command at {place}"
        if is_of_a_sweep(overdue.offset):
            place = "a place that a sweep has come to"
        return f"{overdue.seat.group}, at {place},"

    def _bury(self, number: int, worker: Worker) -> None:
        """Remove a worker that has ended: log that, tell the queue its work in hand, and plan the start of another."""
        status = self._remove(number, worker)
        self._restarts[number] = self._next_start(number, worker)
        self.restarts += 1
        hands = self._hands_of(worker)
        if ended_well(status, hands):
            logger.warning("worker %s ended", worker.name)
            self._dead.add(worker.name, {})
        else:
            logger.error("worker %s died: %s; starting another", worker.name, ending(status))
            self._dead.add(worker.name, found_with(hands, self._seats))

    def _remove(self, number: int, worker: Worker) -> int | None:
        del self._workers[number]
        self._past = add_reports([self._past, without_momentary(worker.report)])
        status = worker.process.exitcode
        if is_nobodys_fault(status):
            worker.notes = [0] * len(worker.notes)
        worker.close()
        return status

    def _next_start(self, number: int, worker: Worker) -> tuple[float, int]:
        is_healthy = self._watched.seconds - worker.started > HEALTHY_AFTER
        tries = 0 if is_healthy else self._restarts[number][1]
        return time.monotonic() + _restart_delay(tries), tries + 1

    # -- ending ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Tell all workers to drain and end; `reap` removes them then."""
        for worker in self.workers:
            worker.stop(self._conf.WORKERS.GRACE)

    def reap(self) -> bool:
        """Remove the workers that have ended. Return True if each of them had finished everything."""
        clean = True
        self._watched.turn()
        for number, worker in list(self._workers.items()):
            is_alive = worker.process.is_alive()  # checked first, as in `look`
            worker.hear()
            if not is_alive and self._remove(number, worker) != 0:
                clean = False
                self._dead.add(worker.name, {})  # it may have been killed for lack of time: no message is to blame
        self._dead.tick()
        return clean

    def kill(self) -> None:
        for worker in self.workers:
            worker.kill()


def _restart_delay(tries: int) -> float:
    return RESTART_DELAYS[min(tries, len(RESTART_DELAYS) - 1)]


def is_failing(tries: int, lived: float) -> bool:
    """Return True if a worker is of no use: it was started ``tries`` times in a row after short lives, and has lived
    for only ``lived`` seconds now (0 if it is not started yet).

    >>> is_failing(FAILING_AFTER, 3.0), is_failing(FAILING_AFTER, 30.0), is_failing(FAILING_AFTER - 1, 0.0)
    (True, False, False)
    """
    return tries >= FAILING_AFTER and lived <= HEALTHY_AFTER


def _reports(connection: Connection) -> Iterator[Report]:
    try:
        while connection.poll():
            yield receive(connection)
    except (EOFError, OSError):
        return
