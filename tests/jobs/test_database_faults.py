"""A database goes away during a job: a separate server, with the job in another process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from sample_project.embedded import Postgres
from tests.integration.running import wait_for
from tests.jobs.holder import HELD, STOPPED
from tests.jobs.processes import Holder
from tests.template import OWN, migrate


@pytest.fixture
def migrated(private_postgres: Postgres) -> Iterator[Postgres]:
    migrate(private_postgres.url, OWN)
    yield private_postgres
    private_postgres.resume()


def url(server: Postgres) -> str:
    return urlunsplit(urlsplit(server.url)._replace(path=f"/{OWN}"))


def job(server: Postgres, *columns: str) -> Any:
    with psycopg.connect(url(server)) as session:
        return session.execute(f"SELECT {', '.join(columns)} FROM enode_django_job".encode()).fetchone()


def test_a_job_outlives_a_restart_of_the_database_and_stops_before_one_that_stands_still_gives_its_lease_away(
    migrated: Postgres,
) -> None:
    with Holder("rows", lease=30, url=url(migrated)) as holder:
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
