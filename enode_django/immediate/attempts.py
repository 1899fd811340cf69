"""Calls of a command handler, each an attempt: of one that is followed by another, nothing is left."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from django.db import connections, transaction

from enode_django.commanding.decisions import Envelope
from enode_django.domain.handlers import Errors, Handler, Handlers
from enode_django.domain.messages import Command


class Attempts:
    """Handlers that are called for one command. ``waiting`` are the commands that handlers have sent in this thread:
    what an attempt sends takes the place of what the one before has sent.

    In a transaction of a database of ``aliases`` a handler that raises leaves nothing behind there, so that an error of
    the database ends the handler, and not what has been stored in the transaction.
    """

    def __init__(self, handlers: Handlers, waiting: deque[Envelope], aliases: Sequence[str]) -> None:
        self._handlers = handlers
        self._waiting = waiting
        self._known = len(waiting)
        self._aliases = aliases

    def find(self, command: type[Command]) -> Handler:
        return partial(self._call, self._handlers.find(command))

    def retry_on(self, command: type[Command]) -> Errors | None:
        return self._handlers.retry_on(command)

    def _call(self, handler: Handler, command: Any, context: Any) -> Any:
        cut(self._waiting, self._known)
        with ExitStack() as savepoints:
            for alias in self._aliases:
                if connections[alias].in_atomic_block:
                    savepoints.enter_context(transaction.atomic(using=alias))
            return handler(command, context)


def cut(waiting: deque[Envelope], length: int) -> None:
    """Drop what came after the first ``length``."""
    while len(waiting) > length:
        waiting.pop()
