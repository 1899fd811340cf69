"""Processes that are killed, paused, started and stopped."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from chaos.faults.base import Fault, Skipped
from chaos.names import BEAT, CELERY, GUEST, HOSTS, Setup
from chaos.processes import Child, Supervisor, signal_process

ROLES = ("command", "event")


class _WorkerFault(Fault):
    """A fault of one worker of a host. The target is "host/role"."""

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return [f"{host}/{role}" for host in HOSTS for role in ROLES]

    def _worker(self) -> int:
        host, role = self.planned.target.split("/")
        workers = self.world.supervisor(host).workers(role)
        if not workers:
            raise Skipped(f"{host} has no {role} worker at the moment")
        return workers[int(self.planned.share * len(workers))]


class KillWorker(_WorkerFault):
    name = "kill-worker"
    weight = 2.0

    def begin(self) -> str:
        pid = self._worker()
        signal_process(pid, signal.SIGKILL)
        return f"killed process {pid}"


class PauseWorker(_WorkerFault):
    """A worker is paused, sometimes for longer than the lease."""

    name = "pause-worker"
    shortest, longest = 0.5, 6.0
    weight = 2.0
    _pid = 0

    def begin(self) -> str:
        self._pid = self._worker()
        signal_process(self._pid, signal.SIGSTOP)
        return f"stopped process {self._pid}"

    def end(self) -> None:
        if self._pid:
            signal_process(self._pid, signal.SIGCONT)


class _HostFault(Fault):
    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return list(HOSTS)

    @property
    def _supervisor(self) -> Supervisor:
        return self.world.supervisor(self.planned.target)


class KillSupervisor(_HostFault):
    """The supervisor alone is killed: its workers must notice that and end. It is started again at the end."""

    name = "kill-supervisor"
    shortest, longest = 0.0, 3.0

    def begin(self) -> str:
        self._supervisor.wanted = False
        self._supervisor.send_signal(signal.SIGKILL)
        self._supervisor.wait_end()
        return f"killed process {self._supervisor.pid}"

    def end(self) -> None:
        self._supervisor.start()


class PauseSupervisor(_HostFault):
    name = "pause-supervisor"
    shortest, longest = 0.5, 6.0

    def begin(self) -> str:
        self._supervisor.send_signal(signal.SIGSTOP)
        return f"stopped process {self._supervisor.pid}"

    def end(self) -> None:
        self._supervisor.send_signal(signal.SIGCONT)


class _GroupFault(Fault):
    """A fault of a process and its children: a supervisor with its workers, Celery, or its beat."""

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return [*HOSTS, CELERY, BEAT]

    @property
    def _child(self) -> Child:
        return self.world.child(self.planned.target)


class KillGroup(_GroupFault):
    """The process and its children are killed at once, as by a power failure. They are started again at the end."""

    name = "kill-group"
    shortest, longest = 0.0, 4.0

    def begin(self) -> str:
        self._child.kill_group()
        return f"killed the group of process {self._child.pid}"

    def end(self) -> None:
        self._child.start()


class PauseGroup(_GroupFault):
    name = "pause-group"
    shortest, longest = 0.5, 6.0

    def begin(self) -> str:
        self._child.signal_group(signal.SIGSTOP)
        return f"stopped the group of process {self._child.pid}"

    def end(self) -> None:
        self._child.signal_group(signal.SIGCONT)


class RestartSupervisor(_HostFault):
    """The supervisor drains, ends and is started again, as by a deployment."""

    name = "restart-supervisor"

    def begin(self) -> str:
        self._supervisor.restart()
        return f"told process {self._supervisor.pid} to end"


class KillForkServer(_HostFault):
    name = "kill-fork-server"

    def begin(self) -> str:
        pid = self._supervisor.fork_server()
        if pid is None:
            raise Skipped(f"{self.planned.target} has no fork server at the moment")
        signal_process(pid, signal.SIGKILL)
        return f"killed process {pid}"


class Guest(Fault):
    """A third supervisor starts, takes its share of the queues, and stops."""

    name = "guest"
    shortest, longest = 4.0, 12.0

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return [GUEST]

    def begin(self) -> str:
        guest = self.world.supervisor(GUEST)
        if guest.is_running:
            raise Skipped("it has not gone yet")
        guest.start()
        return f"started process {guest.pid}"

    def end(self) -> None:
        guest = self.world.supervisor(GUEST)
        guest.wanted = False
        guest.send_signal(signal.SIGTERM)


KINDS: Sequence[type[Fault]] = (
    KillWorker,
    PauseWorker,
    KillSupervisor,
    KillGroup,
    PauseSupervisor,
    PauseGroup,
    RestartSupervisor,
    KillForkServer,
    Guest,
)
