"""Marked methods of one class that have one name: Python would keep the last of them alone, in silence."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from enode_django.domain.annotations import is_method
from enode_django.exceptions import DefinitionError


def check_marked_once(decorator: str, method: Callable[..., Any]) -> None:
    """Raise `DefinitionError` if the method takes the place of another marked one in the body of its class. Call it
    while the method is being defined."""
    if not is_method(method):
        return
    owner, _, name = method.__qualname__.rpartition(".")
    body = _body_of(owner)
    first = body.get(name)
    if first is not method and _is_marked(first) and not _has_other_name(first, body):
        raise DefinitionError(
            f"{owner} has two marked methods {name}(), of which Python would keep the last one only; give the one that "
            f"@{decorator} marks another name"
        )


def _body_of(owner: str) -> Mapping[str, object]:
    """Return what the body of a class has defined so far; nothing if it is not being executed."""
    frame, code_name = inspect.currentframe(), owner.rpartition(".")[2]
    while frame is not None:
        if frame.f_code.co_name == code_name and frame.f_locals.get("__qualname__") == owner:
            return frame.f_locals
        frame = frame.f_back
    return {}


def _is_marked(member: object) -> bool:
    return any(name.startswith("_enode_") for name in getattr(member, "__dict__", ()))


def _has_other_name(member: object, body: Mapping[str, object]) -> bool:
    return sum(each is member for each in body.values()) > 1
