"""The parts of `enodedev`: commands in processes and sessions of their own."""

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
    """``patience``: seconds that the part goes on after `enodedev` has died; above 0 for a part that others need until
    they have ended."""

    name: str
    command: Sequence[str]
    patience: float = 0.0


class Part:
    """A started part. It is a session of its own, so that Ctrl-C reaches `enodedev` alone, which ends parts in order.

    Its standard input is a pipe that ends with `enodedev`; its output is read by `lines`, which never blocks.
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
        """The exit status of the process that was started; None as long as it lives."""
        return self._process.poll()

    @property
    def is_gone(self) -> bool:
        """Return True if no process of the part lives any more: none holds the other end of the output, all of which
        was read."""
        return self.is_at_end and self.status is not None

    def lines(self) -> Iterator[str]:
        """Yield the new output in whole lines; the last one as it is when nobody can write any more."""
        while chunk := self._read():
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            yield from (line.decode(errors="replace").rstrip("\r") for line in whole)
        self.is_at_end = chunk is not None
        if self.is_at_end and self._rest:
            yield self._rest.decode(errors="replace")
            self._rest = b""

    def _read(self) -> bytes | None:
        """Empty at the end of the output, None if there is nothing for the moment."""
        try:
            return os.read(self.output.fileno(), CHUNK)
        except BlockingIOError:
            return None

    def end(self) -> None:
        """Tell the process that was started, which ends the others."""
        self._process.terminate()

    def signal_all(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def close(self) -> None:
        """Kill what is left of it."""
        self.signal_all(signal.SIGKILL)
        self._process.wait()
        self.lifeline.close()
        self.output.close()


def head_of_command_line() -> list[str]:
    """Return the command line that started this process, up to the name of the management command."""
    arguments: list[str] = [str(argument) for argument in autoreload.get_child_arguments()]
    return arguments[: len(arguments) - len(sys.argv[1:])]
