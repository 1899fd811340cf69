"""The registry of command handlers, and the decorator that marks them."""

from __future__ import annotations

import functools
import inspect
import itertools
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload
from weakref import WeakSet

from enode_django.domain.annotations import handled_classes, is_bare, is_method
from enode_django.domain.class_bodies import check_marked_once
from enode_django.domain.messages import Command
from enode_django.domain.refusals import DomainException
from enode_django.domain.signatures import takes_context
from enode_django.exceptions import DefinitionError, DuplicateHandler, HandlerNotFound

if TYPE_CHECKING:
    from enode_django.domain.aggregate import AggregateRoot

Handler = Callable[[Any, Any], Any]
Errors = tuple[type[BaseException], ...]
HANDLER_ERRORS: Errors = (Exception, SystemExit, CancelledError)
"""Errors that fail a command or an event. They do not end the worker: application code may call ``sys.exit()``, or run
a task that is cancelled."""


class MarkedMethod:
    """The mark of a method that handles these commands. The method is registered when its class of aggregate roots is
    defined; a function is registered when it is marked."""

    def __init__(
        self, method: Any, commands: tuple[type[Command], ...], creates: bool, retry_on: Errors | None
    ) -> None:
        self.name = f"{method.__module__}.{method.__qualname__}"
        self.commands = commands
        self.creates = creates
        self.retry_on = retry_on
        self.takes_context = takes_context(method, "self", "command")


class Handlers(Protocol):
    """The interface of a handler table: the handler of a command, and the errors after which it is called again."""

    def find(self, command: type[Command]) -> Handler: ...

    def retry_on(self, command: type[Command]) -> Errors | None: ...


class HandlerTable:
    """Functions by command class. A class without a handler of its own is handled by that of its nearest base."""

    def __init__(self) -> None:
        self._handlers: dict[type[Command], list[Handler]] = {}
        self._found: dict[type[Command], Handler] = {}
        self._retry_on: dict[type[Command], Errors | None] = {}
        self.strays: WeakSet[MarkedMethod] = WeakSet()
        """Marked methods whose class of aggregate roots is not known, or not yet."""

    def add(self, command: type[Command], handler: Handler, *, retry_on: Errors | None = None) -> None:
        """Add a handler. After an error in ``retry_on`` it is called again (None: the errors of the settings)."""
        handlers = self._handlers.setdefault(command, [])
        if handler not in handlers:
            handlers.append(handler)
        self._retry_on[command] = retry_on
        self._found.clear()

    def replace(self, command: type[Command], handler: Handler, *, retry_on: Errors | None = None) -> None:
        """Add a handler, and remove the ones of the same name, whose module is being reloaded."""
        name = _name(handler)
        if "<locals>" not in name:
            handlers = self._handlers.get(command, [])
            handlers[:] = [one for one in handlers if _name(one) != name]
        self.add(command, handler, retry_on=retry_on)

    def remove(self, command: type[Command], handler: Handler) -> None:
        self._handlers[command].remove(handler)
        self._found.clear()

    def find(self, command: type[Command]) -> Handler:
        """Return the handler of a class of commands. Raises `HandlerNotFound`, `DuplicateHandler` if there are two, and
        `DefinitionError` if only a method outside of aggregate roots is marked for it."""
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
        for stray in self.strays:
            if issubclass(command, stray.commands):
                raise DefinitionError(
                    f"{stray.name}() is marked with @command_handler in a class that is not an aggregate root; derive "
                    "the class from AggregateRoot, or move the function out of it; or, if a decorator above the mark "
                    "hides it, let that use functools.wraps"
                )
        raise HandlerNotFound(
            f"no handler for {command.__qualname__}; mark a method of its aggregate, or a function, with "
            f"@command_handler, and annotate its parameter with {command.__name__}; if there is one, its module is not "
            "imported: name it like one of ENODE['AUTODISCOVER_MODULES'], such as domain.py, or add it there"
        )

    def retry_on(self, command: type[Command]) -> Errors | None:
        """Return the ``retry_on`` of the handler that `find` returns for this command."""
        for base in command.__mro__:
            if self._handlers.get(base):
                return self._retry_on.get(base)
        return None

    def commands(self) -> list[type[Command]]:
        """Return the classes of commands that have a handler of their own."""
        return [command for command, handlers in self._handlers.items() if handlers]

    def all(self) -> Iterator[Handler]:
        return itertools.chain.from_iterable(self._handlers.values())

    def duplicates(self) -> Iterator[tuple[type[Command], str]]:
        for command, handlers in self._handlers.items():
            if len(handlers) > 1:
                yield command, _names(handlers)


def _name(handler: Handler) -> str:
    named = inspect.unwrap(handler)
    return f"{named.__module__}.{named.__qualname__}" if hasattr(named, "__qualname__") else repr(named)


def _names(handlers: list[Handler]) -> str:
    return ", ".join(map(_name, handlers))


command_handlers = HandlerTable()

Root = TypeVar("Root", bound="AggregateRoot")
Result = TypeVar("Result")
Rest = ParamSpec("Rest")
C = TypeVar("C", bound=Command)
C1 = TypeVar("C1", bound=Command)
C2 = TypeVar("C2", bound=Command)
C3 = TypeVar("C3", bound=Command)
C4 = TypeVar("C4", bound=Command)
C5 = TypeVar("C5", bound=Command)
Function = Callable[Concatenate[C, Rest], Result]
Method = Callable[Concatenate[Root, C, Rest], Result]


