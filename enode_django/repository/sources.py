"""The source of functions as texts that are the same in every version of Python, and for every layout of the source.

A text is the syntax tree without what has no effect: comments, docstrings, annotations, places, parentheses. Code
without an available source, such as code typed into a shell, has no text.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LAMBDA = "<lambda>"
_IGNORED = frozenset({"ctx", "kind", "type_comment", "annotation", "returns", "is_lazy"})
"""Fields of nodes that do not change what the code does. Python 3.15 adds ``is_lazy``, which no import in a function
is."""
MODULES_KEPT = 4
"""Syntax trees of modules that are kept for further functions."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Source(NamedTuple):
    """``names`` are the globals and attributes in the source, each once, in the order of the text."""

    text: str
    names: Sequence[str]


def source_of(function: FunctionType) -> Source | None:
    """Return the source of a function, or None if it is not available, or does not have the function at its place."""
    code = function.__code__
    node = _node_of(code, function.__globals__)
    if node is None:
        return None
    owner = function.__qualname__.rpartition(".<locals>.")[2].rpartition(".")[0].rpartition(".")[2]
    body = node.body if isinstance(node, ast.Lambda) else _effective(node.body)
    text = f"{type(node).__name__} {_dump(_parameters(node.args))} {_dump(body)}"
    read = _names_read(code)
    return Source(text, [name for name in dict.fromkeys(_names(body, owner.lstrip("_"))) if name in read])


def _names_read(code: CodeType) -> set[str]:
    """Return the names that are not local variables: globals and attributes, also of functions inside."""
    return set(code.co_names).union(*(_names_read(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _node_of(code: CodeType, known: dict[str, Any]) -> FunctionNode | None:
    lines = linecache.getlines(code.co_filename, known)
    nodes = _functions("".join(lines)).get((code.co_firstlineno, code.co_name), [])
    if len(nodes) <= 1 or code.co_name != _LAMBDA:
        return nodes[0] if len(nodes) == 1 else None
    around = [node for node in nodes if _has_positions(node, code)]
    return around[0] if len(around) == 1 else None


@lru_cache(maxsize=MODULES_KEPT)
def _functions(source: str) -> dict[tuple[int, str], list[FunctionNode]]:
    """Return the functions of a module by their first lines, decorators included, and names."""
    found: dict[tuple[int, str], list[FunctionNode]] = {}
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return found
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            line = min([node.lineno, *(one.lineno for one in decorators)])
            found.setdefault((line, getattr(node, "name", _LAMBDA)), []).append(node)
    return found


def _has_positions(node: FunctionNode, code: CodeType) -> bool:
    """Return True if a lambda's body is where the code came from. One line may have several lambdas."""
    assert isinstance(node, ast.Lambda)
    begin, end = (node.body.lineno, node.body.col_offset), (node.body.end_lineno or 0, node.body.end_col_offset or 0)
    places = [(line, column) for line, _, column, until in code.co_positions() if line and column is not None and until]
    return bool(places) and all(begin <= place < end for place in places)


def _parameters(arguments: ast.arguments) -> ast.arguments:
    """Return parameters without defaults, which are values: the caller looks at these."""
    return ast.arguments(
        posonlyargs=arguments.posonlyargs,
        args=arguments.args,
        vararg=arguments.vararg,
        kwonlyargs=arguments.kwonlyargs,
        kw_defaults=[],
        kwarg=arguments.kwarg,
        defaults=[],
    )


def _effective(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return the statements without docstrings, other expressions that are constants, and ``pass``."""
    return [
        statement
        for statement in body
        if not isinstance(statement, ast.Pass)
        and not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
    ]


def _dump(node: Any) -> str:
    """Return a text as `ast.dump` does, without empty fields: newer versions of Python have more of them."""
    if isinstance(node, ast.JoinedStr):
        return f"JoinedStr(values={_dump(_joined(node.values))})"
    if isinstance(node, ast.AST):
        fields = (f"{name}={_dump(value)}" for name, value in _fields(node))
        return f"{type(node).__name__}({', '.join(fields)})"
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    return f"{type(node).__name__} {node!r}"


def _fields(node: ast.AST) -> Iterator[tuple[str, Any]]:
    for name in node._fields:
        value = getattr(node, name, None)
        if name == "body" and isinstance(value, list):
            value = _effective(value)
        if name in _IGNORED or (value is None and not isinstance(node, ast.Constant)) or value == []:
            continue
        yield name, value


def _joined(values: Sequence[ast.expr]) -> list[ast.expr]:
    """Join adjacent constants of an f-string, and leave out empty ones: Python 3.12.1 adds some."""
    joined: list[ast.expr] = []
    for value in values:
        before = joined[-1] if joined else None
        if isinstance(value, ast.Constant) and value.value == "":
            continue
        if isinstance(value, ast.Constant) and isinstance(before, ast.Constant):
            joined[-1] = ast.Constant(str(before.value) + str(value.value))
        else:
            joined.append(value)
    return joined


def _names(node: Any, owner: str) -> Iterator[str]:
    """Yield the names in the order of the text, without those in assertions, which ``python -O`` leaves out. Private
    names of a class are mangled as Python does."""
    if isinstance(node, ast.Assert):
        return
    if isinstance(node, list):
        for one in node:
            yield from _names(one, owner)
    elif isinstance(node, ast.AST):
        if isinstance(node, ast.Name):
            yield _mangled(node.id, owner)
        for name, value in _fields(node):
            if isinstance(value, ast.AST | list):
                yield from _names(value, owner)
            elif isinstance(node, ast.Attribute) and name == "attr":
                yield _mangled(value, owner)


def _mangled(name: str, owner: str) -> str:
    return f"_{owner}{name}" if owner and name.startswith("__") and not name.endswith("__") else name
