from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from sample_project.embedded import Postgres, Redis
from sample_project.embedded_guard import processes_working_in, wait_for_end
from sample_project.embedded_process import stands, wait_until

ROOT = Path(__file__).resolve().parents[2]


class AnswersOnce(Redis):
    """Too slow for the next question, as a server on a slow disk may be."""

    asked = 0

    def _answers(self) -> bool:
        self.asked += 1
        return self.asked == 1


OWNER = """
import sys
from sample_project.embedded import Postgres, Redis
with Postgres() as postgres, Redis() as cache:
    postgres.pause() if sys.argv[1:] == ["paused"] else None
    print(postgres.directory, cache.directory, flush=True)
    sys.stdin.read()
"""

COUNTING = """
import os, sys, threading, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
def count():
    for number in range(1, 10**9):
        os.pwrite(file, b"%d" % number, 0)
threading.Thread(target=count, daemon=True).start()
time.sleep(600)  # the thread that gets the signal
"""


def ask(server: Postgres, statement: str) -> Any:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchone() if cursor.description else None


def has_changed(file: Path, text: str) -> bool:
    return file.read_text() != text


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def private_postgres() -> Iterator[Postgres]:
    """Yield a server with the settings of the demo. Each test leaves it running."""
    with Postgres() as server:
        yield server


def test_postgres_syncs_to_disk(private_postgres: Postgres) -> None:
    settings = (
        "SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes')"
    )
    assert ask(private_postgres, settings) == ("on", "on", "on")


def test_postgres_refuses_a_wrong_password(private_postgres: Postgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(private_postgres.url, password="wrong")


def test_postgres_keeps_committed_rows_and_its_port_when_killed(private_postgres: Postgres) -> None:
    ask(private_postgres, "CREATE TABLE kept (number int)")
    ask(private_postgres, "INSERT INTO kept VALUES (7)")
    port = private_postgres.port
    private_postgres.kill()
    assert not is_listening(port)
    private_postgres.start()
    assert private_postgres.port == port
    assert ask(private_postgres, "SELECT number FROM kept") == (7,)


def test_paused_postgres_leaves_sessions_unanswered_until_it_is_resumed(private_postgres: Postgres) -> None:
    with closing(psycopg.connect(private_postgres.url, autocommit=True)) as connection:
        private_postgres.pause()
        connection.pgconn.send_query(b"SELECT 1")
        assert connection.pgconn.is_busy()
        states = {psutil.Process(pid).status() for pid in (private_postgres.pid, connection.info.backend_pid)}
        assert states == {psutil.STATUS_STOPPED}
        private_postgres.resume()
        result = connection.pgconn.get_result()
        assert result is not None
        assert result.get_value(0, 0) == b"1"


def test_a_process_stands_when_no_thread_of_it_goes_on(tmp_path: Path) -> None:
    counting = tmp_path / "counting"
    with subprocess.Popen([sys.executable, "-c", COUNTING, counting]) as process:
        assert wait_until(lambda: counting.exists() and int(counting.read_text() or 0) > 100, 60.0)
        assert not stands(process.pid)
        for _ in range(20):
            process.send_signal(signal.SIGSTOP)
            assert wait_until(lambda: stands(process.pid), 60.0)
            before = counting.read_text()
            time.sleep(0.02)  # a thread that goes on would count a thousand
            assert counting.read_text() == before
            process.send_signal(signal.SIGCONT)
            assert wait_until(partial(has_changed, counting, before), 60.0)
        process.kill()
    assert stands(process.pid), "one that has ended does nothing any more"


def test_redis_keeps_what_it_appended_when_killed() -> None:
    with Redis({"appendfsync": "always"}) as server:
        redis.Redis.from_url(server.url).set("kept", "7")
        server.kill()
        assert not server.running
        server.start()
        assert redis.Redis.from_url(server.url).get("kept") == b"7"


def test_redis_refuses_clients_without_the_password(private_redis: Redis) -> None:
    with pytest.raises(redis.exceptions.AuthenticationError):
        redis.Redis(port=private_redis.port, retry=Retry(NoBackoff(), 0)).ping()


def test_close_removes_the_data_and_may_be_called_twice() -> None:
    server = Redis()
    server.start()
    directory = server.directory
    server.close()
    server.close()
    assert not directory.exists()
    assert not is_listening(server.port)


@pytest.mark.acceptance
@pytest.mark.parametrize("state", ["running", "paused"])
def test_servers_end_with_an_owner_that_is_killed(state: str) -> None:
    """Also before its parent has collected it: until then it is a zombie."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, state], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        directories = [Path(name) for name in owner.stdout.readline().split()]
        of_postgres, of_redis = (processes_working_in(directory) for directory in directories)
        assert of_postgres
        assert of_redis
        owner.kill()
        wait_until(lambda: not any(directory.exists() for directory in directories), 30)
    # Their ports tell nothing: another test may have taken one meanwhile.
    assert wait_for_end([*of_postgres, *of_redis], 30) == []


def test_a_server_that_has_answered_has_started() -> None:
    with AnswersOnce() as server:
        assert server.running


def run_with_services(*code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    return subprocess.run(
        [sys.executable, "-m", "sample_project.embedded", "--", sys.executable, "-c", *code],
        cwd=ROOT,
        env=variables | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_command_gets_the_services_and_its_exit_code_is_kept() -> None:
    code = "import os, sys; print(os.environ['DATABASE_URL'], os.environ['REDIS_URL']); sys.exit(3)"
    done = run_with_services(code, REDIS_URL="redis://elsewhere:1/0")
    assert done.returncode == 3, done.stderr
    database, cache = done.stdout.split()
    assert database.startswith("postgresql://postgres:")
    assert cache == "redis://elsewhere:1/0"


def test_command_ended_by_a_signal_gives_128_and_its_number() -> None:
    named = {"DATABASE_URL": "postgresql://elsewhere", "REDIS_URL": "redis://elsewhere"}
    done = run_with_services("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", **named)
    assert done.returncode == 128 + signal.SIGKILL, done.stderr


@pytest.mark.parametrize("named", [None, "shop.settings"])
def test_command_keeps_the_settings_that_it_has_and_gets_no_others(named: str | None) -> None:
    code = "import os; print(os.environ.get('DJANGO_SETTINGS_MODULE'))"
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    environment |= {"DATABASE_URL": "postgresql://elsewhere", "REDIS_URL": "redis://elsewhere"}
    if named is not None:
        environment["DJANGO_SETTINGS_MODULE"] = named
    command = [sys.executable, "-m", "sample_project.embedded", "--", sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=True)
    assert ran.stdout.strip() == str(named)
