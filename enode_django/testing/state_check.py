"""Compare the state that a handler leaves with the state that the stored events give."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from enode_django.commanding.context import CommandContext
from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.declarations import schema_of
from enode_django.domain.handlers import Errors, Handler, Handlers
from enode_django.domain.messages import Command


class NotingHandlers:
    """The handlers of a table. ``context`` is that of the last call: its aggregate is the one in memory."""

    def __init__(self, table: Handlers) -> None:
        self._table = table
        self.context: CommandContext | None = None

    def find(self, command: type[Command]) -> Handler:
        handler = self._table.find(command)

        def call(command: Any, context: Any) -> Any:
            self.context = context
            return handler(command, context)

        return call

    def retry_on(self, command: type[Command]) -> Errors | None:
        return self._table.retry_on(command)


def check_state(live: AggregateRoot, stored: AggregateRoot, command: Command) -> None:
    """Raise `AssertionError` if the aggregate in memory is not as it is when it is loaded from its events: a worker
    would go on with it, and have another state after a restart."""
    cls, names = type(live), schema_of(type(live)).names
    for name in names:
        kept, given = getattr(live, name, None), getattr(stored, name, None)
        # NaN, and a dataclass with eq=False, are equal to nothing but themselves.
        if kept is not given and kept != given and repr(kept) != repr(given):
            raise AssertionError(
                f"{type(command).__qualname__} leaves {cls.__qualname__}.{name} = {kept!r}, but its events give "
                f"{given!r}: set the state only in methods marked with @applies, and there from the event alone"
            )
    if cls.snapshot is not AggregateRoot.snapshot or not cls.snapshot_every:
        return
    new = vars(cls(live.id))  # what a constructor always sets needs no snapshot
    for name in vars(live).keys() - set(names):
        is_new = name in new and repr(new[name]) == repr(vars(live)[name])
        if not (name.startswith("_") or is_new or isinstance(getattr(cls, name, None), cached_property)):
            raise AssertionError(
                f"{type(command).__qualname__} sets {cls.__qualname__}.{name}, which is not declared, so snapshots "
                f"do not keep it; correct the name, or annotate it in the class body beside the others "
                f"({', '.join(names)})"
            )
