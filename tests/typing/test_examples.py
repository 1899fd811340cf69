"""Type checkers check application code: mypy and pyright find the lines marked ``# error``, and no others.

pyright reads the sample with the examples; mypy reads it in ``make lint``, with everything else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.meta.tree import ROOT, modules, name

HERE = Path(__file__).parent
EXAMPLES = sorted((HERE / "examples").glob("*.py"))
SAMPLE = modules("sample_project")
ERROR = re.compile(r"# error\b")
MYPY_ERROR = re.compile(r"(.+?):(\d+)(?::\d+)?: error: ")
Place = tuple[str, int]
"""A file and a line."""


def output_of(module: str, *arguments: str | Path) -> str:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environ = {
        **os.environ,
        "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
    }  # else it asks a server for versions
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def mypy() -> Iterator[Place]:
    for line in output_of("mypy", "--no-error-summary", "--no-pretty", *EXAMPLES).splitlines():
        if found := MYPY_ERROR.match(line):
            yield found[1], int(found[2])


def pyright() -> Iterator[Place]:
    report = json.loads(output_of("pyright", "--outputjson", "--pythonpath", sys.executable, "--project", HERE))
    assert report["summary"]["filesAnalyzed"] == len(EXAMPLES) + len(SAMPLE)
    for one in report["generalDiagnostics"]:
        yield name(Path(one["file"])), one["range"]["start"]["line"] + 1


def marked() -> set[Place]:
    return {
        (name(path), number)
        for path in EXAMPLES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if ERROR.search(line)
    }


@pytest.mark.parametrize("checker", [mypy, pyright], ids=["mypy", "pyright"])
def test_a_type_checker_finds_the_marked_lines_and_no_others(
    checker: Callable[[], Iterator[Place]],
) -> None:
    assert sorted(set(checker())) == sorted(marked())
