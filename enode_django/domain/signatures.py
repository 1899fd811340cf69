"""Looking at handlers when they are defined: a mistake would else show when the first message comes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from enode_django.exceptions import DefinitionError


def check_handler(function: Callable[..., Any], *arguments: str, may_yield: bool = False) -> None:
    """Raises `DefinitionError` for a function that cannot be called with these arguments, by place, or whose body would
    not run when it is called: an async one, and a generator unless it ``may_yield``."""
    name = getattr(function, "__qualname__", repr(function))
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(f"{name} is async; a handler is a plain function")
    if inspect.isgeneratorfunction(function) and not may_yield:
        raise DefinitionError(f"{name} yields, so that calling it does nothing; only process managers yield commands")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C, or an object that does not tell
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise DefinitionError(f"{name}{signature} cannot take ({', '.join(arguments)}): {error}") from error


def check_method(cls: type, name: str, *arguments: str, may_yield: bool = False) -> None:
    """Check a method that is called on an instance with these arguments, as `check_handler` checks a function."""
    own = () if isinstance(inspect.getattr_static(cls, name), staticmethod | classmethod) else ("self",)
    check_handler(getattr(cls, name), *own, *arguments, may_yield=may_yield)


def check_marked(cls: type, name: str, what: str, *arguments: str) -> None:
    """Check a method that its class has marked, which is called by its name: no field may have that."""
    if any(name in inspect.get_annotations(base) for base in cls.__mro__):
        raise DefinitionError(f"{cls.__qualname__} has a field and {what} {name!r}; choose another name for one")
    check_method(cls, name, *arguments)


def takes_context(handler: Callable[..., Any], *arguments: str) -> bool:
    """Return True if the handler of a command takes a context behind these arguments. Raises `DefinitionError` as
    `check_handler` does, and for a parameter that has a default and another name: nothing says that it is for that."""
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
