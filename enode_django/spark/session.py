"""Spark sessions with the project's settings, started for a job and ended with it."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkContext, SparkFiles
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from enode_django.concurrency import stopping
from enode_django.concurrency.threads import join_threads
from enode_django.conf import conf
from enode_django.exceptions import SparkFailed, SparkUnavailable
from enode_django.processes.settings_module import SETTINGS_VARIABLE, settings_module
from enode_django.spark import packages
from enode_django.spark.java import check_java
from enode_django.spark.progress import LOOK_EVERY, in_thread, make_active
from enode_django.spark.source import EventsSource

__all__ = ["spark_session"]

logger = logging.getLogger("enode_django.spark")

LOCAL_TRIES = 4
"""Attempts at a task on ``local[…]``, as many as Spark makes elsewhere."""
STOP_SECONDS = 30.0
START_SECONDS = 600.0
"""The longest wait for the start of a session that was given up, before another one is started."""
BATCH_BYTES = "16m"
"""The most bytes that Spark passes to a Python function at once. Without it, that is 10,000 rows of any size."""
LOOPBACK = "127.0.0.1"
_given_up: list[threading.Thread] = []
_IN_ONE_PROCESS = re.compile(r"local(\[[^,\]]*\])?")


@contextmanager
def spark_session(master: str | None = None) -> Iterator[SparkSession]:
    """Yield a session on ``master`` (by default the settings') with the data source of this package. It ends with the
    block, as does its Java process. An existing session is used instead, regardless of its master, and not ended.

    Takes seconds. Raises `SparkUnavailable`, `ConfigurationError`, `SparkFailed` for an error of Java in the block, and
    errors that end the surrounding work, see `enode_django.concurrency.stopping`.

    For example::

        with spark_session() as spark:
            events(spark, columns=["command_type"]).groupBy("command_type").count().show()
    """
    if is_running():
        # The files that it serves to executors must exist as long as the session, not only as long as this block.
        directory = Path(SparkFiles.getRootDirectory(), "enode_django")
        directory.mkdir(exist_ok=True)
        yield _equipped(SparkSession.builder.getOrCreate(), directory)
        return
    with TemporaryDirectory(prefix="enode-spark-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        spark = _start(partial(_started, master or conf().SPARK.MASTER, directory))
        make_active(spark)
        try:
            yield _equipped(spark, directory)
        except (PySparkException, Py4JError) as error:  # Java has its text, and ends with the block
            raise SparkFailed(f"{type(error).__name__}: {error}") from error.__cause__
        finally:
            stop(spark)


def is_running() -> bool:
    """Return True if this process has a session, which `spark_session` uses."""
    return SparkContext._active_spark_context is not None


def _start(started: Callable[[], SparkSession]) -> SparkSession:
    """Start a session; in another thread if the surrounding work is stoppable, since it may take minutes on a cluster.

    An error that ends the work is raised at once. The session is then ended as soon as it has started, and the next one
    starts only after that.
    """
    join_threads(_given_up, START_SECONDS)
    _given_up.clear()
    if not stopping.is_stoppable():
        return started()
    thread, session = in_thread("spark-starting", started)
    while not session.done():
        try:
            wait([session], LOOK_EVERY)
            stopping.check()
        except BaseException:
            _given_up.append(thread)
            session.add_done_callback(_end_unwanted)
            raise
    return session.result()


def _end_unwanted(started: Future[SparkSession]) -> None:
    """Stop a session that was given up. Called in the starting thread."""
    if started.exception() is None:
        stop(started.result())


def stop(spark: SparkSession) -> None:
    """Stop a session and end its Java process, even a crashed one. Blocks up to `STOP_SECONDS` for the process."""
    gateway: Any = SparkContext._gateway
    with suppress(Exception):  # a session that does not answer has stopped
        spark.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    if gateway is None:
        return
    with suppress(Exception):
        gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a Java process by closing its standard input; kill it after `STOP_SECONDS`."""
    with suppress(OSError):
        assert process.stdin is not None
        process.stdin.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        logger.warning("Spark's Java process %d does not end and is killed", process.pid)
        process.kill()
        process.wait()


def _started(master: str, directory: Path) -> SparkSession:
    check_java()
    builder = SparkSession.builder.master(with_retries(master)).appName("enode_django")
    for key, value in {**defaults(master, directory), **conf().SPARK.CONFIG}.items():
        builder = builder.config(key, value)
    with _environment(environment(master, directory)):
        try:
            return builder.getOrCreate()
        except (PySparkException, Py4JError) as error:
            raise SparkUnavailable(f"Spark does not start on {master!r}; its log says why: {error}") from error


def with_retries(master: str) -> str:
    """Return ``local[…]`` masters with `LOCAL_TRIES`: Spark by default never repeats a task in local mode.

    >>> with_retries("local[*]"), with_retries("local"), with_retries("local[2, 1]"), with_retries("yarn")
    ('local[*,4]', 'local[1,4]', 'local[2, 1]', 'yarn')
    """
    if not _IN_ONE_PROCESS.fullmatch(master):
        return master
    cores = master.removeprefix("local").strip("[]") or "1"
    return f"local[{cores},{LOCAL_TRIES}]"


def defaults(master: str, directory: Path) -> Mapping[str, str]:
    """Return the properties that ``CONFIG`` may override."""
    properties = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxBytesPerBatch": BATCH_BYTES,
        "spark.sql.python.filterPushdown.enabled": "true",
        f"spark.executorEnv.{SETTINGS_VARIABLE}": settings_module(),
    }
    if _is_here(master):
        properties |= {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
        }
    return properties


def environment(master: str, directory: Path) -> Mapping[str, str]:
    """Return the environment variables that Spark's processes get in addition to this process's."""
    if not _is_here(master):
        return {SETTINGS_VARIABLE: settings_module()}
    found = {
        SETTINGS_VARIABLE: settings_module(),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_LOCAL_DIRS": os.environ.get("SPARK_LOCAL_DIRS", str(directory)),
    }
    if _shares_files(master):
        before = filter(None, [os.environ.get("PYTHONPATH")])
        return {**found, "PYTHONPATH": os.pathsep.join([*packages.own_directories(), *before])}
    return {**found, "SPARK_HOME": str(_home_in(directory))}


def _home_in(directory: Path) -> Path:
    """Make a directory with links to the installed Spark, where the executors of ``local-cluster`` may write files."""
    home = directory / "home"
    home.mkdir()
    for path in Path(pyspark.__file__).resolve().parent.iterdir():
        (home / path.name).symlink_to(path)
    return home


def _equipped(spark: SparkSession, directory: Path) -> SparkSession:
    context = spark.sparkContext
    wanted = list(conf().SPARK.PY_FILES)
    if not _shares_files(context.master or ""):
        archive = packages.zip_packages(directory)
        wanted += [str(archive)] if archive else []
    before = list(sys.path)
    known = {path.rpartition("/")[2] for path in context.listFiles}
    for file in wanted:
        if file.rpartition("/")[2] not in known:  # Spark refuses another file of the same name
            context.addPyFile(file)
    sys.path[:] = before  # this process imports its packages from their own places
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")  # without it, `EventsSource` would be refused
    spark.dataSource.register(EventsSource)
    return spark


def _is_here(master: str) -> bool:
    """Return True if all processes run on this machine."""
    return master.startswith("local")


def _shares_files(master: str) -> bool:
    """Return True if tasks run on this machine, in processes that import the same files as this one."""
    return _is_here(master) and not master.startswith("local-cluster")


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
