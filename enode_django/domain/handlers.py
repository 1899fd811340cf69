"""Which function handles which command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from enode_django.domain.messages import Command
from enode_django.domain.refusals import DomainException
from enode_django.domain.signatures import check_handler
from enode_django.exceptions import DefinitionError, DuplicateHandler, HandlerNotFound

Handler = Callable[[Any, Any], None]
Errors = tuple[type[BaseException], ...]
AnyHandler = TypeVar("AnyHandler", bound=Handler)


class Handlers(Protocol):
    """What a command mailbox asks: which function handles a command, and after which errors it is called again."""

    def find(self, command: type[Command]) -> Handler: ...

    def retry_on(self, command: type[Command]) -> Errors | None: ...


class HandlerTable:
    """Functions by command class. A class without a handler of its own is handled by that of its nearest base."""

    def __init__(self) -> None:
        self._handlers: dict[type[Command], list[Handler]] = {}
        self._found: dict[type[Command], Handler] = {}
        self._retry_on: dict[type[Command], Errors | None] = {}

    def add(self, command: type[Command], handler: Handler, *, retry_on: Errors | None = None) -> None:
        """``retry_on``: the errors after which the handler is called again (None: those of the settings)."""
        handlers = self._handlers.setdefault(command, [])
        if handler not in handlers:
            handlers.append(handler)
        self._retry_on[command] = retry_on
        self._found.clear()

    def remove(self, command: type[Command], handler: Handler) -> None:
        self._handlers[command].remove(handler)
        self._found.clear()

    def find(self, command: type[Command]) -> Handler:
        """Raises `HandlerNotFound`, or `DuplicateHandler` where two would do."""
        handler = self._found.get(command)
        if handler is None:
            handler = self._found[command] = self._look_up(command)
        return handler

    def _look_up(self, command: type[Command]) -> Handler:
        for base in command.__mro__:
            handlers = self._handlers.get(base)
            if not handlers:
                continue
            if len(handlers) > 1:
                raise DuplicateHandler(
                    f"{base.__qualname__} has {len(handlers)} handlers: {_names(handlers)}; keep one"
                )
            return handlers[0]
        raise HandlerNotFound(
            f"no handler for {command.__qualname__}; write a function marked with @command_handler({command.__name__})"
        )

    def retry_on(self, command: type[Command]) -> Errors | None:
        """Return the ``retry_on`` of the handler that `find` returns for this command."""
        for base in command.__mro__:
            if self._handlers.get(base):
                return self._retry_on.get(base)
        return None

    def duplicates(self) -> Iterator[tuple[type[Command], str]]:
        for command, handlers in self._handlers.items():
            if len(handlers) > 1:
                yield command, _names(handlers)


def _names(handlers: list[Handler]) -> str:
    return ", ".join(f"{handler.__module__}.{handler.__qualname__}" for handler in handlers)


command_handlers = HandlerTable()


def command_handler(
    *commands: type[Command], retry_on: Iterable[type[Exception]] | None = None
) -> Callable[[AnyHandler], AnyHandler]:
    """Mark a function ``(command, context) -> None`` as the handler of these commands and their subclasses.

    After an error of these classes it is called again (None: after those of ``RETRY_ON`` of ``WORKERS``), as after a
    `Retry`.
    """
    if not commands:
        raise DefinitionError("command_handler() names no command; write @command_handler(SomeCommand)")
    for command in commands:
        if not (isinstance(command, type) and issubclass(command, Command)):
            raise DefinitionError(f"command_handler() takes classes of commands, got {command!r}")
    errors = None if retry_on is None else _checked(retry_on)

    def register(handler: AnyHandler) -> AnyHandler:
        check_handler(handler, "command", "context")
        for command in commands:
            command_handlers.add(command, handler, retry_on=errors)
        return handler

    return register


def _checked(retry_on: Iterable[type[Exception]]) -> Errors:
    if isinstance(retry_on, type) or not isinstance(retry_on, Iterable):
        raise DefinitionError(f"retry_on takes a tuple of classes of exceptions, got {retry_on!r}")
    errors = tuple(retry_on)
    for error in errors:
        if not (isinstance(error, type) and issubclass(error, Exception)):
            raise DefinitionError(f"retry_on takes classes of exceptions, got {error!r}")
        if issubclass(error, DomainException):
            raise DefinitionError(f"retry_on names {error.__qualname__}, but a refusal is final; raise Retry instead")
    return errors
