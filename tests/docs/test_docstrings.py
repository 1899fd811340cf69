"""The names that projects import from the two main doors have docstrings with examples, and the examples run."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import enode_django
from enode_django import testing
from enode_django.testing import contracts
from tests.meta.tree import ROOT

EXAMPLE = re.compile(r"^Example::\n\n((?: {4}.*\n|\n)+)", re.MULTILINE)
NEED_MORE = {
    "CommandContext": "it defines a command that only this example has",
    "CommandCrashed": "the same",
    "handles_crash": "the same",
    "ModelProjection": "models of Django",
    "Projection": "models of Django",
    "RowScenario": "models of Django",
    "ProcessScenario": "a process manager of its own",
    "Retry": "a mail server",
    "WaitFor": "subscribers",
    "aexecute_command": "a request",
    "aresult_of": "a request",
    "asend_command": "a request",
    "atry_command": "a request",
    "send_command_on_commit": "a database",
    "EventStoreContract": "pytest",
    "SharedStatesContract": "pytest",
    "SnapshotStoreContract": "pytest",
    "TransportContract": "pytest",
}
"""Examples that are compiled only, and what they would need."""
MODULES = (enode_django, testing, contracts)
NAMES = [(module.__name__, name) for module in MODULES for name in module.__all__]
RUN = """
import json, os, sys, traceback
import bank

exec('''
from collections.abc import Iterator
from enode_django import *
from enode_django import upcasts
from enode_django.testing import *

execute_command(OpenAccount("somebody", owner="Somebody"))  # a program without settings has names of types from then on
''', vars(bank))
for name, example in json.load(sys.stdin).items():
    child = os.fork()
    if not child:
        try:
            exec(example, vars(bank))
        except BaseException:
            print(name, traceback.format_exc(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
"""Runs each example in a process of its own, and prints those that fail."""


def example_of(module: str, name: str) -> str | None:
    documented = inspect.unwrap(getattr(sys.modules[module], name))
    found = EXAMPLE.search(inspect.cleandoc(documented.__doc__ or "") + "\n")
    return textwrap.dedent(found[1]) if found else None


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_public_name_has_an_example_in_its_docstring(module: str, name: str) -> None:
    example = example_of(module, name)
    assert example, f"the docstring of {name} needs an example: a line 'Example::', and an indented block"
    ast.parse(example)


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the module of the README's program, without its last two lines."""
    first = re.search(r"```python file=bank.py\n(.+?)\nexecute_command", (ROOT / "README.md").read_text(), re.DOTALL)
    assert first is not None
    directory = tmp_path_factory.mktemp("bank")
    (directory / "bank.py").write_text(first[1])
    return directory


def test_the_examples_run(bank: Path) -> None:
    examples = {name: example_of(module, name) for module, name in NAMES if name not in NEED_MORE}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(examples),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{bank}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_only_what_is_there_needs_more() -> None:
    assert set(NEED_MORE) - {name for _, name in NAMES} == set()
