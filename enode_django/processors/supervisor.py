"""The supervisor of one ``runprocessors``: it keeps the workers running, from the start to the end."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from enode_django.conf.groups import Conf
from enode_django.equeue.stops import Stops
from enode_django.equeue.transport import Transport
from enode_django.processes.children import Children
from enode_django.processors.broker import BrokerProcess
from enode_django.processors.control import Role
from enode_django.processors.statistics import add_reports
from enode_django.processors.wakeup import Wakeup
from enode_django.processors.worker_group import Plan, Worker, WorkerGroup

logger = logging.getLogger("enode_django.supervisor")

TICK = 0.5
REPORT_INTERVAL = 0.2
BEYOND_GRACE = 5.0
"""Seconds that a worker has to end after its grace time."""


class Supervisor:
    """`run` blocks until a signal. `stop` may be called by a signal handler: once to drain, again to abort."""

    def __init__(
        self,
        conf: Conf,
        plans: Iterable[Plan],
        transport: Transport,
        children: Children,
        *,
        broker: BrokerProcess | None = None,
        name: str,
        verbosity: int,
        on_report: Callable[[dict[str, Any]], None],
    ) -> None:
        self._conf = conf
        self._broker = broker
        self._on_report = on_report
        self._groups = [
            WorkerGroup(conf, plan, transport, children=children, supervisor=name, verbosity=verbosity)
            for plan in plans
        ]
        self._stops = Stops()
        self._wakeup = Wakeup()
        self._next_report = 0.0

    def stop(self) -> None:
        self._stops.add()
        self._wakeup.wake()

    def run(self) -> int:
        """Supervise until `stop`. Return the exit status: 0 if every worker drained in time."""
        try:
            # Under --reload this is not the main thread, whose end is that of the process.
            while not self._stops.count and threading.main_thread().is_alive():
                self._look()
            return self._shut_down()
        finally:
            self._kill()

    def _look(self) -> None:
        for group in self._groups:
            group.start_missing()
        connections = [worker.connection for worker in self._workers()]
        ends = self._broker.ends if self._broker is not None else []
        pause = min([TICK, *(group.next_start for group in self._groups)])
        self._wakeup.wait([*connections, *self._sentinels(), *ends], pause)
        for group in self._groups:
            group.look()
        if self._broker is not None:
            self._broker.look()
        self._tell()

    def _tell(self) -> None:
        """Report, but not at every turn: adding up is the most expensive thing that is done here."""
        now = time.monotonic()
        if now >= self._next_report:
            self._next_report = now + REPORT_INTERVAL
            self._on_report(self.report())

    def _workers(self) -> list[Worker]:
        return [worker for group in self._groups for worker in group.workers]

    def _sentinels(self) -> list[int]:
        return [worker.process.sentinel for worker in self._workers()]

    def _kill(self) -> None:
        for group in self._groups:
            group.kill()

    def _shut_down(self) -> int:
        logger.info("draining; a second signal aborts")
        for group in self._groups:
            group.stop()
        deadline = time.monotonic() + self._conf.WORKERS.GRACE + BEYOND_GRACE
        clean = True
        while self._workers():
            self._wakeup.wait(self._sentinels(), TICK)
            self._tell()
            for group in self._groups:
                clean = group.reap() and clean
            if (left := len(self._workers())) and (self._stops.count > 1 or time.monotonic() > deadline):
                logger.error("%s; killing %d workers", "aborted" if self._stops.count > 1 else "out of time", left)
                self._kill()
                clean = False
                self._stops.count = 1
                deadline = float("inf")
        self._on_report(self.report())
        return 0 if clean else 1

    def report(self) -> dict[str, Any]:
        """Return the sums over all workers, ended ones included, and the process ids of those that live."""
        pids = {role: [pid for group in self._groups if group.role is role for pid in group.pids()] for role in Role}
        return {
            **add_reports(report for group in self._groups for report in group.reports()),
            "restarts": sum(group.restarts for group in self._groups),
            "planned_workers": self._planned(Role.COMMAND),
            "planned_event_workers": self._planned(Role.EVENT),
            "beating_workers": sum(group.beating for group in self._groups),
            "failing_workers": sum(group.failing for group in self._groups),
            "stopping": self._stops.count > 0,
            "workers": len(pids[Role.COMMAND]),
            "pids": pids[Role.COMMAND],
            "event_workers": len(pids[Role.EVENT]),
            "event_pids": pids[Role.EVENT],
            "broker_pid": self._broker.pid if self._broker is not None else None,
        }

    def _planned(self, role: Role) -> int:
        return sum(group.planned for group in self._groups if group.role is role)


def supervisor_name() -> str:
    """Return a name in ASCII that differs for each start: in a container even the process id is the same again."""
    host = re.sub(r"[^\w.-]", "_", socket.gethostname()[:20], flags=re.ASCII)
    return f"enode-{host}-{os.getpid()}-{os.urandom(3).hex()}"
