"""A stack with Celery workers and a beat of their own."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import redis
from celery import Celery

from enode_django.batch import NO_MASTER
from sample_project.embedded import Postgres, Redis
from tests import warm
from tests.acceptance.processors import PROJECT, Group
from tests.acceptance.stack import REDIS_STREAMS, Stack
from tests.acceptance.waiting import wait_until

REDIS_DATABASE = 5
APPS = ("django_celery_beat", "tests.acceptance.snapshotting", "tests.acceptance.long_jobs")


class CeleryProcess(Group):
    """``celery worker`` or ``celery beat``, in a process group of its own, with its log."""

    def __init__(self, environment: Mapping[str, str], log: Path, *arguments: str) -> None:
        self.log_path = log
        path = os.pathsep.join([str(PROJECT), *filter(None, [environment.get("PYTHONPATH")])])
        with log.open("wb") as output:
            self._process = warm.start(
                ["-m", "celery", "-A", "sample_project", *arguments, "--loglevel=INFO"],
                cwd=log.parent,  # by which the guard of that directory finds them
                env={**os.environ, **environment, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
                stdout=output,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def kill_all(self) -> None:
        """Kill all processes at once, as a power failure does."""
        self.signal_group(signal.SIGKILL)
        self.wait_gone()


class CeleryStack(Stack):
    """``with`` makes and removes it. ``celery`` sends tasks, and knows their results."""

    def __init__(self, postgres: Postgres, redis: Redis, directory: Path) -> None:
        super().__init__(postgres, redis, directory)
        self._broker = urlunsplit(urlsplit(redis.url)._replace(path=f"/{REDIS_DATABASE}"))
        self.celery = Celery("tests", broker=self._broker, backend=self._broker, set_as_current=False)
        self.schedule: dict[str, Any] = {}
        self._apps += f" {' '.join(APPS)}"

    def __enter__(self) -> CeleryStack:
        super().__enter__()
        with redis.from_url(self._broker) as client:
            client.flushdb()
        self._closing.callback(self.celery.close)
        return self

    def _environment(self, apps: str | None, transport: str, enode: dict[str, Any]) -> dict[str, str]:
        celery = {"CELERY_BEAT_SCHEDULE": self.schedule, "CELERY_BEAT_MAX_LOOP_INTERVAL": 0.5}
        jobs = {"JOBS": {"LEASE": 3.0}, "SPARK": {"MASTER": NO_MASTER}, **enode}
        environment = super()._environment(apps, transport, jobs)
        return {**environment, "REDIS_URL": self._broker, "ACCEPTANCE_CELERY": json.dumps(celery)}

    def start_worker(self, apps: str | None = None, **enode: Any) -> CeleryProcess:
        (worker,) = self.start_workers(1, apps, **enode)
        return worker

    def start_workers(self, count: int, apps: str | None = None, **enode: Any) -> list[CeleryProcess]:
        """Returns when they are ready; ``apps`` are instead of the usual ones."""
        options = ("--pool=prefork", "--concurrency=1", "--without-mingle", "--without-gossip")
        names = [f"--hostname=worker{number}" for number in range(count)]
        workers = [self._start("worker", name, *options, apps=apps, **enode) for name in names]
        for worker in workers:
            worker.wait_for(r"ready\.")
        return workers

    def start_beat(self) -> CeleryProcess:
        return self._start("beat", "--pidfile=")

    def _start(self, *arguments: str, apps: str | None = None, **enode: Any) -> CeleryProcess:
        log = self._directory / f"{self._name}-{len(self._started)}-{arguments[0]}.log"
        process = CeleryProcess(self._environment(apps, REDIS_STREAMS, enode), log, *arguments)
        self._started.append(process)
        return process

    # -- jobs -----------------------------------------------------------------------------------------------------

    def jobs(self, kind: str = "long") -> list[tuple[str, str]]:
        """State and error of each, the oldest first."""
        return self.query("SELECT state, error FROM enode_django_job WHERE kind = %s ORDER BY id", kind)

    def states(self, kind: str = "long") -> list[str]:
        return [state for state, _ in self.jobs(kind)]

    def wait_progress(self, key: str) -> Any:
        """Wait until the running job reports progress under this key. Return the value."""
        asked = "SELECT progress -> %s FROM enode_django_job WHERE state = 'running' AND progress ? %s"
        wait_until(lambda: self.query(asked, key, key), f"a running job tells its {key}")
        return self.query(asked, key, key)[0][0]
