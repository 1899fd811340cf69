"""Functions that are called for events: mails, caches, calls to other systems. At least once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from enode_django.domain.declarations import check_aliases
from enode_django.domain.signatures import check_handler
from enode_django.eventing.retries import Retries
from enode_django.eventing.subscribers import (
    BEGINNING,
    NOW,
    Followed,
    Handler,
    Subscriber,
    check_followed,
    is_time_limit,
)
from enode_django.exceptions import DefinitionError

Function = TypeVar("Function", bound=Callable[[Any], None])

DEFAULT_GROUP = "event_handlers"


class EventHandler(NamedTuple):
    followed: Followed
    name: str
    priority: int
    function: Callable[[Any], None]
    start: str
    replays: bool = False
    time_limit: float | None = None
    retry: Retries | None = None
    aliases: tuple[str, ...] = ()

    def is_again(self, other: EventHandler) -> bool:
        """Return True if ``other`` is this handler, from the same place of a module that was loaded again."""
        return (self.followed, self.name, _place(self.function)) == (other.followed, other.name, _place(other.function))


def _place(function: Callable[[Any], None]) -> tuple[str, str]:
    return (getattr(function, "__module__", ""), getattr(function, "__qualname__", repr(function)))


class EventHandlerGroup(Subscriber):
    """Handlers that follow together: one consumer group and one checkpoint. What fails in one holds the others up for
    that aggregate; put into another group what must not."""

    _enode_handles_refusals = True
    start = NOW
    replays = False

    def __init__(self, name: str) -> None:
        self._group = name
        super().__init__()
        self.handlers: list[EventHandler] = []

    def _enode_default_name(self) -> str:
        return self._group

    def add(self, handler: EventHandler) -> None:
        """A handler that a reloaded module defines again stands for the one before."""
        self.handlers = [known for known in self.handlers if not known.is_again(handler)]
        self.handlers.append(handler)
        self.start = handler.start
        self.time_limit = self._longest_limit()
        self.retry = next((one.retry for one in self.handlers if one.retry is not None), None)
        self.aliases = next((one.aliases for one in self.handlers if one.aliases), ())
        self._enode_known_handlers.clear()
        self._enode_known_types.clear()

    def _longest_limit(self) -> float | None:
        """Return the longest limit that a handler names, since all of them are called in turn for an event; None if
        none names one."""
        return max((one.time_limit for one in self.handlers if one.time_limit is not None), default=None)

    def _enode_followed(self) -> Iterable[Followed]:
        return {handler.followed for handler in self.handlers}

    def _enode_handlers_of(self, cls: Followed) -> Sequence[Handler]:
        """Return the handlers for the class and for its bases, by priority, then by name."""
        found = [handler for handler in self.handlers if issubclass(cls, handler.followed)]
        return [handler.function for handler in sorted(found, key=attrgetter("priority", "name"))]

    def _enode_for_replay(self) -> EventHandlerGroup | None:
        """All or none of its handlers: they have one checkpoint."""
        return self if all(handler.replays for handler in self.handlers) else None

    @property
    def ambiguous(self) -> Sequence[str]:
        """Names that several functions have for one class."""
        names = Counter((handler.followed, handler.name) for handler in self.handlers)
        return sorted({name for (_, name), count in names.items() if count > 1})

    @property
    def is_at_one(self) -> bool:
        """Return True if its handlers agree on where they begin, on whether they take part in replays, and, as far as
        they say so, on when they are tried again and on the group's aliases."""
        retries = {handler.retry for handler in self.handlers if handler.retry is not None}
        aliases = {handler.aliases for handler in self.handlers if handler.aliases}
        is_same = len({(handler.start, handler.replays) for handler in self.handlers}) == 1
        return is_same and len(retries) <= 1 and len(aliases) <= 1


_groups: dict[str, EventHandlerGroup] = {}


def handler_groups() -> Sequence[EventHandlerGroup]:
    return [group for group in _groups.values() if group.handlers]


def event_handler(
    *followed: Followed,
    name: str,
    priority: int = 100,
    group: str = DEFAULT_GROUP,
    start: str = NOW,
    replays: bool = False,
    time_limit: float | None = None,
    retry: Retries | None = None,
    aliases: Sequence[str] = (),
) -> Callable[[Function], Function]:
    """Mark a function ``(event) -> None`` to be called for these classes of events, or domain exceptions, and their
    subclasses: those with a lower ``priority`` first, then by ``name``.

    It is called at least once for each event, in the order of each aggregate's versions. A new group begins at *now*,
    or, with ``start="beginning"``, with all that is stored. Functions of a group share its pace and its checkpoints.
    In a replay of stored events it is not called unless it says ``replays=True``. ``time_limit``: as of a
    `Subscriber`; of a group the longest counts, for all of its handlers together. ``retry``: as of a `Subscriber`; the
    handlers of a group that have one must have the same. ``aliases``: names that the group had before, the oldest
    first; the handlers of a group that have some must have the same. Raises `DefinitionError`.
    """
    if not followed:
        raise DefinitionError(
            'event_handler() names no event; write @event_handler(SomeEvent, name="app.what_it_does")'
        )
    check_followed("event_handler", followed)
    if start not in (NOW, BEGINNING):
        raise DefinitionError(f'event_handler() got start={start!r}; use "now" or "beginning"')
    if not is_time_limit(time_limit):
        raise DefinitionError(f"event_handler() got time_limit={time_limit!r}; give it a number of seconds above 0")

    if retry is not None and not isinstance(retry, Retries):
        raise DefinitionError(f"event_handler() got retry={retry!r}; give it Retries(attempts=…)")

    check_aliases("event_handler()", aliases)

    def register(function: Function) -> Function:
        check_handler(function, "event")
        handlers = _groups.setdefault(group, EventHandlerGroup(group))
        for cls in followed:
            handlers.add(EventHandler(cls, name, priority, function, start, replays, time_limit, retry, tuple(aliases)))
        return function

    return register
