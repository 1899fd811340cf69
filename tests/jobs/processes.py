"""Holders of jobs in separate processes, on any database."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Self
from urllib.parse import quote

from django.db import connection

from tests import warm

PROJECT = Path(__file__).resolve().parent.parent.parent


def tests_database_url() -> str:
    """Return the URL of the database that pytest-django has made."""
    settings = connection.settings_dict
    user, password = quote(settings["USER"]), quote(settings["PASSWORD"])
    return f"postgresql://{user}:{password}@{settings['HOST']}:{settings['PORT']}/{settings['NAME']}"


class Holder:
    """A process that holds a job. As a context manager, it waits for the first line of output, and kills the process at
    the end."""

    def __init__(self, name: str, *, lease: float, url: str | None = None) -> None:
        reading, writing = os.pipe()
        self._input = open(writing, "w")  # noqa: SIM115 - the process ends with it
        with open(reading) as given, open(os.dup(2), "w") as errors:
            self._process = warm.start(
                ["-m", "tests.jobs.holder", "tests", name, str(lease)],
                cwd=PROJECT,
                env={**os.environ, "DATABASE_URL": url or tests_database_url()},
                stdin=given,
                stderr=errors,
            )
        self.first = ""

    def __enter__(self) -> Self:
        self.first = self.line()
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        self._input.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def line(self) -> str:
        """Return the next line of output; empty if the process has ended. Blocks."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def finish(self) -> str:
        """Let the process end. Return the rest of its output."""
        assert self._process.stdout is not None
        self._input.close()
        output = self._process.stdout.read()
        self._process.wait(240)
        return output.strip()
