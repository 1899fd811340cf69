"""``manage.py runprocessors`` as a child of the demo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from django.conf import settings

END_SECONDS = 45.0
"""More than the grace time of workers."""
LOG_LINES = 15


class Processors:
    """A ``runprocessors`` process. ``with`` starts and ends it; its log and its report are in ``directory``."""

    def __init__(self, processes: int, directory: Path) -> None:
        self._log = directory / "runprocessors.log"
        self._report = directory / "report.json"
        self._command = [
            sys.executable,
            str(settings.BASE_DIR / "manage.py"),
            "runprocessors",
            f"--processes={processes}",
            f"--report={self._report}",
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Processors:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=settings.BASE_DIR,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C is for the demo, which then stops it
            )
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> int:
        """Stop the process gracefully, wait for its end and return the exit status. Safe to call twice."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(END_SECONDS)
        except BaseException:  # out of time, or a second Ctrl-C: workers end with their supervisor
            self._process.kill()
            self._process.wait()
            raise

    def report(self) -> dict[str, Any]:
        """Return the last report of figures; empty if there is none."""
        try:
            report: dict[str, Any] = json.loads(self._report.read_text())
        except FileNotFoundError:
            return {}
        return report

    def last_words(self) -> str:
        """Return the last lines of the log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES:])
