"""Holders of jobs in processes of their own, on any database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self
from urllib.parse import quote

from django.db import connection

PROJECT = Path(__file__).resolve().parent.parent.parent


def tests_database_url() -> str:
    """Of the database that pytest-django has made."""
    settings = connection.settings_dict
    user, password = quote(settings["USER"]), quote(settings["PASSWORD"])
    return f"postgresql://{user}:{password}@{settings['HOST']}:{settings['PORT']}/{settings['NAME']}"


class Holder:
    """``with`` starts it and waits for its first line, and kills it in the end."""

    def __init__(self, name: str, *, lease: float, url: str | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.jobs.holder", "tests", name, str(lease)],
            cwd=PROJECT,
            env={**os.environ, "DATABASE_URL": url or tests_database_url()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first = ""

    def __enter__(self) -> Self:
        self.first = self.line()
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()

    def line(self) -> str:
        """The next one; blocks. Empty: it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def finish(self) -> str:
        """Let it end; returns what else it says."""
        output, _ = self._process.communicate(timeout=240)
        return output.strip()
