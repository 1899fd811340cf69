"""A standalone cluster of Spark on loopback: a master and a worker, each a process of its own, and two executors."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from enode_django.spark.session import LOOPBACK
from tests.acceptance.processors import Group
from tests.java import quick_options

HOME = Path(pyspark.__file__).parent
SECONDS = 240.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_DAEMON = {
    "SPARK_HOME": str(HOME),
    "SPARK_LOCAL_IP": LOOPBACK,
    "SPARK_DAEMON_MEMORY": "192m",
    "SPARK_DAEMON_JAVA_OPTS": quick_options(),
}


class Daemon(Group):
    """One of the cluster's own processes, in a process group of its own, with its log."""

    def __init__(self, name: str, directory: Path, environment: Mapping[str, str], *arguments: str) -> None:
        self.log_path = directory / f"{name}.log"
        with self.log_path.open("wb") as output:
            self._process = subprocess.Popen(
                [HOME / "bin" / "spark-class", *arguments, "--host", LOOPBACK, "--port", "0", "--webui-port", "0"],
                cwd=directory,  # by which the guard of that directory finds them
                env={**environment, **_DAEMON},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid


@contextmanager
def standalone(directory: Path, secrets: Mapping[str, str]) -> Iterator[str]:
    """Give the master's URL. What executors need to know comes to them by the environment of the worker."""
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DATABASE_URL")}
    with ExitStack() as stack:
        master = Daemon("master", directory, plain, "org.apache.spark.deploy.master.Master")
        stack.callback(master.close)
        master.wait_for(_MASTER.pattern, seconds=SECONDS)
        found = _MASTER.search(master.log)
        assert found is not None
        options = ("--cores", "2", "--memory", "1g", "--work-dir", str(directory / "work"), found[1])
        worker = Daemon("node", directory, {**plain, **secrets}, _WORKER, *options)
        stack.callback(worker.close)
        master.wait_for(r"Registering worker ", seconds=SECONDS)
        yield found[1]


_WORKER = "org.apache.spark.deploy.worker.Worker"
