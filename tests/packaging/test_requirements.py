"""The pinned requirements are complete: they are installed without resolving anything."""

from __future__ import annotations

import re
import tomllib
from itertools import chain

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
