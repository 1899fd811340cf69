"""Middleware around the handlers of commands, and around those of subscribers, as the settings name it.

Its shape is that of Django's: a callable that takes the next one and returns one, or a class whose instances are
called. It is made once in a process, and again when the settings change. Where the settings name none, handlers are
called as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from inspect import isgenerator
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
"""(command, context) or (event, context) -> what the handler returns."""


def factories(key: str) -> list[Callable[[Handle], Any]]:
    """Return what the settings name as middleware, the outermost first; raises `ConfigurationError`."""
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
        handle = made
    return handle


# -- commands -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def handlers_in_use() -> Handlers:
    """Return the command handlers of this process, within their middleware; raises `ConfigurationError`."""
    return InterceptedHandlers(command_handlers) if conf().COMMAND_MIDDLEWARE else command_handlers


class InterceptedHandlers:
    """The handlers of a table, each within the same middleware."""

    def __init__(self, table: Handlers) -> None:
        self._table = table
        self._handle = _wrapped(COMMANDS, self._call)

    def _call(self, command: Command, context: Any) -> Any:
        return self._table.find(type(command))(command, context)

    def find(self, command: type[Command]) -> Handler:
        """Raises as `HandlerTable.find`: middleware is not called for a command without a handler."""
        self._table.find(command)
        return self._handle

    def retry_on(self, command: type[Command]) -> Errors | None:
        return self._table.retry_on(command)


# -- subscribers ----------------------------------------------------------------------------------------------------


class SubscriberContext:
    """One call of a subscriber's handler, as middleware sees it: ``subscriber`` is whose handler is called."""

    __slots__ = ("_handler", "subscriber")

    def __init__(self, subscriber: Any, handler: Callable[[Any], Any]) -> None:
        self.subscriber = subscriber
        self._handler = handler

    def call(self, event: Any) -> Any:
        """Call the handler. The generator of a process manager is worked off inside the middleware."""
        made = self._handler(event)
        return list(made) if isgenerator(made) else made


AnyHandler = Callable[..., Any]


def intercepted(subscriber: Any, handlers: Sequence[AnyHandler]) -> Sequence[AnyHandler]:
    """Return functions to be called instead of a subscriber's handlers, which take an event, or a row and an event."""
    handle = subscriber_middleware()
    return handlers if handle is None else [partial(_through, handle, subscriber, handler) for handler in handlers]


def _through(handle: Handle, subscriber: Any, handler: AnyHandler, *arguments: Any) -> Any:
    *row, event = arguments
    return handle(event, SubscriberContext(subscriber, partial(handler, *row)))


@lru_cache(maxsize=1)
def subscriber_middleware() -> Handle | None:
    """Return the middleware around the handlers of subscribers, None if there is none; raises `ConfigurationError`."""
    return _wrapped(SUBSCRIBERS, _call) if conf().SUBSCRIBER_MIDDLEWARE else None


def _call(event: Any, context: SubscriberContext) -> Any:
    return context.call(event)


def _forget(*, setting: str, **_: object) -> None:
    if setting == "ENODE":
        handlers_in_use.cache_clear()
        subscriber_middleware.cache_clear()


setting_changed.connect(_forget)
