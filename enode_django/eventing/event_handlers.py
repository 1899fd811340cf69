"""Functions that are called for events, at least once: mails, caches, calls to other systems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypedDict, TypeVar, Unpack, overload

from enode_django.domain.annotations import handled_classes, is_bare
from enode_django.domain.declarations import check_aliases
from enode_django.domain.messages import DomainEvent
from enode_django.domain.refusals import DomainException
from enode_django.domain.signatures import check_handler
from enode_django.eventing.marks import E1, E2, E3, E4, E5, Event, Followed, Result, check_followed
from enode_django.eventing.retry_policy import Retries
from enode_django.eventing.subscribers import BEGINNING, NOW, Handler, Subscriber, is_time_limit
from enode_django.exceptions import DefinitionError
from enode_django.serialization.registry import types

Function = TypeVar("Function", bound=Callable[[Any], Any])
Place = tuple[str, str]


class EventHandler(NamedTuple):
    followed: Followed
    name: str
    """The ``name`` given to the decorator; empty if the handler is named after its function."""
    priority: int
    function: Callable[[Any], Any]
    start: str
    replays: bool = False
    time_limit: float | None = None
    retry: Retries | None = None
    aliases: tuple[str, ...] = ()

    @property
    def origin(self) -> tuple[Followed, str, Place]:
        """Return the identity of the handler. It stays the same when a reloaded module defines the handler again."""
        return self.followed, self.name, place_of(self.function)

    @property
    def full_name(self) -> str:
        """The given name, or ``"<app_label>.<function>"``; empty if there is neither, outside the installed apps."""
        if self.name:
            return self.name
        label = types.label_of(self.function.__module__)
        return f"{label}.{self.function.__name__}" if label else ""


def place_of(function: Callable[..., Any]) -> Place:
    """Return the module and the qualified name of a function."""
    return (getattr(function, "__module__", ""), getattr(function, "__qualname__", repr(function)))


class EventHandlerGroup(Subscriber):
    """Handlers that follow together, with one consumer group and one checkpoint. If one fails, the others wait for that
    aggregate. A handler that names no group has a group ``alone``, which gets the handler's name when it is known."""

    _enode_handles_refusals = True
    start = NOW
    replays = False

    def __init__(self, name: str, *, alone: bool = False) -> None:
        self._group = name
        self.alone = alone
        super().__init__()
        self.handlers: list[EventHandler] = []

    def _enode_default_name(self) -> str:
        return self._group

    def take_name(self) -> bool:
        """Name a lone handler's group after it. Return False if it has no name, being outside the installed apps."""
        self.name = self.name or self.handlers[0].full_name
        return bool(self.name)

    def add(self, handler: EventHandler) -> None:
        """Add a handler. It replaces an earlier one that a reloaded module defines again."""
        self.handlers = [known for known in self.handlers if known.origin != handler.origin]
        self.handlers.append(handler)
        self.start = handler.start
        # The longest one: all handlers are called in turn for an event.
        self.time_limit = max((one.time_limit for one in self.handlers if one.time_limit is not None), default=None)
        self.retry = next((one.retry for one in self.handlers if one.retry is not None), None)
        self.aliases = next((one.aliases for one in self.handlers if one.aliases), ())
        self._enode_known_handlers.clear()
        self._enode_known_types.clear()

    def _enode_followed(self) -> Iterable[Followed]:
        return {handler.followed for handler in self.handlers}

    def _enode_handlers_of(self, cls: Followed) -> Sequence[Handler]:
        """Return the handlers for the class and for its bases, by priority, then by name."""
        found = [handler for handler in self.handlers if issubclass(cls, handler.followed)]
        return [handler.function for handler in sorted(found, key=attrgetter("priority", "full_name"))]

    def _enode_for_replay(self) -> EventHandlerGroup | None:
        """Return the group if all its handlers replay, else None: they share one checkpoint."""
        return self if all(handler.replays for handler in self.handlers) else None

    @property
    def ambiguous(self) -> Sequence[str]:
        """The names that several functions have for one class."""
        names = Counter((handler.followed, handler.full_name) for handler in self.handlers)
        return sorted({name for (_, name), count in names.items() if count > 1})

    @property
    def is_at_one(self) -> bool:
        """True if all handlers have the same ``start`` and ``replays``, and all that set ``retry`` or ``aliases`` set
        the same."""
        retries = {handler.retry for handler in self.handlers if handler.retry is not None}
        aliases = {handler.aliases for handler in self.handlers if handler.aliases}
        is_same = len({(handler.start, handler.replays) for handler in self.handlers}) == 1
        return is_same and len(retries) <= 1 and len(aliases) <= 1


_groups: dict[str | tuple[str, str, str], EventHandlerGroup] = {}
"""Groups by their names. The group of a lone handler has the handler's module, qualified name and name as its key."""


