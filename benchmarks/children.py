"""Child processes that prepare a measurement, and measure on request."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.processors import BenchmarkError
from benchmarks.workspace import PROJECT


class Asked:
    """A child process that answers each line with a line of JSON. It ends with its input. ``python`` names another
    interpreter."""

    def __init__(
        self,
        module: str,
        *arguments: object,
        env: Mapping[str, str] | None = None,
        python: str | Path = sys.executable,
    ) -> None:
        command = [str(python), "-m", module, *map(str, arguments)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=PROJECT, env=env, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, line: str) -> Any:
        self.tell(line)
        return self.answer()

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Return the next answer."""
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise BenchmarkError(f"{self._process.args!r} ended with {self._process.wait()}")
        return json.loads(answer)
