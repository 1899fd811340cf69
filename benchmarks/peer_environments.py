"""Virtualenvs of peers that are not installed with the project. Each is made once, under ``build/peers``."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.workspace import PROJECT

HOME = PROJECT / "build" / "peers"
OTHER_PYTHONS = ("python3.14", "python3.13")
SECONDS_TO_INSTALL = 300


@dataclasses.dataclass(frozen=True)
class PeerEnvironment:
    """A virtualenv with one peer. ``requirement`` pins its version; ``oldest`` is the oldest Python it runs on.

    The interpreter of the benchmarks is preferred, so that a peer runs on the same one as we do. If it is too old, that
    which ``PEER_PYTHON`` names is taken, or one from the path.
    """

    name: str
    requirement: str
    oldest: tuple[int, int]

    def python(self) -> Path | None:
        """Return an interpreter that has the peer; or print why there is none, and return None."""
        home = HOME / self.name
        python, installed = home / "bin" / "python", home / self.requirement
        if not installed.exists():
            base = self._base()
            if base is None:
                needed = ".".join(map(str, self.oldest))
                print(f"  {self.requirement} is left out: it needs Python {needed} (PEER_PYTHON=… names one)")
                return None
            try:
                _run([base, "-m", "venv", "--clear", str(home)])
                _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", self.requirement])
            except (OSError, subprocess.SubprocessError) as error:
                print(f"  {self.requirement} is left out: it cannot be installed ({error})")
                return None
            installed.touch()
        return python

    def _base(self) -> str | None:
        named = filter(None, (os.environ.get("PEER_PYTHON"),))
        return next(filter(self._is_new_enough, (sys.executable, *named, *OTHER_PYTHONS)), None)

    def _is_new_enough(self, python: str) -> bool:
        check = f"import sys; sys.exit(sys.version_info < {self.oldest})"
        try:
            return not subprocess.run([python, "-c", check], capture_output=True).returncode
        except OSError:
            return False


EVENTSOURCE_PY = PeerEnvironment("eventsource-py", "eventsource-py[postgresql]==0.15.1", (3, 13))
DBOS = PeerEnvironment("dbos", "dbos==3.4.0", (3, 10))


def printed(command: Sequence[object]) -> float:
    """Return the number that a process prints."""
    done = subprocess.run(list(map(str, command)), cwd=PROJECT, stdout=subprocess.PIPE, check=True, text=True)
    return float(done.stdout)


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS_TO_INSTALL)
