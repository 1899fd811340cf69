"""Keeps the workers of one ``runprocessors`` running and divides the queues among them.

The division is made here and nowhere else. Who really owns a queue is decided by the transport's leases: a worker
that is told to take a queue waits until its owner has drained and released it, or its lease has ended.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from enode_django.commanding.entries import queue_and_offset
from enode_django.conf import Conf
from enode_django.equeue.assignment import divide
from enode_django.processors.control import Assignment, Beat, Stop, receive, send
from enode_django.processors.statistics import add_reports
from enode_django.processors.suspicion import Suspicion, ended_well
from enode_django.processors.worker import STOP_SIGNALS, WorkerOptions, new_notes, run_worker, worker_name

logger = logging.getLogger("enode_django.supervisor")

TICK = 0.1
RESTART_DELAYS = (0.0, 0.5, 1.0, 2.0, 5.0)
HEALTHY_AFTER = 10.0
"""Seconds a worker must live for its next restart to be immediate again."""
GONE_KEPT = 64


class Worker:
    """One worker process, as its supervisor sees it."""

    def __init__(self, options: WorkerOptions, mailboxes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = options.name
        self.notes = new_notes(context, mailboxes)
        self.connection, theirs = context.Pipe()
        # A daemon is sent SIGTERM, which drains it, when its parent exits without the supervisor's doing (--reload).
        self.process = context.Process(
            target=run_worker, args=(options, theirs, self.notes), name=options.name, daemon=True
        )
        _start_undisturbed(self.process)
        theirs.close()
        self.started = time.monotonic()
        self.last_beat = 0.0
        self.report: dict[str, Any] = {}
        self.queues: frozenset[int] = frozenset()
        self.stalled = False
        self.is_killed = False

    @property
    def is_ready(self) -> bool:
        return self.last_beat > 0 and not self.stalled

    def kill(self) -> None:
        self.is_killed = True
        self.process.kill()

    def close(self) -> None:
        self.process.join()
        self.connection.close()


class Supervisor:
    """`run` blocks until a signal. `stop` may be called by a signal handler: once to drain, again to abort."""

    def __init__(
        self, conf: Conf, processes: int, queues: int, *, verbosity: int, on_report: Callable[[dict[str, Any]], None]
    ) -> None:
        self._conf = conf
        self._verbosity = verbosity
        self._queues = range(queues)
        self._on_report = on_report
        self._name = f"enode-{socket.gethostname()[:20]}-{os.getpid()}"
        self._workers: dict[int, Worker] = {}
        self._restarts: dict[int, tuple[float, int]] = dict.fromkeys(range(processes), (0.0, 0))
        self._gone: list[str] = []
        self._past_reports: list[dict[str, Any]] = []
        self._patience = conf.GRACE + conf.HANDLER_TIME_LIMIT
        self._suspicion = Suspicion(conf.MAX_ABNORMAL_ENDS, conf.HANDLER_TIME_LIMIT)
        self._stops = 0

    def stop(self) -> None:
        self._stops += 1

    def run(self) -> int:
        """The exit status: 0 when every worker drained in time."""
        try:
            # Under --reload this is not the main thread, whose end is the process's.
            while not self._stops and threading.main_thread().is_alive():
                self._start_missing()
                self._look()
            return self._shut_down()
        finally:
            for worker in self._workers.values():
                worker.kill()

    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers.values() if worker.process.pid is not None]

    # -- starting and watching ------------------------------------------------------------------------------------

    def _start_missing(self) -> None:
        for number, (due, _) in self._restarts.items():
            if number not in self._workers and due <= time.monotonic():
                options = WorkerOptions(worker_name(self._name, number), self._conf.GRACE, self._verbosity)
                worker = self._workers[number] = Worker(options, self._conf.COMMAND_MAILBOXES)
                logger.info("started worker %s, process %s", worker.name, worker.process.pid)

    def _look(self) -> None:
        waitables: list[Any] = [worker.connection for worker in self._workers.values()]
        waitables += [worker.process.sentinel for worker in self._workers.values()]
        wait(waitables, TICK)
        for number, worker in list(self._workers.items()):
            self._hear(worker)
            if not worker.process.is_alive():
                self._bury(number, worker)
            else:
                self._watch(worker)
        self._on_report(self.report())

    def _hear(self, worker: Worker) -> None:
        for message in _messages(worker.connection):
            if isinstance(message, Beat):
                first = not worker.last_beat
                worker.last_beat = time.monotonic()
                worker.report = message.report
                if first or worker.stalled:
                    worker.stalled = False
                    self._divide()

    def _watch(self, worker: Worker) -> None:
        now = time.monotonic()
        if worker.is_ready and now - worker.last_beat > self._conf.LEASE:
            logger.warning("worker %s, process %s, is silent; its queues go to others", worker.name, worker.process.pid)
            worker.stalled = True
            self._divide()
        silent = now - (worker.last_beat or worker.started)
        if silent > self._patience and not worker.is_killed:
            logger.error(
                "worker %s, process %s, is silent for %.1f s; killing it", worker.name, worker.process.pid, silent
            )
            worker.kill()
        overdue = self._suspicion.overdue(worker.name, worker.notes, now)
        if overdue is not None and not worker.is_killed:
            queue, offset = queue_and_offset(overdue)
            logger.error(
                "worker %s, process %s, hangs in the command at queue %d, offset %d for more than %.1f s; killing it",
                worker.name,
                worker.process.pid,
                queue,
                offset,
                self._conf.HANDLER_TIME_LIMIT,
            )
            worker.kill()

    def _bury(self, number: int, worker: Worker) -> None:
        """A worker has ended: name it, note what it was doing, give its queues away, start another."""
        del self._workers[number]
        self._past_reports.append(worker.report)
        self._gone = [*self._gone[1 - GONE_KEPT :], worker.name]
        status = worker.process.exitcode
        worker.close()
        due, tries = self._next_start(number, worker)
        self._restarts[number] = (due, tries)
        if ended_well(status, worker.notes):
            logger.warning("worker %s ended", worker.name)
        else:
            logger.error("worker %s died: %s; starting another", worker.name, _ending(status))
            for position in self._suspicion.died(worker.name, worker.notes):
                queue, offset = queue_and_offset(position)
                logger.error("command at queue %d, offset %d ends workers; it goes to the dead letters", queue, offset)
        self._divide()

    def _next_start(self, number: int, worker: Worker) -> tuple[float, int]:
        now = time.monotonic()
        tries = 0 if now - worker.started > HEALTHY_AFTER else self._restarts[number][1]
        return now + RESTART_DELAYS[min(tries, len(RESTART_DELAYS) - 1)], tries + 1

    def _divide(self) -> None:
        ready = {worker.name: worker for worker in self._workers.values() if worker.is_ready}
        current = {name: worker.queues for name, worker in ready.items()}
        for name, queues in divide(self._queues, list(ready), current).items():
            ready[name].queues = queues
        for worker in ready.values():
            self._tell(worker, self._assignment(worker))
        for worker in self._workers.values():
            if worker.stalled and worker.queues:
                worker.queues = frozenset()

    def _assignment(self, worker: Worker) -> Assignment:
        return Assignment(
            sorted(worker.queues), self._gone, sorted(self._suspicion.suspects), sorted(self._suspicion.condemned)
        )

    def _tell(self, worker: Worker, message: Assignment | Stop) -> None:
        try:
            send(worker.connection, message)
        except OSError:
            logger.debug("worker %s does not listen any more", worker.name)

    # -- ending ---------------------------------------------------------------------------------------------------

    def _shut_down(self) -> int:
        logger.info("draining; a second signal aborts")
        for worker in self._workers.values():
            self._tell(worker, Stop(self._conf.GRACE))
        deadline = time.monotonic() + self._conf.GRACE + 5.0
        clean = True
        while self._workers:
            wait([worker.process.sentinel for worker in self._workers.values()], TICK)
            for number, worker in list(self._workers.items()):
                for message in _messages(worker.connection):
                    if isinstance(message, Beat):
                        worker.report = message.report
                if not worker.process.is_alive():
                    clean = clean and worker.process.exitcode == 0
                    self._past_reports.append(worker.report)
                    worker.close()
                    del self._workers[number]
            if self._workers and (self._stops > 1 or time.monotonic() > deadline):
                logger.error(
                    "%s; killing %d workers", "aborted" if self._stops > 1 else "out of time", len(self._workers)
                )
                for worker in self._workers.values():
                    worker.kill()
                clean = False
                self._stops = 1
                deadline = float("inf")
        self._on_report(self.report())
        return 0 if clean else 1

    def report(self) -> dict[str, Any]:
        """What all workers have done, ended ones too."""
        reports = [*self._past_reports, *(worker.report for worker in self._workers.values())]
        if len(self._past_reports) > GONE_KEPT:
            self._past_reports = [add_reports(self._past_reports)]
        return {**add_reports(reports), "workers": len(self._workers), "pids": self.pids()}


def _start_undisturbed(process: BaseProcess) -> None:
    """Start a process with SIGINT and SIGTERM blocked. The mask is inherited, so that a signal to the whole group
    cannot end a worker that has not got as far as to handle it; `run_worker` lifts it."""
    resource_tracker.ensure_running()  # else starting the process does it, and unblocks signals on the way
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _messages(connection: Connection) -> Iterator[Any]:
    try:
        while connection.poll():
            yield receive(connection)
    except (EOFError, OSError):
        return


def _ending(status: int | None) -> str:
    if status is not None and status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"
