"""Executors in other processes, that get the project's packages sent: one run, looked at from all sides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest
from django.conf import settings
from django.db import connection
from pytest_django import DjangoDbBlocker

from enode_django.exceptions import SparkUnavailable
from enode_django.models import Snapshot
from enode_django.spark.java import check_java
from enode_django.testing.event_store_read_contract import history
from tests.integration.sharded import id_in, opened, shard_databases, sharded_store
from tests.meta.tree import ROOT
from tests.services import services_required
from tests.spark.accounts import ACCOUNT, account
from tests.spark.conftest import url_of_database

pytestmark = pytest.mark.timeout(600)

SECONDS = 60.0
DUE = (101, 120)
"""In each shard, so many versions of an account that has no snapshot yet."""


class Run(NamedTuple):
    found: dict[str, Any]
    output: str
    directory: Path
    snapshots: list[dict[str, int]]
    """By shard, the versions of its aggregates' snapshots."""


@pytest.fixture(scope="module")
def run(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Run]:
    try:
        check_java()
    except SparkUnavailable as error:
        if services_required():
            raise
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("cluster")
    with django_db_blocker.unblock(), shard_databases() as names:
        with opened(names):
            store = sharded_store()
            store.append([*history(id_in(0), 3), *history(id_in(1), 4)])
            for place, versions in enumerate(DUE):
                store.append(account(id_in(place, "due"), range(1, versions + 1)))
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "DJANGO_SETTINGS_MODULE": settings.SETTINGS_MODULE or "sample_project.settings",
            "DATABASE_URL": url_of_database(str(connection.settings_dict["NAME"])),
            "EVENT_DATABASE_URLS": " ".join(url_of_database(name) for name in names.values()),
            "TMPDIR": str(directory),
        }
        command = [sys.executable, "-m", "tests.spark.cluster", "local-cluster[2,1,1024]"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=540)
        assert done.returncode == 0, done.stderr
        with opened(names):
            snapshots = [
                dict(Snapshot.objects.using(alias).values_list("aggregate_root_id", "version")) for alias in names
            ]
        yield Run(json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr, directory, snapshots)


def test_executors_read_all_shards(run: Run) -> None:
    wanted = [[0, id_in(0), n] for n in (1, 2, 3)] + [[1, id_in(1), n] for n in (1, 2, 3, 4)]
    wanted += [[place, id_in(place, "due"), n] for place, due in enumerate(DUE) for n in range(1, due + 1)]
    assert sorted(run.found["rows"]) == sorted(wanted)


def test_executors_make_snapshots_in_the_shards_that_they_belong_to(run: Run) -> None:
    assert run.found["snapshots"] == {"made": {ACCOUNT: 2}, "failed": 0, "failures": []}
    assert run.snapshots == [{id_in(place, "due"): version} for place, version in enumerate(DUE)]


def test_executors_run_the_code_that_was_sent_to_them_and_it_has_the_same_fingerprint(run: Run) -> None:
    executors = run.found["executors"]
    assert len({executor["pid"] for executor in executors}) == 2
    for executor in executors:
        assert ".zip" in executor["file"]
        assert executor["fingerprint"] == run.found["fingerprint"]
        assert executor["settings"] == "sample_project.settings"
    assert run.found["file"] == str(ROOT / "sample_project" / "bank" / "domain" / "accounts.py")


def test_the_end_of_the_session_ends_its_processes_and_removes_what_they_left(run: Run) -> None:
    assert not run.found["is_running"]
    deadline = time.monotonic() + SECONDS
    while any(os.path.exists(f"/proc/{executor['pid']}") for executor in run.found["executors"]):
        assert time.monotonic() < deadline, "an executor goes on"
        time.sleep(0.05)
    assert [path.name for path in run.directory.iterdir() if path.name.startswith("enode")] == []


def test_what_the_processes_print_has_no_password(run: Run) -> None:
    password = unquote(urlsplit(os.environ["DATABASE_URL"]).password or "")
    if not password:
        pytest.skip("the database has no password")
    assert password not in run.output
