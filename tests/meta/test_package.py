from __future__ import annotations

import ast
import tomllib

from tests.meta.tree import ROOT, modules, name

CONTRACTS = "enode_django/testing/"


def package() -> dict[str, ast.Module]:
    """The modules that an application runs; the contract suites are tests."""
    names = {name(path): ast.parse(path.read_text()) for path in modules("enode_django")}
    return {path: tree for path, tree in names.items() if not path.startswith(CONTRACTS)}


def imported(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


def called(tree: ast.Module) -> set[str]:
    functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in functions}


def test_nothing_is_pickled_by_the_package() -> None:
    unsafe = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    assert {path for path, tree in package().items() if unsafe & imported(tree)} == set()


def test_only_the_tasks_need_celery() -> None:
    celery = {"celery", "billiard", "kombu"}
    assert {path for path, tree in package().items() if celery & imported(tree)} == {"enode_django/tasks.py"}


def test_one_place_makes_threads_and_one_of_the_queue() -> None:
    makers = {"Thread", "Timer", "ThreadPoolExecutor", "start_new_thread"}
    assert {path for path, tree in package().items() if makers & called(tree)} == {
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
