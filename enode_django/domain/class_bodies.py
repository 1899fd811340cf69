"""Marked methods of one class that have one name: Python would keep the last of them alone, in silence."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from enode_django.domain.annotations import is_method
from enode_django.exceptions import DefinitionError

_open: dict[str, dict[str, CodeType]] = {}
"""The marked methods by their names, for each class whose body is being executed."""


def check_marked_once(decorator: str, method: Callable[..., Any]) -> None:
    """Raise `DefinitionError` if another method of this name is marked in the same class body. Call it while the method
    is being defined."""
    code = getattr(method, "__code__", None)
    if code is None or not is_method(method):
        return
    owner, _, name = method.__qualname__.rpartition(".")
    body = _open.setdefault(f"{method.__module__}.{owner}", {})
    if _is_above(body.get(name), code):
        body.clear()  # who corrects the class defines it again
        raise DefinitionError(
            f"{owner} has two marked methods {name}(), of which Python would keep the last one only; give the one that "
            f"@{decorator} marks another name"
        )
    body[name] = code


def _is_above(first: CodeType | None, second: CodeType) -> bool:
    """Return True if both are in one class body. An earlier attempt at the class may have left a method behind."""
    return (
        first is not None
        and first.co_filename == second.co_filename
        and first.co_firstlineno < second.co_firstlineno
        and not first.co_filename.startswith("<")  # of a console, each of whose inputs has its own numbers
    )


def close_body(cls: type) -> None:
    """Forget the methods of a class that is made now."""
    _open.pop(f"{cls.__module__}.{cls.__qualname__}", None)
