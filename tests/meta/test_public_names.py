"""The sample or its tests use every public name, so everything has an example."""

from __future__ import annotations

import ast
import functools
import inspect
import tomllib
from collections.abc import Iterator
from typing import get_overloads

import enode_django
from enode_django import pytest_plugin, testing
from enode_django.testing import contracts
from tests.meta.tree import ROOT, modules


@functools.cache
def sample() -> list[ast.Module]:
    return [ast.parse(path.read_text()) for path in modules("sample_project")]


def imported(module: str) -> set[str]:
    """Return the names that the sample imports from the module. The linter refuses unused imports."""
    return {
        alias.name
        for tree in sample()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    }


def parameters() -> Iterator[str]:
    """Yield the parameters of the sample's tests."""
    for tree in sample():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield from (argument.arg for argument in node.args.args)


def test_every_public_name_is_used_by_the_sample() -> None:
    assert set(enode_django.__all__) - imported("enode_django") == set()


def test_every_name_of_the_testing_kit_is_used_by_the_samples_tests() -> None:
    returned = {inspect.signature(each).return_annotation.partition("[")[0] for each in get_overloads(testing.given)}
    assert returned == {"ProcessScenario", "RowScenario", "RowsScenario", "Scenario"}
    assert set(testing.__all__) - returned - imported("enode_django.testing") == set()
    assert set(contracts.__all__) - imported("enode_django.testing.contracts") == set()


def test_every_fixture_of_the_plugin_is_used_by_the_samples_tests() -> None:
    tree = ast.parse(inspect.getsource(pytest_plugin))
    fixtures = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any("fixture" in ast.unparse(each) for each in node.decorator_list)
    }
    assert len(fixtures) == 4
    assert fixtures - set(parameters()) == set()


def test_pytest_is_told_of_the_plugin_by_the_name_that_others_load_it_by() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name = pytest_plugin.__name__
    assert project["entry-points"]["pytest11"] == {name: name}
