"""The batch jobs as they are run for real: by beat and a Celery worker, whose session is on a standalone cluster.

One run, looked at from all sides. Executors are processes of other directories, that get the project's packages sent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import psutil
import pytest
import redis
from django.db import connection
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from pytest_django import DjangoDbBlocker

from chaos.processes import guarded_directory
from enode_django.exceptions import SparkUnavailable
from enode_django.models import Job, Snapshot
from enode_django.spark.java import check_java
from enode_django.spark.session import LOOPBACK
from enode_django.testing.event_store_read_contract import history
from sample_project.bank.models import AccountSummary
from tests.acceptance.celery_stack import CeleryProcess
from tests.acceptance.processors import is_running
from tests.acceptance.waiting import wait_until
from tests.emptying import empty_tables
from tests.integration.sharded import id_in, opened, shard_databases, sharded_store
from tests.java import quick_options
from tests.meta.tree import ROOT
from tests.rebuilding.conftest import drop_schemas
from tests.services import services_required
from tests.spark.accounts import ACCOUNT, account
from tests.spark.conftest import url_of_database
from tests.spark.standalone import SECONDS, standalone

pytestmark = [pytest.mark.timeout(1800), pytest.mark.django_db(transaction=True)]

DUE = (101, 120)
"""By shard, the number of versions of an account that has no snapshot yet."""
PROJECTION = "bank.AccountSummaries"
REDIS_DATABASE = 6
EXECUTOR = "CoarseGrainedExecutorBackend"


class Run(NamedTuple):
    """``jobs`` are the figures by kind, ``snapshots`` the versions in each shard, ``summaries`` the rebuilt rows, and
    ``commands`` the command lines of all processes when the work was done."""

    jobs: dict[str, dict[str, Any]]
    snapshots: list[dict[str, int]]
    summaries: dict[str, int]
    commands: list[str]
    texts: dict[str, str]
    left: list[str]


def with_path(url: str, path: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=path))


def spark_settings(master: str, directory: Path) -> dict[str, Any]:
    return {
        "MASTER": master,
        "CONFIG": {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",  # for an executor of each core of the worker
            "spark.driver.extraJavaOptions": quick_options(),
            "spark.executor.extraJavaOptions": quick_options(),
            "spark.scheduler.minRegisteredResourcesRatio": "1",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",  # or it begins with one executor
            "spark.sql.shuffle.partitions": "2",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (directory / "events").as_uri(),
            "spark.eventLog.compress": "false",
        },
    }


def schedule(archive: Path) -> None:
    """Schedule each task once, as soon as beat looks."""
    every, _ = IntervalSchedule.objects.get_or_create(every=1, period=IntervalSchedule.SECONDS)
    for task, arguments in {
        "tests.look": [],
        "enode_django.build_snapshots": [],
        "enode_django.rebuild_projection": [PROJECTION, True],
        "enode_django.export_events": [str(archive)],
    }.items():
        PeriodicTask.objects.create(name=task, task=task, args=json.dumps(arguments), interval=every, one_off=True)


def fill() -> None:
    store = sharded_store()
    store.append([*history(id_in(0), 3), *history(id_in(1), 4)])
    for place, versions in enumerate(DUE):
        store.append(account(id_in(place, "due"), range(1, versions + 1)))


def ended() -> dict[str, Job]:
    """Return the first ended job of each kind: beat may send a task a second time."""
    return {job.kind: job for job in Job.objects.exclude(state="running").order_by("-pk")}


def commands() -> list[str]:
    return [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]


@pytest.fixture(scope="module")
def run(django_db_setup: None, django_db_blocker: DjangoDbBlocker, redis_url: str) -> Iterator[Run]:
    try:
        check_java()
    except SparkUnavailable as error:
        if services_required():
            raise
        pytest.skip(str(error))
    with django_db_blocker.unblock(), guarded_directory("enode-cluster-") as directory, shard_databases() as names:
        with opened(names):
            fill()
        try:
            yield worked(directory, names, with_path(redis_url, f"/{REDIS_DATABASE}"))
        finally:
            drop_schemas()
            empty_tables("default")


def worked(directory: Path, names: dict[str, str], broker: str) -> Run:
    for name in ("events", "tmp"):
        (directory / name).mkdir()
    secrets = {
        "DATABASE_URL": url_of_database(str(connection.settings_dict["NAME"])),
        "EVENT_DATABASE_URLS": " ".join(url_of_database(name) for name in names.values()),
        "ACCEPTANCE_APPS": "django_celery_beat tests.spark.clustered",
    }
    celery = {"CELERY_WORKER_MAX_TASKS_PER_CHILD": None, "CELERY_WORKER_PROC_ALIVE_TIMEOUT": SECONDS}
    with redis.from_url(broker) as client:
        client.flushdb()
    schedule(directory / "archive")
    with ExitStack() as stack:
        master = stack.enter_context(standalone(directory, secrets))
        environment = {
            **secrets,
            "REDIS_URL": broker,
            "DJANGO_SETTINGS_MODULE": "tests.acceptance.settings",
            "ACCEPTANCE_ENODE": json.dumps({"SPARK": spark_settings(master, directory)}),
            "ACCEPTANCE_CELERY": json.dumps(celery),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": LOOPBACK,
            "TMPDIR": str(directory / "tmp"),
        }
        beat = CeleryProcess(environment, directory / "beat.log", "beat", "--pidfile=")
        stack.callback(beat.close)
        options = ("--concurrency=1", "--without-mingle", "--without-gossip")
        worker = CeleryProcess(environment, directory / "worker.log", "worker", *options)
        stack.callback(worker.close)
        wait_until(lambda: len(ended()) == 4, "all jobs have ended", 4 * SECONDS)
        jobs, found = ended(), commands()
        worker.signal(signal.SIGTERM)
        worker.wait_end(SECONDS)
        assert {job.state for job in jobs.values()} == {"succeeded"}, [job.error for job in jobs.values()]
    with opened(names):
        snapshots = [dict(Snapshot.objects.using(alias).values_list("aggregate_root_id", "version")) for alias in names]
    texts = {str(path.relative_to(directory)): path.read_text(errors="replace") for path in directory.rglob("*")
             if path.suffix == ".log" or path.name in ("stderr", "stdout") or "events/" in str(path)
             if path.is_file()}  # fmt: skip
    left = [path.name for path in (directory / "tmp").iterdir() if path.name.startswith("enode-spark")]
    summaries = dict(AccountSummary.objects.values_list("pk", "version"))
    return Run({kind: job.figures for kind, job in jobs.items()}, snapshots, summaries, found, texts, left)


def test_beat_has_snapshots_made_in_the_shards_that_they_belong_to(run: Run) -> None:
    assert run.jobs["snapshots"] == {"made": {ACCOUNT: 2}, "failed": 0, "failures": []}
    assert run.snapshots == [{id_in(place, "due"): version} for place, version in enumerate(DUE)]


def test_beat_has_a_projection_rebuilt_from_all_shards(run: Run) -> None:
    assert (run.jobs["rebuild"]["swapped"], run.jobs["rebuild"]["streams"]) == (True, sum(DUE) + 7)
    assert run.summaries == {id_in(place, "due"): version for place, version in enumerate(DUE)}


def test_beat_has_all_shards_exported(run: Run) -> None:
    assert (run.jobs["export"]["rows"], run.jobs["export"]["refusals"]) == (sum(DUE) + 7, 0)


def test_executors_read_all_shards(run: Run) -> None:
    wanted = [[0, id_in(0), n] for n in (1, 2, 3)] + [[1, id_in(1), n] for n in (1, 2, 3, 4)]
    wanted += [[place, id_in(place, "due"), n] for place, due in enumerate(DUE) for n in range(1, due + 1)]
    assert sorted(run.jobs["look"]["rows"]) == sorted(wanted)


def test_executors_run_the_code_that_was_sent_to_them_and_it_has_the_same_fingerprint(run: Run) -> None:
    found = run.jobs["look"]
    assert len({executor["pid"] for executor in found["executors"]}) == 2
    for executor in found["executors"]:
        assert ".zip" in executor["file"]
        assert executor["fingerprint"] == found["fingerprint"]
        assert executor["settings"] == "tests.acceptance.settings"
    assert found["file"] == str(ROOT / "sample_project" / "bank" / "domain" / "accounts.py")


def test_the_end_of_the_worker_ends_its_session_and_removes_what_that_left(run: Run) -> None:
    found = run.jobs["look"]
    processes = [found["java"], *(executor["pid"] for executor in found["executors"])]
    wait_until(lambda: not any(map(is_running, processes)), "the end of driver and executors")
    assert run.left == []


def test_no_password_is_on_a_command_line_in_a_plan_in_a_log_or_in_the_event_log(run: Run) -> None:
    password = unquote(urlsplit(os.environ["DATABASE_URL"]).password or "")
    if not password:
        pytest.skip("the database has no password")
    assert sum(EXECUTOR in line for line in run.commands) >= 2
    assert any("SparkListenerSQLExecutionStart" in text for name, text in run.texts.items() if "events/" in name)
    assert {"master.log", "node.log", "worker.log"} <= run.texts.keys()
    assert sum(name.endswith("stderr") for name in run.texts) >= 2
    for text in [*run.commands, *run.texts.values()]:
        assert password not in text
