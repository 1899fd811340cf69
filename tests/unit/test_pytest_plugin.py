"""The fixtures that pytest has from the package, in runs of their own."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

from enode_django import pytest_plugin
from tests.meta.tree import ROOT

FOREIGN = """
import sys

def test_of_a_project_without_django():
    imported = {name for name in sys.modules if name.startswith(("django", "enode_django", "psycopg"))}
    assert imported <= {"enode_django", "enode_django.pytest_plugin"}
"""
DOMAIN = """
from enode_django import AggregateRoot, Command, DomainEvent, applies, command_handler, event_handler

class Opened(DomainEvent):
    type_name = "own.Opened"

class Open(Command[str]):
    type_name = "own.Open"

class Account(AggregateRoot):
    type_name = "own.Account"

    @command_handler(creates=True)
    def open(self, command: Open) -> str:
        self.apply(Opened())
        return self.id

    @applies
    def _opened(self, event: Opened) -> None: ...
"""
IN_MEMORY = (
    """
import django
from django.conf import settings
settings.configure()
django.setup()
"""
    + DOMAIN
    + """
def test_without_a_database(enode_event_store, enode_execute):
    assert enode_execute(Open("a")).value == "a"
    assert enode_event_store.heads(["a"]) == {"a": 1}
"""
)
IMMEDIATE = (
    DOMAIN
    + """
import pytest
from enode_django.testing import inline

opened = []

@event_handler
def note(event: Opened) -> None:
    opened.append(event.aggregate_root_id)

@pytest.mark.parametrize("id", ["a", "b"])
def test_every_test_begins_with_nothing(enode_execute, enode_given, id):
    opened.clear()
    enode_given().when(Open(id)).then(Opened()).then_result(id)
    for other in ("a", "b"):
        assert enode_execute(Open(other)).version == 1
    assert opened == ["a", "b"]

@pytest.mark.enode(followed_by=[])
def test_nobody_follows(enode_execute):
    opened.clear()
    enode_execute(Open("a"))
    assert opened == []

def test_a_function_follows():
    opened.clear()
    with inline(followed_by=[note]) as bus:
        bus.execute(Open("a"), 0)
        assert Account.load("a").version == 1
    assert opened == ["a"]
"""
)
LATE = (
    IN_MEMORY
    + """
def test_with_a_database_that_is_not_a_tests_own(request):
    request.getfixturevalue("enode_execute")
"""
)
CONTRACT = """
import pytest
from enode_django.repository.store import MemorySnapshotStore
from enode_django.testing.contracts import SnapshotStoreContract

class Forgetful(MemorySnapshotStore):
    def load(self, ids):
        return {}

class TestForgetful(SnapshotStoreContract):
    @pytest.fixture
    def snapshots(self):
        return Forgetful()
"""


def run(directory: Path, text: str, *arguments: str) -> str:
    (directory / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "enode_django.pytest_plugin", "-p", "no:cacheprovider"]
    environment = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, "--strict-markers", *arguments],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_every_fixture_has_a_name_of_the_package() -> None:
    tree = ast.parse(inspect.getsource(pytest_plugin))
    fixtures = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any("fixture" in ast.unparse(one) for one in node.decorator_list)
    ]
    assert fixtures == ["enode_event_store", "enode_bus", "enode_execute", "enode_given"]


def test_a_run_that_uses_none_of_it_imports_nothing_of_it(tmp_path: Path) -> None:
    assert "1 passed" in run(tmp_path, FOREIGN)


def test_in_memory_neither_a_database_nor_the_plugin_for_django_is_needed(tmp_path: Path) -> None:
    """Nothing is ever executed in a database that is not a test's."""
    shown = run(tmp_path, LATE)
    assert "1 failed, 1 passed" in shown
    assert "needs a test database: install pytest-django, and name the fixture as a parameter" in shown


def test_a_script_without_settings_is_tested_in_memory(tmp_path: Path) -> None:
    """Also beside the plugin for Django."""
    assert "4 passed" in run(tmp_path, IMMEDIATE, "-p", "pytest_django")


def test_a_suite_says_what_a_driver_did_wrong(tmp_path: Path) -> None:
    shown = run(tmp_path, CONTRACT, "-k", "test_what_is_saved_comes_back")
    assert "Right contains 2 more items" in shown, shown


def test_wrong_arguments_of_the_mark_are_told_by_what_to_write(tmp_path: Path) -> None:
    wrong = ["", "['accounts']", "followed_by=[], store=None"]
    tests = [f"@pytest.mark.enode({each})\ndef test_{n}(enode_bus):\n    pass\n" for n, each in enumerate(wrong)]
    shown = run(tmp_path, "import pytest\n\n" + "\n".join(tests))
    for n in range(len(wrong)):
        told = shown.partition(f" ERROR at setup of test_{n} _")[2].partition(" ERROR at setup of ")[0]
        assert "@pytest.mark.enode(followed_by=[…])" in told, shown
