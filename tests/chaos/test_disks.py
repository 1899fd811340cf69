"""Disks that are slow and full, with a real PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psycopg
import pytest

from chaos.faults.disks import LONGEST_FLUSH, slow_down, speed_up
from chaos.processes import PROJECT
from chaos.servers import PRIVATE, can_mount
from chaos.waiting import wait_until
from sample_project.embedded import Postgres

DEADLINE = 60.0
SETTINGS = "SELECT array_agg(setting ORDER BY name) FROM pg_settings WHERE name IN ('commit_delay', 'fsync')"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres({"fsync": "off"}) as server:
        yield server


def settings(server: Postgres) -> list[str]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        (found,) = connection.execute(SETTINGS).fetchone() or ([],)
    return list(found)


def test_a_slow_disk_holds_up_whoever_commits(server: Postgres) -> None:
    assert settings(server) == ["0", "off"]
    slow_down(server, LONGEST_FLUSH)
    wait_until(lambda: settings(server) == ["100000", "on"], "the settings are in force", DEADLINE)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS t (n int)")

        def waits_for_the_disk() -> bool:
            began = time.monotonic()
            connection.execute("INSERT INTO t VALUES (1)")
            return time.monotonic() - began >= LONGEST_FLUSH

        # A commit need not flush if the server's own writer has just done so.
        wait_until(waits_for_the_disk, "a commit waits for the disk", DEADLINE)
    for _ in range(2):
        assert speed_up(server)
    wait_until(lambda: settings(server) == ["0", "off"], "the settings are as before", DEADLINE)


def test_a_server_that_is_away_is_not_mended_yet(server: Postgres) -> None:
    server.stop()
    assert not speed_up(server)
    with pytest.raises(psycopg.Error):
        slow_down(server, LONGEST_FLUSH)
    server.start()


FILL = """
import psycopg
from chaos.faults.disks import BALLAST, fill
from chaos.servers import POSTGRES_ROOM, SmallPostgres

with SmallPostgres({"fsync": "off"}) as server:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS n")
    ballast = server.directory / "data" / BALLAST
    assert 0 < fill(ballast) < POSTGRES_ROOM * 1024 * 1024
    try:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("INSERT INTO t SELECT generate_series(1, 1000000)")
    except psycopg.Error as error:
        print("refused", error.sqlstate)
    ballast.unlink()
    server.start()
    server.restart()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("INSERT INTO t VALUES (2)")
        print(connection.execute("SELECT n FROM t ORDER BY n").fetchall())
"""


@pytest.mark.skipif(not can_mount(), reason="only root can mount a small file system")
def test_a_full_disk_of_postgres_refuses_rows_and_keeps_what_was_there() -> None:
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", FILL],
        cwd=PROJECT,
        env={**os.environ, PRIVATE: "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    refused, rows = done.stdout.splitlines()
    assert refused.startswith("refused")
    assert rows == "[(1,), (2,)]"
