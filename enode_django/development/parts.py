"""The parts of `enodedev`: commands that run in processes and sessions of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from django.utils import autoreload

from enode_django.development.joining import LIFELINE, PATIENCE, identity_of

CHUNK = 65_536


class Plan(NamedTuple):
    """A part to start. ``patience``: seconds that it goes on after the end of `enodedev`, above 0 for a part that other
    parts need until they have ended."""

    name: str
    command: Sequence[str]
    patience: float = 0.0


class Part:
    """A started part. It has a session of its own, so that Ctrl-C reaches only `enodedev`, which ends parts in order.

    Its standard input is a pipe that ends with `enodedev`. Its output is read by `lines`, which does not block.
    """

    def __init__(self, plan: Plan, environment: Mapping[str, str], started: float) -> None:
        self.plan = plan
        self.started = started
        theirs, ours = os.pipe()
        self.lifeline = os.fdopen(ours, "wb")
        own = {LIFELINE: identity_of(theirs), PATIENCE: str(plan.patience), "PYTHONUNBUFFERED": "1"}
        try:
            self._process = subprocess.Popen(
                plan.command,
                env={**os.environ, **environment, **own},
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self.output = self._process.stdout
        self._rest = b""
        self.is_at_end = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status of the started process; None while it lives."""
        return self._process.poll()

    @property
    def is_gone(self) -> bool:
        """Return True if the started process has ended, no process holds the other end of the output, and all output
        was read."""
        return self.is_at_end and self.status is not None

    def lines(self) -> Iterator[str]:
        """Yield the new output in whole lines. At the end of the output, an unfinished last line counts as one."""
        while chunk := self._read():
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            yield from (line.decode(errors="replace").rstrip("\r") for line in whole)
        self.is_at_end = chunk is not None
        if self.is_at_end and self._rest:
            yield self._rest.decode(errors="replace")
            self._rest = b""

    def _read(self) -> bytes | None:
        """Return new output: empty at its end, None if there is none now."""
        try:
            return os.read(self.output.fileno(), CHUNK)
        except BlockingIOError:
            return None

    def end(self) -> None:
        """Send SIGTERM to the started process, which ends the others. Does not wait."""
        self._process.terminate()

    def signal_all(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def close(self) -> None:
        """Kill all processes that are left, and close the pipes."""
        self.signal_all(signal.SIGKILL)
        self._process.wait()
        self.lifeline.close()
        self.output.close()


def head_of_command_line() -> list[str]:
    """Return the command line that started this process, up to the name of the management command."""
    arguments: list[str] = [str(argument) for argument in autoreload.get_child_arguments()]
    return arguments[: len(arguments) - len(sys.argv[1:])]
