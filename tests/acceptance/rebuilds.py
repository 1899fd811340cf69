"""A stack whose projections are rebuilt by Spark, in processes that can be stopped in the middle of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tests import warm
from tests.acceptance.celery_stack import CeleryStack
from tests.acceptance.processors import PROJECT, Group, is_running
from tests.acceptance.stack import HINDERED, REDIS_STREAMS
from tests.acceptance.waiting import wait_until
from tests.java import INTERPRETED, quick_options

SPARK = {
    "MASTER": "local[2]",
    "CONFIG": {
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": quick_options(),
        "spark.executor.extraJavaOptions": quick_options(),
        **INTERPRETED,
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
    },
}
DAEMONS = str(PROJECT / "tests" / "spark" / "daemons")
"""The directory of the module that Spark's Python daemons import once, instead of each of their workers."""
CLUSTER = "local-cluster[1,1,1024]"
JOBS = {"LEASE": 5.0}
REBUILDS = {"ENGINE": "spark"}
SECONDS = 240.0
"""A rebuild may last this long on a busy machine."""


class Rebuild(Group):
    """``manage.py rebuildprojection``, in a process group of its own, with its log."""

    def __init__(self, environment: Mapping[str, str], log: Path, *arguments: str) -> None:
        self.log_path = log
        with log.open("wb") as output:
            self._process = warm.start(
                [PROJECT / "manage.py", "rebuildprojection", *arguments],
                cwd=log.parent,  # by which the guard of that directory finds them
                env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
                stdout=output,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def close(self) -> None:
        """Processes of Spark in other groups notice the end, and end, too."""
        left = family(self.pid)
        super().close()
        wait_gone(left)


def family(pid: int) -> dict[int, str]:
    """The names of all processes that a process has started, and these in turn."""
    found: dict[int, str] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # Java starts some that end at once
                found[each.pid] = each.name()
    return found


def wait_gone(processes: Mapping[int, str]) -> None:
    wait_until(lambda: not any(map(is_running, processes)), f"the end of {processes}", SECONDS)


def java_of(pid: int) -> int | None:
    """The Java process that a Python process works for; None if it is gone by now."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for parent in psutil.Process(pid).parents():
            if parent.name() == "java":
                return parent.pid
    return None


def driver_of(pid: int) -> int:
    """The process that has started the Java process that a Python process works for."""
    java = java_of(pid)
    assert java is not None, f"process {pid} works for no Java process"
    return psutil.Process(java).ppid()


class RebuildStack(CeleryStack):
    """All processes except the processors have handlers that can be held."""

    def _environment(self, apps: str | None, transport: str, enode: dict[str, Any]) -> dict[str, str]:
        enode = {"SPARK": SPARK, "JOBS": JOBS, "REBUILDS": REBUILDS, **enode}
        environment = super()._environment(apps, transport, enode)
        return {**environment, "TMPDIR": str(self.directory), "PYTHONPATH": DAEMONS}

    @property
    def hindered(self) -> str:
        return f"{self._apps} {HINDERED}"

    def start_rebuild(self, *arguments: str, **enode: Any) -> Rebuild:
        log = self._directory / f"{self._name}-{len(self._started)}-rebuild.log"
        rebuild = Rebuild(self._environment(self.hindered, REDIS_STREAMS, enode), log, *arguments)
        self._started.append(rebuild)
        return rebuild

    def rebuild(self, *arguments: str) -> Rebuild:
        """Run a rebuild to its end, successful or not."""
        rebuild = self.start_rebuild(*arguments)
        rebuild.wait_end(SECONDS)
        return rebuild

    # -- holding handlers -----------------------------------------------------------------------------------------

    def hold(self, subscriber: str) -> None:
        """Let the subscriber's handlers wait after their work until they are released."""
        (self.directory / f"held-{subscriber}").unlink(missing_ok=True)
        (self.directory / f"holding-{subscriber}").touch()

    def release(self, subscriber: str) -> None:
        (self.directory / f"holding-{subscriber}").unlink()

    def held(self, subscriber: str) -> list[int]:
        """The processes in which a handler waits, or has waited since `hold`."""
        with contextlib.suppress(FileNotFoundError):
            return [int(line.split()[0]) for line in (self.directory / f"held-{subscriber}").read_text().splitlines()]
        return []

    def wait_held(self, subscriber: str, by: Group) -> int:
        """The process of a handler that waits now."""
        wait_until(lambda: self.held(subscriber) or not by.is_running, f"a handler of {subscriber} waits", SECONDS)
        assert by.is_running, "it ended early"
        return self.held(subscriber)[0]

    # -- what there is --------------------------------------------------------------------------------------------

    def in_use(self, table: str) -> tuple[Any, ...]:
        """Return the table's oid, the number of its rows, and a digest of the rows and of the transactions that wrote
        them."""
        digest = "md5(string_agg(concat(row, row.xmin), ' ' ORDER BY row::text))"
        (found,) = self.query(f"SELECT '{table}'::regclass::oid, count(*), {digest} FROM {table} AS row")
        assert found[1] > 0, f"{table} is empty"
        return found

    def oid(self, table: str) -> int:
        """Return the oid of the table that is in use under this name."""
        ((oid,),) = self.query("SELECT %s::regclass::oid", table)
        return int(oid)

    def generation(self, subscriber: str) -> int:
        asked = "SELECT generation FROM enode_django_projectiongeneration WHERE subscriber = %s"
        return sum(generation for (generation,) in self.query(asked, subscriber))

    def schemas(self) -> list[str]:
        """Return the schemas of generations that are not in use."""
        return [name for (name,) in self.query("SELECT nspname FROM pg_namespace WHERE nspname ~ '^enode_'")]

    def wait_lease_ran_out(self) -> None:
        asked = "SELECT 1 FROM enode_django_job WHERE state = 'running' AND lease_until < now()"
        wait_until(lambda: self.query(asked), "the lease runs out")
