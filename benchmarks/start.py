"""The cost of starting processors until their first answer, of ``manage.py check``, and of idle processors."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.figures import Figure, median
from benchmarks.processors import BenchmarkError, Processors, wait_for
from benchmarks.workspace import COMMANDS, QUEUES, SETTINGS, Services
from enode_django import execute_command
from enode_django.bus.command_bus import QueueCommandBus
from enode_django.ids import new_id
from enode_django.runtime import use_bus
from sample_project.bank.domain import OpenAccount
from sample_project.embedded import Broker
from sample_project.embedded_process import free_port
from sample_project.settings import database_from_url

SUBSCRIBERS = ("bank.AccountSummaries", "bank.Ledger", "bank.transfers")
LEAN = "benchmarks.lean_settings"
PATIENCE = 60.0
SETTLING, IDLE = 10.0, 20.0
"""Idle seconds before the measurement, and during it."""
PROJECT_SETTINGS = """
import os
from plain.settings import *
DATABASES = {{"default": {database!r}}}
INSTALLED_APPS += os.environ.get("MORE_APPS", "").split()
"""
"""These settings import nothing of the sample, which would import Celery with and without the app."""
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


def run(services: Services, quick: bool) -> list[Figure]:
    rounds = 3 if quick else 9
    return [
        *_starts(services, "start", LEAN, rounds, "without apps for people"),
        *_starts(services, "start of the sample", SETTINGS, rounds, "with admin and API"),
        *_checks(services, rounds),
        *_idle(services),
    ]


# -- to the first answer ----------------------------------------------------------------------------------------------


def _starts(services: Services, name: str, settings: str, rounds: int, note: str) -> list[Figure]:
    with Broker() as broker:
        _start(services, broker, settings)  # compiles modules that are not compiled yet
        measured = [_start(services, broker, settings) for _ in range(rounds)]
    seconds, spent = zip(*measured, strict=True)
    return [
        median(f"{name}, to the first answer", seconds, "s", note),
        median(f"{name}, processor time", spent, "s", "of all processes, until then"),
    ]


def _start(services: Services, broker: Broker, settings: str) -> tuple[float, float]:
    """Return the seconds until the first answer, and the processor time of all processes until then."""
    with services.workspace(SUBSCRIBERS, queue=broker.url, **_topics()) as workspace:
        workspace.settings = settings
        workspace.transport.create_topic(workspace.enode["COMMANDS"]["TOPIC"], QUEUES)
        bus = QueueCommandBus(workspace.transport, workspace.producer, workspace.enode["COMMANDS"]["TOPIC"])
        command = OpenAccount(new_id(), owner="somebody")
        with contextlib.closing(bus), use_bus(bus):
            started = time.perf_counter()
            with Processors(workspace, 1, "all", ready=False) as processors:
                execute_command(command, timeout=PATIENCE)
                return time.perf_counter() - started, _processor_time(_family(processors))


def _topics() -> dict[str, dict[str, str]]:
    """Return new topics for a round, because all rounds share a broker."""
    return {"COMMANDS": {"TOPIC": f"{COMMANDS}-{new_id()}"}, "SUBSCRIBERS": {"TOPIC": f"events-{new_id()}"}}


def _family(processors: Processors) -> list[psutil.Process]:
    first = psutil.Process(processors.process.pid)
    return [first, *first.children(recursive=True)]


def _processor_time(processes: list[psutil.Process]) -> float:
    """Return the seconds of processor time, ended children included."""
    return sum(sum(process.cpu_times()[:4]) for process in processes)


# -- manage.py check --------------------------------------------------------------------------------------------------


def _checks(services: Services, rounds: int) -> list[Figure]:
    """Measure ``manage.py check`` in a new ``startproject`` project on PostgreSQL, with and without the app in turn."""
    with services.database() as url, _project(url) as directory:
        pairs = [(_check(directory, "enode_django"), _check(directory, "")) for _ in range(3 * rounds + 1)][1:]
    return [
        median("check with the app", [ours for ours, _ in pairs], "s", "processor time"),
        median("check without the app", [plain for _, plain in pairs], "s", "processor time"),
        median("check with / without", [ours / plain for ours, plain in pairs], "", "of each pair"),
    ]


@contextlib.contextmanager
def _project(url: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="enode-bench-") as name:
        directory = Path(name)
        subprocess.run([sys.executable, "-m", "django", "startproject", "plain", directory], check=True)
        (directory / "measured_settings.py").write_text(PROJECT_SETTINGS.format(database=database_from_url(url)))
        yield directory


def _check(directory: Path, apps: str) -> float:
    """Return the seconds of processor time, with the app compiled as after an installation."""
    paths = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "MORE_APPS": apps}
    environment.pop(NO_BYTECODE, None)
    command = [sys.executable, "manage.py", "check", "--settings", "measured_settings"]
    before = _of_children()
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"manage.py check ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return _of_children() - before


def _of_children() -> float:
    """Return the seconds of processor time of ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# -- without work -----------------------------------------------------------------------------------------------------


def _idle(services: Services) -> list[Figure]:
    location = f"tcp://127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(prefix="enode-bench-") as directory:
        broker = {"LISTEN": location, "DIRECTORY": str(Path(directory) / "broker")}
        with services.workspace(SUBSCRIBERS, queue=location, BROKER=broker, WORKERS={"LEASE": 10.0}) as workspace:
            workspace.settings = LEAN
            with Processors(workspace, 1, "all", ready=False, options=("--with-broker",)) as processors:
                wait_for("the workers beat", lambda: processors.report().get("beating_workers") == 2, PATIENCE)
                time.sleep(SETTLING)
                processes = _family(processors)
                before = _processor_time(processes)
                time.sleep(IDLE)
                share = (_processor_time(processes) - before) / IDLE
                memory = sum(process.memory_full_info().pss for process in processes)
    return [
        Figure("idle, memory", memory / 1e6, "MB", note=f"PSS of {len(processes)} processes, the broker among them"),
        Figure("idle, processor time", 100 * share, "% of a core"),
    ]
