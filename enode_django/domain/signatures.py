"""Checks of handlers at definition time: otherwise a mistake would appear with the first message."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from enode_django.exceptions import DefinitionError


def check_handler(function: Callable[..., Any], *arguments: str, may_yield: bool = False) -> None:
    """Raise `DefinitionError` for a function that cannot be called with these positional arguments, or whose body does
    not run when it is called: an async function, and a generator unless ``may_yield``."""
    name = getattr(function, "__qualname__", repr(function))
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(f"{name} is async; a handler is a plain function")
    if inspect.isgeneratorfunction(function) and not may_yield:
        raise DefinitionError(f"{name} yields, so that calling it does nothing; only process managers yield commands")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C, or an object without a signature
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise DefinitionError(f"{name}{signature} cannot take ({', '.join(arguments)}): {error}") from error


def check_method(cls: type, name: str, *arguments: str, may_yield: bool = False) -> None:
    """Check a method that is called on an instance with these arguments, like `check_handler`."""
    own = () if isinstance(inspect.getattr_static(cls, name), staticmethod | classmethod) else ("self",)
    check_handler(getattr(cls, name), *own, *arguments, may_yield=may_yield)


def check_marked(cls: type, name: str, what: str, *arguments: str) -> None:
    """Check a marked method. It is called by its name, so no field may have the same name."""
    if any(name in inspect.get_annotations(base) for base in cls.__mro__):
        raise DefinitionError(f"{cls.__qualname__} has a field and {what} {name!r}; choose another name for one")
    check_method(cls, name, *arguments)


def takes_context(handler: Callable[..., Any], *arguments: str) -> bool:
    """Return True if the handler of a command takes a context after these arguments. Raises `DefinitionError` like
    `check_handler`, and for a further parameter with a default that is not called ``context``."""
    try:
        check_handler(handler, *arguments)
    except DefinitionError:
        check_handler(handler, *arguments, "context")
        return True
    try:
        check_handler(handler, *arguments, "context")
    except DefinitionError:
        return False
    for name, parameter in inspect.signature(handler).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL or name == "context":
            return True
    raise DefinitionError(
        f"{handler.__qualname__}{inspect.signature(handler)} has a further parameter with a default; call it context, "
        "or let it be given by keyword only"
    )
