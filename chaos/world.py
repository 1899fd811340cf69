"""The world of one round: services, supervisors, Celery, clients, dials and journals."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from celery import Celery

from chaos.dials import VARIABLE, Dials
from chaos.errors import ChaosError
from chaos.journal import Journal
from chaos.names import (
    BEAT,
    BROKER,
    CELERY,
    CLIENTS,
    COMMANDS,
    ENODE,
    EVENTS,
    GROUP,
    GUEST,
    HOSTS,
    OBSERVERS,
    ONLOOKER,
    QUEUES,
    Setup,
)
from chaos.processes import PROJECT, Child, Supervisor
from chaos.services import Services
from sample_project.layers import merged

MIGRATE_SECONDS = 120.0
TASK_SECONDS = 2.0


class World:
    """A world. ``with`` makes it and ends it. ``directory`` is that of the processes, ``run`` that of the checker. Only
    the driver's thread uses it.
    """

    def __init__(self, setup: Setup, directory: Path, run: Path, seed: int) -> None:
        self.setup, self.directory, self.run, self.seed = setup, directory, run, seed
        self.faults = Journal(run / "faults.jsonl")
        self.ended_by_themselves: list[str] = []
        for part in ("tmp", "logs"):
            (directory / part).mkdir()
        self.dials = {name: Dials(self._dials_of(name)) for name in (*HOSTS, GUEST, CLIENTS, CELERY, BEAT, BROKER)}
        self.services = Services(setup, self._base_environment(BROKER))
        self._children: dict[str, Child] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> World:
        try:
            self._stack.enter_context(self.services)
            self._migrate()
            for topic in (COMMANDS, EVENTS):
                self.services.transport.create_topic(topic, QUEUES)
                self.keep_all(topic)
            self._make_children()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()
        for dials in self.dials.values():
            dials.close()
        self.faults.close()

    def _migrate(self) -> None:
        aliases = ["default", *(f"events{number}" for number in range(len(self.services.shard_urls)))]
        commands = [["manage.py", "migrate", "--verbosity=0", f"--database={alias}"] for alias in aliases]
        with ThreadPoolExecutor() as migrating:
            list(migrating.map(self._manage, commands))

    def _manage(self, arguments: Sequence[str]) -> None:
        assignments = [f"{name}={value}" for name, value in self._environment(CLIENTS).items()]
        done = subprocess.run(
            ["/usr/bin/env", *assignments, sys.executable, *arguments],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=MIGRATE_SECONDS,
        )
        if done.returncode:
            raise ChaosError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")

    def keep_all(self, topic: str) -> None:
        """Make the queue keep all messages of a topic, whatever is committed. Raises `QueueError`."""
        transport = self.services.transport
        for queue in range(transport.queue_count(topic)):
            transport.acquire(ONLOOKER, topic, queue, ONLOOKER, 1)

    # -- processes ------------------------------------------------------------------------------------------------

    def _make_children(self) -> None:
        supervising: list[str | Path] = [sys.executable, PROJECT / "manage.py", "runprocessors", "--processes", "1"]
        for name in (*HOSTS, GUEST):
            self._add(Supervisor(name, supervising, self._environment(name), self._log_of(name)))
        options = ["--pool=prefork", "--concurrency=1", "--without-mingle", "--without-gossip", "--loglevel=INFO"]
        for name, command in ((CELERY, ["worker", *options]), (BEAT, ["beat", "--loglevel=INFO"])):
            celery: list[str | Path] = [sys.executable, "-m", "celery", "-A", "sample_project", *command]
            self._add(Child(name, celery, self._environment(name), self._log_of(name)))
        for name in (*HOSTS, CELERY, BEAT):
            self._children[name].start()

    def _add(self, child: Child) -> None:
        self._children[child.name] = child
        self._stack.callback(child.kill_group)

    def make_client(self, name: str) -> Child:
        """Return a process of senders, which is not started yet."""
        sending = [sys.executable, "-m", "chaos.clients", name, str(self.seed)]
        child = Child(name, sending, self._environment(CLIENTS), self._log_of(name))
        self._stack.callback(child.kill_group)
        return child

    @property
    def children(self) -> list[Child]:
        """All processes except the clients."""
        return list(self._children.values())

    def child(self, name: str) -> Child:
        return self._children[name]

    def supervisor(self, name: str) -> Supervisor:
        child = self._children[name]
        assert isinstance(child, Supervisor), name
        return child

    def tend(self) -> None:
        """Restart the processes that should run and have ended, as a service manager does."""
        for child in self.children:
            if child.wanted and not child.is_running:
                if not child.is_restarting:
                    self.ended_by_themselves.append(f"{child.name} with status {child.status}")
                child.start()

    def send_task(self, name: str, *arguments: str) -> None:
        """Send a task to Celery. Raises kombu's `OperationalError` if its broker is unavailable."""
        options = {"socket_timeout": TASK_SECONDS, "socket_connect_timeout": TASK_SECONDS}
        with contextlib.closing(Celery(broker=self.services.celery_url, set_as_current=False)) as celery:
            celery.conf.broker_transport_options = options
            celery.send_task(name, arguments, retry=False, ignore_result=True)

    # -- the environment of the processes -------------------------------------------------------------------------

    def _dials_of(self, name: str) -> Path:
        return self.directory / f"{name}.dials"

    def _log_of(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    def _base_environment(self, name: str) -> dict[str, str]:
        return {
            "DJANGO_SETTINGS_MODULE": "chaos.settings",
            "CHAOS_DIRECTORY": str(self.run),
            "CHAOS_ENODE": json.dumps(dict(ENODE)),
            VARIABLE: str(self._dials_of(name)),
            "PYTHONPATH": f"{PROJECT / 'chaos' / 'preload'}:{PROJECT}",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.directory / "tmp"),
        }

    def _environment(self, name: str) -> dict[str, str]:
        return {
            **self._base_environment(name),
            "DATABASE_URL": self.services.database_url,
            "EVENT_DATABASE_URLS": " ".join(self.services.shard_urls),
            "REDIS_URL": self.services.celery_url,
            "CHAOS_ENODE": json.dumps(merged(ENODE, {"QUEUE": self.services.queue_setting(name)})),
        }

    # -- the description for the checker --------------------------------------------------------------------------

    def describe(self, *, finished: bool) -> None:
        """Write ``run.json``."""
        services = self.services
        about = {
            "seed": self.seed,
            "transport": self.setup.transport,
            "read_database": services.read_database,
            "shards": services.shards,
            "queue": services.queue_left,
            "command_topic": COMMANDS,
            "event_topic": EVENTS,
            "group": GROUP,
            "subscribers": list(OBSERVERS),
            "faults": sorted(self.setup.faults),
            "finished": finished,
        }
        (self.run / "run.json").write_text(json.dumps(about, indent=1))
