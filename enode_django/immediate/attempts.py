"""Attempts to call a command handler. A failed attempt leaves nothing behind before the next one."""

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
    """The handlers for one command. ``waiting`` are the commands that handlers have sent in this thread. Each attempt
    drops the commands of the previous one.

    If a transaction is open in a database of ``aliases``, the handler runs in a savepoint. So an error of the database
    undoes the handler's writes, but not the transaction.
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
    """Drop all but the first ``length``."""
    while len(waiting) > length:
        waiting.pop()
