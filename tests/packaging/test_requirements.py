"""The pinned requirements are complete: they are installed without resolving anything."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from itertools import chain
from pathlib import Path

from tests.meta.tree import ROOT
from tests.packaging.isolated import closure

SOME_PYTHONS = {"async-timeout"}
"""Needed by some versions of Python only."""
UNNAMED = {"setuptools"}
"""A wheel that needs it does not say so."""


def pinned(file: str) -> set[str]:
    pins = re.findall(r"^([^#=\n]+)==", (ROOT / file).read_text(), re.MULTILINE)
    return set(map(normalized, pins))


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_samples_requirements_are_what_its_extras_and_its_group_lead_to() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, groups = settings["project"], settings["dependency-groups"]
    extras = [project["optional-dependencies"][name] for name in ("redis", "celery", "api", "embedded")]
    wanted = closure(chain(project["dependencies"], *extras, groups["sample"]), set(), {})
    names = {normalized(each.metadata["Name"]) for each in wanted.values()}
    assert names - SOME_PYTHONS == pinned("requirements-sample.txt") - SOME_PYTHONS - UNNAMED


PYTHON = """#!/bin/sh
echo "$@" >>{log}
case "$*" in
    *"-m uv "*) exit {uv};;
    *" uv=="*) exit {uv};;
    *" -r /dev/stdin") cat >>{log};;
esac
"""
"""Stands for a Python. Installing and running uv ends with the status ``uv``; what else is installed is noted."""


def installing(directory: Path, uv: int) -> str:
    """Return what `make demo` and `make test` tell pip and uv in a fresh clone."""
    log, python = directory / "log", directory / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.format(log=log, uv=uv))
    python.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    names = [f"VENV={python.parents[1]}", f"PYTHON={python}"]
    made = subprocess.run(
        ["make", *names, f"{python.parents[1]}/.installed"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    return log.read_text()


def test_uv_installs_into_the_environment_whatever_its_variables_name(tmp_path: Path) -> None:
    told = [line for line in installing(tmp_path, uv=0).splitlines() if line.startswith("-m uv ")]
    assert [line.split()[-1] for line in told] == ["requirements-sample.txt", "requirements.txt"]
    assert all(f"--python {tmp_path}/venv/bin/python" in line for line in told)


def test_a_machine_that_no_wheel_of_uv_is_for_installs_all_else(tmp_path: Path) -> None:
    noted = installing(tmp_path, uv=1)
    installed = set(map(normalized, re.findall(r"^([^#=\s]+)==", noted, re.MULTILINE)))
    assert installed == (pinned("requirements-sample.txt") | pinned("requirements.txt")) - {"uv"}
