from __future__ import annotations

import subprocess
import sys

from tests.meta.tree import ROOT

FOREIGN = ("enode_django", "sample_project", "django", "tests", "conftest")
IMPORT_ALL = f"""
import importlib, pkgutil, sys
import chaos.checker
for module in pkgutil.walk_packages(chaos.checker.__path__, "chaos.checker."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
importlib.import_module("chaos.checker.__main__")
found = [name for name in sys.modules if name.split(".")[0] in {FOREIGN!r}]
found += [name for name in sys.modules if name.startswith("chaos.") and not name.startswith("chaos.checker")]
print(*found)
"""


def test_the_checker_imports_nothing_of_what_it_judges() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
