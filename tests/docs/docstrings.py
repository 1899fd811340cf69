"""The public names of the package, with the docstrings and examples that stand in its source.

Sources are parsed and not imported, so that names are found whose libraries are missing. An example is the indented
block that follows a line that ends with ``::``.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.docs.blocks import Block
from tests.docs.pages import DOCS, code_of, tables
from tests.meta.tree import ROOT

IMPORTS = DOCS / "reference" / "imports.md"
_MODULE = re.compile(r"enode_django[\w.]*")


class Public(NamedTuple):
    """A public name. ``kind`` is the class of the node that defines it; ``line`` is that of its docstring."""

    module: str
    name: str
    kind: type[ast.AST]
    path: Path
    line: int
    docstring: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def examples(self) -> list[Block]:
        """The blocks of its docstring, at their lines in the source."""
        lines = self.docstring.expandtabs().split("\n")
        return [
            Block(self.path, self.line + first - 1, "python", inspect.cleandoc("\n" + "\n".join(block)) + "\n")
            for first, block in _literal(lines)
        ]


@functools.cache
def public_names() -> list[Public]:
    """Return the names in the ``__all__`` of each module that the page on imports lists, in its order."""
    modules = [code_of(row[0]) for table in tables(IMPORTS) for row in table]
    return [
        _defined(module, name, module) for module in modules if _MODULE.fullmatch(module) for name in _exported(module)
    ]


def _literal(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the literal blocks, each with the index of its first line."""
    at = 0
    while at < len(lines):
        opens, indent = lines[at].rstrip().endswith("::"), _indent(lines[at]) if at else _indent(lines[-1])
        at += 1
        if not opens:
            continue
        first = at
        while at < len(lines) and (not lines[at].strip() or _indent(lines[at]) > indent):
            at += 1
        if block := [line for line in lines[first:at] if line.strip()]:
            first = lines.index(block[0], first)
            yield first, lines[first:at]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


@functools.cache
def _source(module: str) -> tuple[Path, list[ast.stmt]]:
    """Return the file of a module and its statements, those under ``if TYPE_CHECKING`` and the like among them."""
    place = ROOT.joinpath(*module.split("."))
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return path, list(_flat(ast.parse(path.read_text(encoding="utf-8")).body))


def _flat(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from _flat(statement.body)


def _exported(module: str) -> list[str]:
    """Return the names in ``__all__``; the classes of a module without one."""
    _, statements = _source(module)
    for statement in statements:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return list(ast.literal_eval(statement.value))
    return [statement.name for statement in statements if isinstance(statement, ast.ClassDef)]


def _defined(module: str, name: str, place: str) -> Public:
    """Find the definition of a name, from one module that imports it to the next."""
    path, statements = _source(place)
    for number, statement in enumerate(statements):
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) == name and statement.module is not None:
                    return _defined(module, alias.name, statement.module)._replace(name=name)
        elif isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if statement.name == name and not _is_overload(statement):
                return Public(module, name, type(statement), path, *_docstring(statement.body))
        elif name in _targets(statement):
            return Public(module, name, type(statement), path, *_docstring(statements[number + 1 :]))
    raise LookupError(f"{place} does not define {name}")


def _is_overload(statement: ast.stmt) -> bool:
    return any("overload" in ast.unparse(each) for each in getattr(statement, "decorator_list", ()))


def _targets(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.AnnAssign):
        return {ast.unparse(statement.target)}
    return {ast.unparse(target) for target in statement.targets} if isinstance(statement, ast.Assign) else set()


def _docstring(statements: list[ast.stmt]) -> tuple[int, str]:
    """Return the text that the statements begin with, and its line; an empty text if they begin otherwise."""
    for statement in statements[:1]:
        if isinstance(statement, ast.Expr) and isinstance(value := statement.value, ast.Constant):
            return statement.lineno, value.value if isinstance(value.value, str) else ""
    return 0, ""
