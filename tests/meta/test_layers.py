from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.meta.tree import ROOT

LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def lint_imports(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LINT_IMPORTS, "--no-cache"], cwd=directory, capture_output=True, text=True, timeout=240, check=False
    )


def test_imports_go_downward_only() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("enode_django/domain/stray.py", "import django.conf", "import no Django"),
        ("enode_django/concurrency/stray.py", "import enode_django.domain", "downward only"),
        ("enode_django/equeue/stray.py", "import enode_django.ids", "equeue is usable without the rest"),
        ("enode_django/equeue/stray.py", "import enode_django.concurrency", "downward only"),
        ("enode_django/eventstore/stray.py", "import enode_django.commanding", "downward only"),
        ("enode_django/eventstore/stray.py", "import enode_django.models", "not the models"),
    ],
)
def test_an_import_against_the_layers_is_found(tmp_path: Path, module: str, statement: str, contract: str) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "enode_django", tmp_path / "enode_django", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / module).write_text(f"{statement}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = (line for line in done.stdout.splitlines() if contract in line and line.endswith(("KEPT", "BROKEN")))
    assert line.endswith("BROKEN")
