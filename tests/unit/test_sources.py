"""Texts of sources: the same in every version of Python, others if something else is done."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from enode_django.repository.sources import Source, source_of
from tests.meta.tree import ROOT

EVERYTHING = ROOT / "tests" / "unit" / "every_syntax.py"
VERSIONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
SHOW = """
import runpy, sys
from types import FunctionType
from enode_django.repository.sources import source_of
for name, value in runpy.run_path(sys.argv[1]).items():
    if isinstance(value, FunctionType):
        print(name, source_of(value))
"""


@functools.cache
def shown_by(python: str) -> str:
    return subprocess.run(
        [python, "-c", SHOW, str(EVERYTHING)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def python_of(version: str) -> str | None:
    """Return an interpreter that runs: on the path, or where pyenv keeps them."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for python in (f"python{version}", *map(str, kept)):
        with suppress(OSError):
            if subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
                return python
    return None


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_of_python_makes_the_same_texts(version: str) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"python{version} is not here")
    ours = shown_by(sys.executable)
    assert ours.count("\n") >= 20
    assert "None" not in {line.partition(" ")[2] for line in ours.splitlines()}
    assert shown_by(python) == ours


@pytest.mark.parametrize("kind", [ast.Import, ast.ImportFrom])
def test_what_a_later_python_adds_to_imports_changes_no_text(
    kind: type[ast.AST], monkeypatch: pytest.MonkeyPatch
) -> None:
    def importing() -> object:
        import math
        from math import pi

        return math, pi

    before = source_of(importing)
    assert before is not None
    assert kind.__name__ in before.text
    monkeypatch.setattr(kind, "_fields", (*(name for name in kind._fields if name != "is_lazy"), "is_lazy"))
    monkeypatch.setattr(kind, "is_lazy", 0, raising=False)  # as in Python 3.15
    assert source_of(importing) == before


numbers = itertools.count()


def function(source: str, name: str = "f") -> FunctionType:
    module, path = ModuleType("sources"), f"sources-{next(numbers)}.py"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    exec(compile(source, path, "exec"), vars(module))
    found: FunctionType = vars(module)[name]
    return found


def read(source: str, name: str = "f") -> Source:
    found = source_of(function(source, name))
    assert found is not None
    return found


SAME = [
    ("def f(a): return a + 1", "def f(a):\n    # more\n    return (a\n        + 1)"),
    ("def f(a): return a", 'def f(a: "int" = 3) -> int:\n    """Text."""\n    return a'),
    ("def f(a):\n    b = a\n    return b", "def f(a):\n    pass\n    b = a\n    0\n    return b"),
    ("def f(): return 'a' 'b'", 'def f(): return "ab"'),
    ("def f(): return f'{1}a' 'b'", "def f(): return f'{1}ab'"),
]
OTHER = [
    ("def f(a): return a + 1", "def f(a): return a - 1"),
    ("def f(a): return a + 1", "def f(a): return a + 1.0"),
    ("def f(a): return a", "def f(*a): return a"),
    ("def f(a): return a", "async def f(a): return a"),
    ("def f(a): return a", "def f(a): return None"),
    ("def f(a): return", "def f(a): return ''"),
    ("def f(a): return {**a}", "def f(a): return {None: a}"),
    ("def f(a): return f'{a}'", "def f(a): return f'{a!r}'"),
    ("def f(a): return f'{a:2}'", "def f(a): return f'{a:3}'"),
    ("def f(a):\n    if a: pass\n    return 1", "def f(a):\n    return 1"),
    ("def f(a):\n    for x in a: pass\n    else: a()", "def f(a):\n    for x in a: pass\n    a()"),
    ("def f(a): return a[1:]", "def f(a): return a[:1]"),
    ("def f(a): return True", "def f(a): return 1"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_does_the_same_has_the_same_text(one: str, other: str) -> None:
    assert read(one) == read(other)


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_what_does_something_else_has_another_text(one: str, other: str) -> None:
    assert read(one).text != read(other).text


def test_names_are_those_that_are_read() -> None:
    assert read("def f(a):\n    return LIMIT * a.rate.of(table[a])").names == ["LIMIT", "rate", "of", "table"]


def test_private_names_are_those_that_python_makes_of_them() -> None:
    source = "class _Box:\n    def f(self): return self.__x + self.__y__ + __z\nf = _Box.f"
    assert read(source).names == ["_Box__x", "__y__", "_Box__z"]


def test_of_several_lambdas_in_a_line_each_has_its_own_text() -> None:
    source = "f, g = (lambda a: a + 1), (lambda a: a + 2)"
    assert "Constant(value=int 1)" in read(source, "f").text
    assert "Constant(value=int 2)" in read(source, "g").text


def test_a_decorated_function_is_found_by_its_first_decorator() -> None:
    assert "Constant(value=int 7)" in read("def same(f): return f\n@same\n@same\ndef f(): return 7").text


def test_code_without_a_source_or_with_another_one_has_no_text() -> None:
    made = function("def f(): return 1")
    linecache.cache[made.__code__.co_filename] = (1, None, ["x = 1\n"], "")
    assert source_of(made) is None
    assert source_of(eval("lambda: 1")) is None
