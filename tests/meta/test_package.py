from __future__ import annotations

import ast
import functools
import tomllib
from typing import NamedTuple

from tests.meta.tree import ROOT, modules, name

CONTRACTS = "enode_django/testing/"


class Uses(NamedTuple):
    """The top-level packages that a module imports, and the names of the functions that it calls."""

    imported: set[str]
    called: set[str]


@functools.cache
def package() -> dict[str, Uses]:
    """The modules that an application runs; the contract suites are tests."""
    names = {name(path): path for path in modules("enode_django")}
    return {path: uses(file.read_text()) for path, file in names.items() if not path.startswith(CONTRACTS)}


def uses(source: str) -> Uses:
    found = Uses(set(), set())
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.imported.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.imported.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Call):
            found.called.add(getattr(node.func, "attr", getattr(node.func, "id", "")))
    return found


def test_nothing_is_pickled_by_the_package() -> None:
    unsafe = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    assert {path for path, module in package().items() if unsafe & module.imported} == set()


def test_only_the_tasks_need_celery() -> None:
    celery = {"celery", "billiard", "kombu"}
    assert {path for path, module in package().items() if celery & module.imported} == {"enode_django/tasks.py"}


def test_one_place_makes_threads_and_one_of_the_queue() -> None:
    makers = {"Thread", "Timer", "ThreadPoolExecutor", "start_new_thread"}
    assert {path for path, module in package().items() if makers & module.called} == {
        "enode_django/concurrency/threads.py",
        "enode_django/equeue/threads.py",  # it stands alone
    }


def test_the_package_has_its_extras_and_its_types() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = {"redis", "celery", "spark", "api", "metrics", "tracing", "embedded"}
    assert set(project["project"]["optional-dependencies"]) == extras
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["enode_django"]
    assert (ROOT / "enode_django" / "py.typed").is_file()
    assert project["tool"]["mypy"]["strict"] is True
