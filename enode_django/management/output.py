"""The output of management commands. It escapes control characters, since ids and texts may contain any."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, OutputWrapper

from enode_django.exceptions import printable

_LAYOUT = "\n\t"


def printable_json(value: Any) -> str:
    """Return indented JSON. Unprintable characters are JSON escapes, so that parsing gives the same value."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _has(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


class PrintableOutput(OutputWrapper):
    """Escapes unprintable characters, except line breaks and tabs, and those that the output cannot encode. A style has
    to be given to `write`: it consists of escape sequences, which would be escaped in the text.

    When the reader of a pipe has ended, such as `head`, the rest is dropped: the command does its work nevertheless. So
    it is with ``out`` None, which is what Python has for an output that was closed when the process started. With
    ``is_optional`` it is so after any error, such as that of a full disk.
    """

    def __init__(self, out: Any, *, is_optional: bool = False) -> None:
        super().__init__(out)
        self._dropped_after = OSError if is_optional else BrokenPipeError
        self.has_reader = out is not None
        self._file = out

    def write(  # type: ignore[override]
        self, msg: str = "", style_func: Any = None, ending: str | None = None
    ) -> None:
        if self._file is None:
            return
        with self._dropped_without_reader():
            super().write(self._encodable(printable(msg, keep=_LAYOUT)), style_func, ending)

    def _encodable(self, text: str) -> str:
        """Return the text with escapes, which JSON knows too, for what the output's encoding does not have."""
        encoding = getattr(self._file, "encoding", None)
        if encoding is None or _has(encoding, text):
            return text
        return "".join(c if _has(encoding, c) else json.dumps(c)[1:-1] for c in text)

    def flush(self) -> None:
        with self._dropped_without_reader():
            super().flush()

    @contextmanager
    def _dropped_without_reader(self) -> Iterator[None]:
        try:
            yield
        except self._dropped_after:
            self.has_reader = False
            if self._file in (sys.stdout, sys.stderr):  # else Python complains at its end
                with open(os.devnull, "wb") as nothing:
                    os.dup2(nothing.fileno(), self._file.fileno())


class PrintableCommand(BaseCommand):
    """The base of management commands. Their ``stdout`` and ``stderr`` are `PrintableOutput`, also for errors."""

    stdout: PrintableOutput
    stderr: PrintableOutput
    is_service = False
    """True if the command's work matters, and not its output."""

    def __init__(
        self, stdout: Any = None, stderr: Any = None, no_color: bool = False, force_color: bool = False
    ) -> None:
        super().__init__(stdout, stderr, no_color, force_color)
        self.stdout = self._output(stdout or sys.stdout)
        self.stderr = self._output(stderr or sys.stderr)
        if not no_color:
            self.stderr.style_func = self.style.ERROR

    def _output(self, out: Any) -> PrintableOutput:
        return PrintableOutput(out, is_optional=self.is_service)

    def say(self, text: str) -> None:
        """Write a line at once, also into a pipe or a file."""
        self.stdout.write(text)
        self.stdout.flush()

    def execute(self, *args: Any, **options: Any) -> str | None:
        for name in ("stdout", "stderr"):
            given = options.pop(name, None)
            if given:
                setattr(self, name, self._output(given))
        try:
            return super().execute(*args, **options)
        finally:
            self.stdout.flush()

    def run_from_argv(self, argv: Sequence[str]) -> None:
        """End with status 130 after Ctrl-C, as a shell does, instead of a traceback."""
        try:
            super().run_from_argv(list(argv))
        except KeyboardInterrupt:
            self.stderr.write("interrupted: a part may have been done")
            raise SystemExit(130) from None
