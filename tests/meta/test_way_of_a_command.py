"""The figures of ``tests/way_of_a_command.py``, which the pages name."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.meta.tree import ROOT

MOST_FILES, MOST_CHANGES = 30, 20


def test_few_files_and_rooms_pass_a_command_on_to_its_row() -> None:
    embedded = [sys.executable, "-m", "sample_project.embedded", "postgres", "broker", "--"]
    done = subprocess.run(
        [*embedded, sys.executable, "-m", "tests.way_of_a_command"],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "sample_project.settings"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"^files that pass it on: (\d+), (\d+) changes of rooms$", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    files, changes = map(int, found.groups())
    assert files <= MOST_FILES, done.stdout
    assert changes <= MOST_CHANGES, done.stdout
    assert "eventstore/postgres.py" in done.stdout
