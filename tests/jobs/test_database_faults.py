"""A database goes away during a job: a separate server, with the job in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from sample_project.embedded import Postgres
from tests.integration.running import wait_for
from tests.jobs.holder import HELD, STOPPED
from tests.jobs.processes import PROJECT, Holder


@pytest.fixture
def migrated(private_postgres: Postgres) -> Iterator[Postgres]:
    command = [sys.executable, "manage.py", "migrate", "--verbosity=0", "enode_django"]
    environment = {**os.environ, "DATABASE_URL": private_postgres.url}
    subprocess.run(command, cwd=PROJECT, env=environment, check=True, timeout=240)
    yield private_postgres
    private_postgres.resume()


def job(server: Postgres, *columns: str) -> Any:
    with psycopg.connect(server.url) as session:
        return session.execute(f"SELECT {', '.join(columns)} FROM enode_django_job".encode()).fetchone()


def test_a_job_outlives_a_restart_of_the_database_and_stops_before_one_that_stands_still_gives_its_lease_away(
    migrated: Postgres,
) -> None:
    with Holder("rows", lease=30, url=migrated.url) as holder:
        assert holder.first == HELD
        migrated.restart()
        (since,) = job(migrated, "lease_until")
        wait_for(lambda: job(migrated, "lease_until")[0] > since)
        (steps,) = job(migrated, "progress -> 'step'")
        wait_for(lambda: job(migrated, "progress -> 'step'")[0] > steps)
        migrated.pause()
        assert holder.line() == STOPPED
        migrated.resume()
        assert holder.line() == "JobLost"
    wait_for(lambda: job(migrated, "state")[0] == "failed")
