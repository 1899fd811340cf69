"""Environments that hold the wheel, and of the installed packages just those that it asks for."""

from __future__ import annotations

import functools
import os
import subprocess
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement


class Isolated:
    """A virtual environment whose packages are links: to what the wheel held, where it was unpacked, and to those of
    the running environment. So nothing is downloaded, and each module is compiled once."""

    def __init__(self, directory: Path, unpacked: Path, extra: str) -> None:
        venv.create(directory, symlinks=True)
        self._python = directory / "bin" / "python"
        (self.packages,) = directory.glob("lib/python*/site-packages")
        for path in unpacked.iterdir():
            (self.packages / path.name).symlink_to(path)
        own = next(iter(_distributions(self.packages)))
        for needed in closure(own.requires or (), {extra}, {}).values():
            self._link(needed)

    def run(self, program: str) -> str:
        """Return what the program prints. Raises AssertionError with its errors if it fails."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.packages)}
        done = subprocess.run(
            [self._python, "-c", program],
            cwd=self.packages.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _link(self, needed: Distribution) -> None:
        for name in _entries(needed.name):
            place = self.packages / name
            if not place.exists():
                place.symlink_to(Path(str(needed.locate_file(name))))


@functools.cache  # a distribution may list thousands of files, and each environment has nearly the same ones
def _entries(distribution_name: str) -> frozenset[str]:
    """Return the files and directories of an installed distribution, in the directory that it is installed to."""
    files = distribution(distribution_name).files or ()
    return frozenset(file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__"))


def _distributions(packages: Path) -> Iterator[Distribution]:
    return (Distribution.at(path) for path in packages.glob("*.dist-info"))


def closure(
    requirements: Iterable[str], extras: set[str], known: dict[tuple[str, str], Distribution]
) -> dict[tuple[str, str], Distribution]:
    """Return the installed distributions that the requirements lead to, by name and extra."""
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            continue
        for extra in {"", *requirement.extras}:
            if (requirement.name, extra) not in known:
                found = known[requirement.name, extra] = distribution(requirement.name)
                closure(found.requires or (), {extra}, known)
    return known
