"""The two programs of the comparison run, and its table counts their lines."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.blocks import blocks
from tests.docs.pages import DOCS, tables
from tests.meta.tree import ROOT

PAGE = DOCS / "discussions" / "beside-eventsourcing.md"
OURS, THEIRS = [block.text for block in blocks(PAGE) if block.language == "python"]


def lines_of(program: str) -> dict[str, int]:
    text = program.splitlines()
    counts = Counter[str]()
    for node in ast.parse(program).body:
        kind = {ast.ImportFrom: "imports", ast.ClassDef: "classes"}.get(type(node), "calls")
        assert node.end_lineno is not None
        counts[kind] += sum(1 for line in text[node.lineno - 1 : node.end_lineno] if line.strip())
    return {**counts, "together": counts.total()}


@pytest.mark.parametrize("program", [OURS, THEIRS], ids=["enode_django", "eventsourcing"])
def test_a_program_runs_without_a_server(program: str, tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(program)
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(
        [sys.executable, "bank.py"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_the_table_counts_their_lines() -> None:
    ours, theirs = lines_of(OURS), lines_of(THEIRS)
    counted = next(table for table in tables(PAGE) if table[0][0] == "imports")
    assert {row[0]: (int(row[1]), int(row[2])) for row in counted} == {key: (ours[key], theirs[key]) for key in ours}
