"""Middleware around the handlers of commands, and around those of subscribers, as the settings name it.

It has the form of Django's: a callable that takes the next one and returns one, or a class whose instances are called.
It is made once in a process, and again when the settings change. Without middleware, handlers are called directly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from inspect import iscoroutinefunction, isgenerator
from typing import Any

from django.core.exceptions import MiddlewareNotUsed
from django.core.signals import setting_changed

from enode_django.conf import conf, imported
from enode_django.domain.handlers import Errors, Handler, Handlers, command_handlers
from enode_django.domain.messages import Command
from enode_django.exceptions import ConfigurationError

logger = logging.getLogger("enode_django.middleware")

COMMANDS, SUBSCRIBERS = "COMMAND_MIDDLEWARE", "SUBSCRIBER_MIDDLEWARE"

Handle = Callable[[Any, Any], Any]
"""Takes (command, context) or (event, context), and returns the handler's result."""


def factories(key: str) -> list[Callable[[Handle], Any]]:
    """Return the middleware that the settings name, the outermost first. Raises `ConfigurationError`."""
    return [imported(path, key) for path in getattr(conf(), key)]


def _wrapped(key: str, handle: Handle) -> Handle:
    for factory in reversed(factories(key)):
        try:
            made = factory(handle)
        except MiddlewareNotUsed as unused:
            logger.debug("%s of %s is not used: %s", factory, key, unused)
            continue
        if not callable(made):
            raise ConfigurationError(f"ENODE[{key!r}] names {factory!r}, which returns {made!r}; return a function")
        if iscoroutinefunction(made) or iscoroutinefunction(type(made).__call__):
            raise ConfigurationError(
                f"ENODE[{key!r}] names {factory!r}, which returns an async function; return a plain one"
            )
        handle = made
    return handle


# -- commands -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def handlers_in_use() -> Handlers:
    """Return the command handlers of this process, within their middleware. Raises `ConfigurationError`."""
    return InterceptedHandlers(command_handlers) if conf().COMMAND_MIDDLEWARE else command_handlers


class InterceptedHandlers:
    """The handlers of a table, each within the same middleware."""

    def __init__(self, table: Handlers) -> None:
        self._table = table
        self._handle = _wrapped(COMMANDS, self._call)

    def _call(self, command: Command, context: Any) -> Any:
        """Call the handler. The context notes its result and its error, even if middleware does not pass them on."""
        try:
            value = self._table.find(type(command))(command, context)
        except BaseException as error:
            context.note_failure(error)
            raise
        if value is not None:
            context.set_result(value)
        return value

    def find(self, command: type[Command]) -> Handler:
        """Return the middleware around the handler. Raises as `HandlerTable.find` does if there is no handler."""
        self._table.find(command)
        return self._handle

    def retry_on(self, command: type[Command]) -> Errors | None:
        return self._table.retry_on(command)


# -- subscribers ----------------------------------------------------------------------------------------------------


class SubscriberContext:
    """One call of a subscriber's handler, as middleware sees it. ``subscriber`` is the one whose handler is called.

    For example::

        def timed(handle: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
            def call(event: DomainEvent, context: SubscriberContext) -> Any:
                began = time.perf_counter()
                result = handle(event, context)
                print(f"{context.subscriber.name}: {time.perf_counter() - began:.3f} s")
                return result

            return call
    """

    __slots__ = ("_handler", "_made", "subscriber")

    def __init__(self, subscriber: Any, handler: Callable[[Any], Any]) -> None:
        self.subscriber = subscriber
        self._handler = handler
        self._made: Any = None

    def call(self, event: Any) -> Any:
        """Call the handler. The generator of a process manager is exhausted inside the middleware."""
        made = self._handler(event)
        self._made = list(made) if isgenerator(made) else made
        return self._made

    def check(self, returned: Any) -> Any:
        """Return the result of middleware. Raises `ConfigurationError` if it is None in place of commands."""
        if returned is None and self._made and self.subscriber._enode_may_yield:
            raise ConfigurationError(
                f"ENODE[{SUBSCRIBERS!r}] returns nothing for the commands of {self.subscriber.name}; "
                "let each middleware return what the next one returns, or a list without commands"
            )
        return returned


AnyHandler = Callable[..., Any]


def intercepted(subscriber: Any, handlers: Sequence[AnyHandler]) -> Sequence[AnyHandler]:
    """Return functions to call instead of a subscriber's handlers, which take an event, or a row and an event."""
    handle = subscriber_middleware()
    return handlers if handle is None else [partial(_through, handle, subscriber, handler) for handler in handlers]


def _through(handle: Handle, subscriber: Any, handler: AnyHandler, *arguments: Any) -> Any:
    *row, event = arguments
    context = SubscriberContext(subscriber, partial(handler, *row))
    return context.check(handle(event, context))


@lru_cache(maxsize=1)
def subscriber_middleware() -> Handle | None:
    """Return the middleware around the handlers of subscribers, or None. Raises `ConfigurationError`."""
    return _wrapped(SUBSCRIBERS, _call) if conf().SUBSCRIBER_MIDDLEWARE else None


def _call(event: Any, context: SubscriberContext) -> Any:
    return context.call(event)


def _forget(*, setting: str, **_: object) -> None:
    if setting == "ENODE":
        handlers_in_use.cache_clear()
        subscriber_middleware.cache_clear()


setting_changed.connect(_forget)
