"""The quickstart is followed to the letter: its files are written, its commands are run, its output is compared."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from sample_project.embedded import Postgres
from sample_project.embedded_process import free_port
from tests import warm
from tests.docs.blocks import Block, Command, blocks, commands
from tests.meta.tree import ROOT

PAGE = ROOT / "docs" / "quickstart.md"
SECONDS = 120


class Reader:
    """Somebody at a terminal who follows the page."""

    def __init__(self, directory: Path, postgres: Postgres, *, embedded: bool) -> None:
        self.directory = directory
        self.database_url = postgres.url
        self.embedded = embedded
        self.processors: subprocess.Popen[bytes] | None = None
        self.log = directory / "processors.log"
        self.ran: list[str] = []
        server = urlsplit(postgres.url)
        own = {
            "PGHOST": server.hostname or "",
            "PGPORT": str(server.port),
            "PGUSER": server.username or "",
            "PGPASSWORD": server.password or "",
        }
        if embedded:
            own["PGDATABASE"] = server.path.removeprefix("/")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "PG"))}
        inherited.pop("DATABASE_URL", None)
        self.environment = inherited | own | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

    def follow(self, block: Block) -> None:
        if block.language == "python":
            self._write(block)
        elif block.language == "diff":
            self._take_out(block)
        elif block.language == "console":
            for command in commands(block):
                self._run(command)
                self.ran.append(command.line)

    def _write(self, block: Block) -> None:
        name, appended = block.option("file"), block.option("append")
        path = self.directory / (name or appended or "")
        assert path != self.directory, f"line {block.line}: a python block must say which file it belongs to"
        if appended:
            assert path.exists(), f"line {block.line}: there is no {appended} to append to"
            path.write_text(f"{path.read_text()}\n{block.text}")
        else:
            assert path.parent.is_dir(), f"line {block.line}: there is no directory for {name}"
            path.write_text(block.text)

    def _take_out(self, block: Block) -> None:
        path = self.directory / (block.option("file") or "")
        text = path.read_text()
        for line in block.text.splitlines(keepends=True):
            assert line[0] == "-", f"line {block.line}: only lines to take out are understood"
            assert line[1:] in text, f"line {block.line}: {path.name} has no {line[1:]!r}"
            text = text.replace(line[1:], self._own_port)
        path.write_text(text)

    @property
    def _own_port(self) -> str:
        """Return settings that the page need not show: parallel tests must not reach this test's broker."""
        place = f"tcp://127.0.0.1:{free_port()}"
        return f"\nENODE = {{'QUEUE': {{'LOCATION': {place!r}}}, 'BROKER': {{'LISTEN': {place!r}}}}}\n"

    def _run(self, command: Command) -> None:
        words = shlex.split(command.line)
        if words[:2] == ["pip", "install"]:
            return  # the test runs in an environment that has it
        if words[0] == "cd":
            self.directory /= words[1]
        elif words[0] == "createdb":
            if self.embedded:
                return  # as the page says
            with psycopg.connect(self.database_url, autocommit=True) as connection:
                connection.execute(f'CREATE DATABASE "{words[1]}"')
        elif "runprocessors" in words:
            self._start_processors(words)
        else:
            self._run_python(words, command.output)

    def _run_python(self, words: list[str], expected: list[str]) -> None:
        done = warm.run(_program(words)[1:], cwd=self.directory, env=self.environment)
        shown = done.stdout + done.stderr
        assert done.returncode == 0, f"{words}:\n{shown}"
        printed = iter(shown.splitlines())
        for line in expected:
            assert any(matches(line, other) for other in printed), f"{words}: no {line!r} in\n{shown}"

    def _start_processors(self, words: list[str]) -> None:
        with self.log.open("wb") as log:
            self.processors = subprocess.Popen(
                _program(words), cwd=self.directory, env=self.environment, stdout=log, stderr=log
            )
        deadline = time.monotonic() + SECONDS
        while b"acquired" not in self.log.read_bytes():
            assert time.monotonic() < deadline, self.log.read_text()
            assert self.processors.poll() is None, self.log.read_text()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processors.wait(0.05)

    def stop_processors(self) -> int:
        """The exit status after Ctrl-C."""
        assert self.processors is not None
        self.processors.send_signal(signal.SIGINT)
        return self.processors.wait(SECONDS)

    def close(self) -> None:
        if self.processors is not None and self.processors.poll() is None:
            self.processors.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processors.wait(SECONDS)
            self.processors.kill()


def _program(words: list[str]) -> list[str]:
    programs = {"python": [sys.executable], "django-admin": [sys.executable, "-m", "django"]}
    return [*programs[words[0]], *words[1:]]


def matches(expected: str, line: str) -> bool:
    """An ellipsis in the page stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, expected.split("…"))), line) is not None


@pytest.fixture
def make_reader(tmp_path: Path, private_postgres: Postgres) -> Iterator[Callable[..., Reader]]:
    with contextlib.ExitStack() as closing:
        yield lambda **kind: closing.enter_context(contextlib.closing(Reader(tmp_path, private_postgres, **kind)))


@pytest.mark.acceptance
def test_following_the_quickstart_leads_to_what_it_promises(make_reader: Callable[..., Reader]) -> None:
    reader = make_reader(embedded=False)
    for block in blocks(PAGE):
        reader.follow(block)
    assert "python try_it.py bob" in reader.ran
    assert reader.stop_processors() == 0, reader.log.read_text()


@pytest.mark.acceptance
def test_borrowed_services_take_what_the_quickstart_migrates(make_reader: Callable[..., Reader]) -> None:
    """The later steps do not depend on the kind of services."""
    reader = make_reader(embedded=True)
    for block in blocks(PAGE):
        reader.follow(block)
        if "python manage.py migrate" in reader.ran:
            break
    with psycopg.connect(reader.database_url) as connection:
        assert connection.execute("SELECT to_regclass('enode_django_eventstream') IS NOT NULL").fetchone() == (True,)
        assert connection.execute("SELECT count(*) FROM pg_database WHERE datname = 'shop'").fetchone() == (0,)
