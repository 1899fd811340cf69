"""The pages on testing: their examples for pytest pass, and they document the whole testing kit."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

from enode_django import pytest_plugin, testing
from enode_django.testing import contracts
from tests.docs.pages import DOCS, rows_by_code
from tests.docs.test_code_blocks import project, write_files  # noqa: F401
from tests.meta.tree import ROOT
from tests.template import migrated_database

HOWTO = DOCS / "howto" / "testing.md"
REFERENCE = DOCS / "reference" / "testing.md"


def test_what_the_page_shows_for_pytest_passes(project: Path) -> None:  # noqa: F811
    write_files(HOWTO, project)
    files = ["accounts/tests.py", "accounts/test_withdrawing.py", "accounts/test_transports.py"]
    (project / "conftest.py").write_text('pytest_plugins = ["enode_django.pytest_plugin"]\n')
    environment = {**os.environ, **migrated_database(), "PYTHONPATH": f"{project}{os.pathsep}{ROOT}"}
    environment.pop("DJANGO_SETTINGS_MODULE", None)  # the page sets it
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=project, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    suite = [name for name in dir(contracts.TransportContract) if name.startswith("test_")]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > len(suite)


def test_every_name_of_the_testing_kit_is_documented() -> None:
    rows = {re.split(r"\W", name)[0] for name in rows_by_code(REFERENCE)}
    fixtures = re.findall(r"@pytest\.fixture\ndef (\w+)", inspect.getsource(pytest_plugin))
    assert {*testing.__all__, *contracts.__all__, *fixtures} <= rows