def declared_groups() -> Sequence[EventHandlerGroup]:
    """Return all groups, including those that cannot have a name."""
    return [group for group in _groups.values() if group.handlers]


def handler_groups() -> Sequence[EventHandlerGroup]:
    """Return the groups that have a name. A lone handler outside the installed apps has none."""
    return [group for group in declared_groups() if group.take_name()]


def group_of(function: Callable[..., Any]) -> EventHandlerGroup:
    """Return the group that calls a function. Raises `DefinitionError` if there is none, or it has no name."""
    for group in handler_groups():
        if any(handler.function is function for handler in group.handlers):
            return group
    raise DefinitionError(
        f'{function!r} is not an event handler with a name; mark it with @event_handler, and give it a name="…" where '
        "it is outside of every installed app"
    )


class Options(TypedDict, total=False):
    name: str
    priority: int
    group: str
    start: str
    replays: bool
    time_limit: float | None
    retry: Retries | None
    aliases: Sequence[str]


class MarksFunction(Protocol[Event]):
    """The type of ``@event_handler(SomeEvent)`` for type checkers: the function takes all of these events."""

    def __call__(self, function: Callable[[Event], Result], /) -> Callable[[Event], Result]: ...


@overload
def event_handler(one: type[E1], /, **options: Unpack[Options]) -> MarksFunction[E1]: ...
@overload
def event_handler(one: type[E1], two: type[E2], /, **options: Unpack[Options]) -> MarksFunction[E1 | E2]: ...
@overload
def event_handler(
    one: type[E1], two: type[E2], three: type[E3], /, **options: Unpack[Options]
) -> MarksFunction[E1 | E2 | E3]: ...
@overload
def event_handler(
    one: type[E1], two: type[E2], three: type[E3], four: type[E4], /, **options: Unpack[Options]
) -> MarksFunction[E1 | E2 | E3 | E4]: ...
@overload
def event_handler(
    one: type[E1], two: type[E2], three: type[E3], four: type[E4], five: type[E5], /, **options: Unpack[Options]
) -> MarksFunction[E1 | E2 | E3 | E4 | E5]: ...
@overload
def event_handler(*followed: Followed, **options: Unpack[Options]) -> Callable[[Function], Function]: ...
@overload
def event_handler(function: Function, /) -> Function: ...
def event_handler(
    *followed: Any,
    name: str = "",
    priority: int = 100,
    group: str = "",
    start: str = NOW,
    replays: bool = False,
    time_limit: float | None = None,
    retry: Retries | None = None,
    aliases: Sequence[str] = (),
) -> Any:
    """Mark a function ``(event) -> None`` to be called for these classes of events, or domain exceptions, and their
    subclasses; without a class, for those that its annotation names.

    ``name`` is ``"<app_label>.<function>"`` unless given. The function is a subscriber of that name, with its own pace
    and checkpoints, unless it names a ``group``. Functions of one group share these. For an event, those with a lower
    ``priority`` are called first, then by ``name``.

    It is called at least once for each event, in the order of each aggregate's versions. A new group begins at *now*,
    or with all that is stored if ``start="beginning"``. A replay of stored events calls it only with ``replays=True``.
    ``time_limit`` (seconds) is as for a `Subscriber`; the longest one that is set counts for all handlers of a group
    together. ``retry`` is as for a `Subscriber`; the handlers of a group that set it must agree. ``aliases`` are the
    earlier names of the function's group, the oldest first; the handlers of a group that set it must agree. Raises
    `DefinitionError`.

    For example::

        @event_handler
        def send_letter(event: AccountOpened) -> None:
            print(f"Dear {event.owner}")
    """
    given = () if is_bare(followed) else followed
    check_followed("event_handler", given)
    if start not in (NOW, BEGINNING):
        raise DefinitionError(f'event_handler() got start={start!r}; use "now" or "beginning"')
    if not is_time_limit(time_limit):
        raise DefinitionError(f"event_handler() got time_limit={time_limit!r}; give it a number of seconds above 0")
    if retry is not None and not isinstance(retry, Retries):
        raise DefinitionError(f"event_handler() got retry={retry!r}; give it Retries(attempts=…)")

    check_aliases("event_handler()", aliases)

    def register(function: Function) -> Function:
        check_handler(function, "event")
        marked = handled_classes("event_handler", function, given, DomainEvent | DomainException, last=True)
        check_followed("event_handler", marked)
        if not (name or getattr(function, "__name__", "").isidentifier()):
            raise DefinitionError(
                f'{function!r} has no name of its own; give it one: @event_handler(…, name="app.what_it_does")'
            )
        key = group or (*place_of(function), name)
        handlers = _groups.setdefault(key, EventHandlerGroup(group or name, alone=not group))
        for cls in marked:
            handlers.add(EventHandler(cls, name, priority, function, start, replays, time_limit, retry, tuple(aliases)))
        return function

    return register(followed[0]) if is_bare(followed) else register