class MarksWhatItSays(Protocol):
    """A decorator for a handler of the commands in its annotation, or of more than five."""

    @overload
    def __call__(self, handler: Method[Root, C, Rest, Result], /) -> Method[Root, C, Rest, Result]: ...
    @overload
    def __call__(self, handler: Function[C, Rest, Result], /) -> Function[C, Rest, Result]: ...


class Marks(Protocol[C]):
    """A decorator for a handler of these commands."""

    @overload
    def __call__(self, handler: Method[Root, C, Rest, Result], /) -> Method[Root, C, Rest, Result]: ...
    @overload
    def __call__(self, handler: Function[C, Rest, Result], /) -> Function[C, Rest, Result]: ...


RetryOn = Iterable[type[Exception]] | None


@overload
def command_handler(  # type: ignore[overload-overlap]  # a class can be called, too, but takes no command
    c: type[C], /, *, creates: bool = ..., retry_on: RetryOn = ...
) -> Marks[C]: ...
@overload
def command_handler(
    c1: type[C1], c2: type[C2], /, *, creates: bool = ..., retry_on: RetryOn = ...
) -> Marks[C1 | C2]: ...
@overload
def command_handler(
    c1: type[C1], c2: type[C2], c3: type[C3], /, *, creates: bool = ..., retry_on: RetryOn = ...
) -> Marks[C1 | C2 | C3]: ...
@overload
def command_handler(
    c1: type[C1], c2: type[C2], c3: type[C3], c4: type[C4], /, *, creates: bool = ..., retry_on: RetryOn = ...
) -> Marks[C1 | C2 | C3 | C4]: ...
@overload
def command_handler(
    c1: type[C1],
    c2: type[C2],
    c3: type[C3],
    c4: type[C4],
    c5: type[C5],
    /,
    *,
    creates: bool = ...,
    retry_on: RetryOn = ...,
) -> Marks[C1 | C2 | C3 | C4 | C5]: ...
@overload
def command_handler(
    c1: type[Command], c2: type[Command], /, *more: type[Command], creates: bool = ..., retry_on: RetryOn = ...
) -> MarksWhatItSays: ...
@overload
def command_handler(*, creates: bool = ..., retry_on: RetryOn = ...) -> MarksWhatItSays: ...
@overload
def command_handler(handler: Method[Root, C, Rest, Result], /) -> Method[Root, C, Rest, Result]: ...
@overload
def command_handler(handler: Function[C, Rest, Result], /) -> Function[C, Rest, Result]: ...
def command_handler(*commands: Any, creates: bool = False, retry_on: RetryOn = None) -> Any:
    """Mark a method of an aggregate root, or a function, as the handler of these commands and their subclasses.

    Without classes they are taken from the annotation of the command's parameter. The handler is called with the
    command, and with the `CommandContext` if it has a parameter for it; it returns the command's result. With
    ``creates=True`` the method is called on a new instance, which is added; otherwise on the stored one. After an error
    of the classes ``retry_on`` (None: ``RETRY_ON`` of ``WORKERS``), or a `Retry`, the handler is called again. Raises
    `DefinitionError`.

    For example::

        class Account(AggregateRoot):
            balance: Decimal = Decimal(0)

            @command_handler
            def deposit(self, command: Deposit) -> Decimal:
                self.apply(Deposited(amount=command.amount, balance=self.balance + command.amount))
                return self.balance
    """
    if is_bare(commands):
        return command_handler()(commands[0])
    for command in commands:
        if not (isinstance(command, type) and issubclass(command, Command)):
            raise DefinitionError(f"command_handler() takes classes of commands, got {command!r}")
    errors = None if retry_on is None else _checked(retry_on)

    def register(handler: Any) -> Any:
        if isinstance(handler, staticmethod | classmethod):
            raise DefinitionError(
                f"{handler.__qualname__}() is a {type(handler).__name__}; mark a method, or a function outside of "
                "classes"
            )
        handled = tuple(handled_classes("command_handler", handler, commands, Command))
        if is_method(handler):
            check_marked_once("command_handler", handler)
            _mark(handler, MarkedMethod(handler, handled, creates, errors))
            return handler
        if creates:
            raise DefinitionError(
                f"{_name(handler)} is a function; creates=True is for methods of aggregates: call context.add() instead"
            )
        function = handler if takes_context(handler, "command") else _without_context(handler)
        for command in handled:
            command_handlers.add(command, function, retry_on=errors)
        if isinstance(handler, FunctionType):
            handler._enode_handles_commands = ()  # type: ignore[attr-defined]
        return handler

    return register


def _mark(method: Any, mark: MarkedMethod) -> None:
    method._enode_handles_commands = (*marks_of(method), mark)
    command_handlers.strays.add(mark)


def marks_of(member: object) -> tuple[MarkedMethod, ...]:
    """Return the marks of a member of a class, empty if it is not a marked method. Raises `DefinitionError` for a
    method that was registered as a function."""
    marks: tuple[MarkedMethod, ...] | None = getattr(member, "_enode_handles_commands", None)
    if marks == () and isinstance(member, FunctionType):
        raise DefinitionError(
            f"{_name(member)} is marked with @command_handler as a function; use functools.wraps in decorators of "
            "methods"
        )
    return marks or ()


def _without_context(function: Callable[[Any], Any]) -> Handler:
    @functools.wraps(function)
    def handle(command: Any, context: Any) -> Any:
        return function(command)

    return handle


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
