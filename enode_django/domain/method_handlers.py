"""Methods of aggregate roots that handle commands.

A method is called by its name, so that a subclass may override it. Each is registered once, for the class in whose body
it is marked. It also handles aggregates of subclasses; with ``creates=True`` it makes an instance of the marking class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

from enode_django.domain.handlers import Handler, MarkedMethod, command_handlers, marks_of
from enode_django.domain.messages import Command
from enode_django.domain.signatures import check_marked
from enode_django.exceptions import DefinitionError

if TYPE_CHECKING:
    from enode_django.domain.aggregate import AggregateRoot


class _Marked(NamedTuple):
    owner: type
    name: str
    mark: MarkedMethod


def register_methods(cls: type) -> None:
    """Register the marked methods of a new class of aggregate roots, and check the inherited ones."""
    command_handlers.strays.difference_update(mark for member in vars(cls).values() for mark in marks_of(member))
    methods = _collect(cls)
    for name, mark in {(each.name, each.mark) for each in methods.values()}:
        check_marked(cls, name, "a handler", "command", *["context"] * mark.takes_context)
    for command, (owner, name, mark) in methods.items():
        if owner is cls:
            command_handlers.replace(command, _handler(cls, name, mark), retry_on=mark.retry_on)


def _collect(cls: type) -> dict[type[Command], _Marked]:
    """Return the method of each command, with the mark of the topmost class that has one."""
    methods: dict[type[Command], _Marked] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            for mark in marks_of(member):
                if mark in command_handlers.strays:
                    raise DefinitionError(f"{mark.name}() is marked, but {base.__qualname__} is not an aggregate root")
                for command in mark.commands:
                    first = methods.setdefault(command, _Marked(base, name, mark))
                    _check_again(cls, command, first, _Marked(base, name, mark))
    return methods


def _check_again(cls: type, command: type[Command], first: _Marked, other: _Marked) -> None:
    """Raise `DefinitionError` unless a second mark for a command belongs to a compatible override of the method."""
    if other.name != first.name:
        raise DefinitionError(
            f"{cls.__qualname__} has two methods for {command.__qualname__}: {first.name}() and {other.name}(); "
            "keep one"
        )
    if other.mark is first.mark:
        return
    if first.mark.creates or other.mark.creates:
        raise DefinitionError(
            f"{command.__qualname__} creates {first.owner.__qualname__} by {first.name}(); let "
            f"{other.owner.__qualname__} be created by a command of its own"
        )
    if other.mark.retry_on not in (None, first.mark.retry_on):
        raise DefinitionError(
            f"{other.mark.name}() has another retry_on than {first.mark.name}(), which it overrides; leave it out"
        )


def _handler(cls: type, name: str, mark: MarkedMethod) -> Handler:
    aggregate_of: Callable[[Any], Any] = partial(_added, cls) if mark.creates else methodcaller("get", cls)

    def handle(command: Any, context: Any) -> Any:
        return getattr(aggregate_of(context), name)(command)

    def handle_with_context(command: Any, context: Any) -> Any:
        return getattr(aggregate_of(context), name)(command, context)

    handler = handle_with_context if mark.takes_context else handle
    handler._enode_aggregate = cls  # type: ignore[attr-defined]
    handler._enode_creates = mark.creates  # type: ignore[attr-defined]
    handler.__module__, handler.__qualname__ = cls.__module__, f"{cls.__qualname__}.{name}"
    return handler


def aggregate_of(command: type[Command]) -> type[AggregateRoot] | None:
    """Return the class of aggregates whose method handles a command; None if a function handles it. Raises the errors
    of `HandlerTable.find`."""
    cls: type[AggregateRoot] | None = getattr(command_handlers.find(command), "_enode_aggregate", None)
    return cls


def creates(command: type[Command]) -> bool:
    """Return True if a method marked with ``creates=True`` handles the command. Raises as `HandlerTable.find` does."""
    return bool(getattr(command_handlers.find(command), "_enode_creates", False))


def nothing_creates(cls: type[AggregateRoot]) -> bool:
    """Return True if methods handle all commands, and none of them makes a new aggregate of this class."""
    return all(
        (owner := getattr(handler, "_enode_aggregate", None)) is not None
        and not (getattr(handler, "_enode_creates", False) and issubclass(owner, cls))
        for handler in command_handlers.all()
    )


def _added(cls: type, context: Any) -> Any:
    aggregate = cls(context.aggregate_root_id)
    context.add(aggregate)
    return aggregate
