"""The linter of imports finds what goes against the layers. That nothing does is checked by ``make lint``."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.meta.tree import ROOT

LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


STRAYS = {
    "enode_django/domain/stray.py": ("import django", "import no Django"),
    "enode_django/concurrency/stray.py": ("import enode_django.domain", "downward only"),
    "enode_django/equeue/stray.py": ("import enode_django.ids", "equeue is usable without the rest"),
    "enode_django/equeue/foreign.py": ("import enode_django.concurrency", "downward only"),
    "enode_django/eventstore/stray.py": ("import enode_django.commanding", "downward only"),
    "enode_django/eventstore/foreign.py": ("import enode_django.models", "not the models"),
}
"""Modules with a forbidden import, and the contract that each import breaks."""


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Return the linter's complaint by contract, for a tree with all strays. The tests share one run, which takes
    seconds."""
    directory = tmp_path_factory.mktemp("layers")
    shutil.copy(ROOT / "pyproject.toml", directory)
    shutil.copytree(ROOT / "enode_django", directory / "enode_django", ignore=shutil.ignore_patterns("__pycache__"))
    for module, (statement, _) in STRAYS.items():
        (directory / module).write_text(f"{statement}\n")
    done = subprocess.run(
        [LINT_IMPORTS, "--no-cache"], cwd=directory, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    _, _, said = done.stdout.partition("Broken contracts")
    titles = [*re.finditer(r"^(.+)\n-+$", said, re.MULTILINE)]
    ends = [*(title.start() for title in titles[1:]), len(said)]
    return {title[1]: said[title.end() : end] for title, end in zip(titles, ends, strict=True)}


@pytest.mark.parametrize("module", STRAYS)
def test_an_import_against_the_layers_is_found(complaints: Mapping[str, str], module: str) -> None:
    statement, contract = STRAYS[module]
    (said,) = (said for title, said in complaints.items() if contract in title)
    stray, imported = module.removesuffix(".py").replace("/", "."), statement.removeprefix("import ")
    assert f"{stray} -> {imported}" in said
