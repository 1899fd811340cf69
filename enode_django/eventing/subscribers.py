"""Subscribers: named followers of the stored events, each with its own pace and checkpoints.

A *subscriber* is a projection, a process manager or a group of event handlers. People see its name. Everything that is
stored or sent carries its *key*: the oldest of its ``aliases``, or the name if it has none. So a subscriber that is
renamed with an alias goes on where it stood, while old code runs beside new code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

from django.apps import apps
from django.db import router

from enode_django.domain.aggregate import AggregateRoot, applied_events
from enode_django.domain.declarations import aliases_of, check_aliases
from enode_django.domain.messages import DomainEvent
from enode_django.domain.names import check_names
from enode_django.domain.refusals import DomainException
from enode_django.domain.signatures import check_method
from enode_django.eventing.event_keys import EventKey, SeveralKeys
from enode_django.eventing.marks import Followed, HandlerMark
from enode_django.eventing.retry_policy import Retries
from enode_django.exceptions import DefinitionError, TypeNameError, UnknownMessageType
from enode_django.serialization.registry import types

Handler = Callable[..., Any]

NOW = "now"
BEGINNING = "beginning"

running_subscriber: ContextVar[Subscriber | None] = ContextVar("enode_running_subscriber", default=None)
"""The subscriber whose handlers run in this thread."""
yielding_subscriber: ContextVar[str | None] = ContextVar("enode_yielding_subscriber", default=None)
"""The name of the process manager whose handler is being called in this thread: it may only yield commands."""


@contextmanager
def running(subscriber: Subscriber) -> Iterator[None]:
    """Let `running_subscriber` be this one inside the block."""
    token = running_subscriber.set(subscriber)
    try:
        yield
    finally:
        running_subscriber.reset(token)


class Subscriber:
    """The base class of all kinds. Subclasses with ``abstract = True`` in their own body are never run themselves.

    ``name`` is ``"<app_label>.<ClassName>"`` unless given. ``aliases`` are the names that it had before, the oldest
    first; a subclass does not inherit them. ``start`` is where a new subscriber begins, ``"beginning"`` or ``"now"``.
    ``replays`` says whether it takes part when stored events are replayed. ``time_limit`` is the seconds that the
    handlers may take for the events of one command (`math.inf`: any time; None: ``TIME_LIMIT`` of ``SUBSCRIBERS``).
    ``retry`` says when what has failed is tried again (None: as the settings say).
    """

    name: str = ""
    aliases: Sequence[str] = ()
    start: str = BEGINNING
    replays: bool = True
    time_limit: float | None = None
    retry: Retries | None = None
    _enode_settings: ClassVar[frozenset[str]] = frozenset(
        {"name", "aliases", "start", "replays", "time_limit", "retry", "abstract"}
    )
    _enode_handles_refusals: ClassVar[bool] = False
    """True if handlers may be for refusals."""
    _enode_methods: ClassVar[dict[Followed, str]] = {}
    _enode_creators: ClassVar[frozenset[str]] = frozenset()
    """The names of the handlers that make rows; if empty, every handler does."""
    _enode_may_create: ClassVar[bool] = False
    _enode_marks: ClassVar[Mapping[str, HandlerMark]] = {}
    """The options that the decorators of handlers were given, by the name of the handler; without those given none."""
    _enode_keys: ClassVar[Mapping[str, EventKey]] = {}
    """The functions that ``@handles(key=…)`` or ``keys`` was given, by the name of the handler."""
    _enode_key: ClassVar[EventKey | None] = None
    _enode_has_keys: ClassVar[bool] = False
    _enode_arguments: ClassVar[tuple[str, ...]] = ("event",)
    _enode_may_yield: ClassVar[bool] = False

    def __init_subclass__(cls, *, _enode_key: EventKey | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_names(cls, Subscriber, has_fields=False)
        if _enode_key is not None:
            cls._enode_key = _enode_key
        cls._enode_methods = _collect_methods(cls)
        cls._enode_creators = _collect_creators(cls)
        cls._enode_marks = _collect_marks(cls)
        cls._enode_keys = {name: mark.key for name, mark in cls._enode_marks.items() if mark.key is not None}
        for name in set(cls._enode_methods.values()):
            check_method(cls, name, *cls._enode_arguments_of_handlers(), may_yield=cls._enode_may_yield)
        check_aliases(cls.__qualname__, cls.__dict__.get("aliases", ()))
        if cls.start not in (NOW, BEGINNING):
            raise DefinitionError(f'{cls.__qualname__} has start = {cls.start!r}; use "now" or "beginning"')
        if cls.retry is not None and not isinstance(cls.retry, Retries):
            raise DefinitionError(f"{cls.__qualname__} has retry = {cls.retry!r}; give it Retries(attempts=…)")
        if not cls._enode_handles_refusals:
            for followed in cls._enode_methods:
                if issubclass(followed, DomainException):
                    raise DefinitionError(
                        f"{cls.__qualname__} handles {followed.__qualname__}: a refusal changes nothing, so there is "
                        "nothing to project; let a process manager or an event handler handle it"
                    )
        super(cls, cls)._enode_complete()  # type: ignore[misc]  # it is for subclasses of its class
        if is_declared(cls):
            _declared.append(cls)

    @classmethod
    def _enode_complete(cls) -> None:
        """Complete and check a subclass. If this raises, it is not declared."""

    def __init__(self) -> None:
        self.name = type(self).__dict__.get("name") or self._enode_default_name()
        self.aliases = aliases_of(type(self))
        self._enode_known_handlers: dict[str, Sequence[Handler]] = {}
        self._enode_known_types: dict[str, bool] = {}
        self._enode_removed_types: frozenset[str] = frozenset()
        """Stored names of events that this process does not know, and that the subscriber is recorded not to handle."""
        self._enode_removed_refusals: frozenset[str] = frozenset()
        """The same for refusals."""

    @classmethod
    def _enode_arguments_of_handlers(cls) -> tuple[str, ...]:
        return cls._enode_arguments

    def _enode_default_name(self) -> str:
        """Raise `TypeNameError` outside the installed apps."""
        cls = type(self)
        label = types.label_of(cls.__module__)
        if label is None:
            raise TypeNameError(
                f"{cls.__module__}.{cls.__qualname__} belongs to no installed app; "
                f'give it a name: name = "some_label.{cls.__name__}" in its body'
            )
        return f"{label}.{cls.__name__}"

    def _enode_followed(self) -> Iterable[Followed]:
        return self._enode_methods

    def _enode_handlers_of(self, cls: Followed) -> Sequence[Handler]:
        method = self._enode_method_for(cls)
        return () if method is None else (getattr(self, method),)

    @classmethod
    def _enode_method_for(cls, followed: Followed) -> str | None:
        """Return the name of the method for the class or for its nearest base."""
        return next((cls._enode_methods[base] for base in followed.__mro__ if base in cls._enode_methods), None)

    def _enode_follows(self, aggregate_root_type: str) -> bool:
        known = self._enode_known_types.get(aggregate_root_type)
        if known is None:
            known = self._enode_known_types[aggregate_root_type] = self._enode_can_follow(aggregate_root_type)
        return known

    def _enode_can_follow(self, aggregate_root_type: str) -> bool:
        cls = types.find(AggregateRoot, aggregate_root_type)
        if cls is None:
            return True
        return any(_overlap(event, followed) for event in applied_events(cls) for followed in self._enode_followed())

    def _enode_for_replay(self) -> Subscriber | None:
        """Return the part of the subscriber that takes part in replays, or None if it has none."""
        return self if self.replays else None

    @property
    def database(self) -> str:
        """The alias of the database that holds its checkpoints and, for a projection, its rows."""
        return checkpoint_database()


def key_of(subscriber: Subscriber) -> str:
    """Return the name that everything stored or sent carries: the oldest alias of the subscriber, or its name."""
    return next(iter(subscriber.aliases), subscriber.name)


def followed_by(subscriber: Subscriber) -> Iterable[Followed]:
    """Return the classes that the subscriber handles."""
    return subscriber._enode_followed()


def handlers_of(subscriber: Subscriber, cls: Followed) -> Sequence[Handler]:
    """Return the functions to call for a message of this class, in order; none if it is not followed."""
    return subscriber._enode_handlers_of(cls)


def event_handlers_of(subscriber: Subscriber, type_name: str) -> Sequence[Handler]:
    """Return the functions to call for an event of this stored name, in order; none if it is not followed. Raises
    `UnknownMessageType` for an unknown name, which newer code may follow, unless it is one of the removed types."""
    handlers = subscriber._enode_known_handlers.get(type_name)
    if handlers is None:
        try:
            cls = types.class_of(DomainEvent, type_name)
        except UnknownMessageType:
            if type_name in subscriber._enode_removed_types:
                return ()
            raise
        handlers = handlers_of(subscriber, cls)
        subscriber._enode_known_handlers[type_name] = handlers
    return handlers


def refusal_handlers_of(subscriber: Subscriber, type_name: str) -> Sequence[Handler]:
    """Return the functions to call for a refusal of this stored name. Raises `UnknownMessageType` as
    `event_handlers_of` does, if the subscriber handles any refusal."""
    if not any(issubclass(cls, DomainException) for cls in followed_by(subscriber)):
        return ()
    try:
        cls = types.class_of(DomainException, type_name)
    except UnknownMessageType:
        if type_name in subscriber._enode_removed_refusals:
            return ()
        raise
    return handlers_of(subscriber, cls)


def follows(subscriber: Subscriber, aggregate_root_type: str) -> bool:
    """Return True if aggregates of this type can have events that are followed: an aggregate has an applier for each of
    its events. Return True for a type that this process does not know."""
    return subscriber._enode_follows(aggregate_root_type)


def is_time_limit(value: object) -> bool:
    """Return True for None, for numbers above 0 and for infinity."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0)


def _overlap(one: type, other: type) -> bool:
    """Return True if there is a class derived from both, or that is both."""
    return issubclass(one, other) or any(_overlap(derived, other) for derived in one.__subclasses__())


def checkpoint_database() -> str:
    """Return the database of checkpoints that belong to no rows, as the project's routers name it."""
    return router.db_for_write(apps.get_model("enode_django", "Checkpoint"))


def is_declared(cls: type[Subscriber]) -> bool:
    """Return True if the class has handlers and is not abstract: then its settings have to be complete."""
    return bool(cls._enode_methods) and not cls.__dict__.get("abstract", False)


_declared: list[type[Subscriber]] = []


def declared_subscribers() -> Sequence[type[Subscriber]]:
    """Return the declared classes in their order. A reloaded module's classes replace their earlier ones."""
    return list({(cls.__module__, cls.__qualname__): cls for cls in _declared}.values())


def subscribers_without_handlers(base: type[Subscriber] = Subscriber) -> Iterator[type[Subscriber]]:
    """Yield the project's classes that handle nothing, although they are neither abstract nor the base of others."""
    for cls in base.__subclasses__():
        yield from subscribers_without_handlers(cls)
        is_ours = cls.__module__.partition(".")[0] == __name__.partition(".")[0]
        if not (is_ours or cls._enode_methods or cls.__subclasses__() or cls.__dict__.get("abstract", False)):
            yield cls


def _collect_methods(cls: type[Subscriber]) -> dict[Followed, str]:
    """Return the method names over the MRO. A method that a subclass overrides keeps what it was marked for."""
    methods: dict[Followed, str] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            if getattr(member, "_enode_applies", ()):
                raise DefinitionError(
                    f"{cls.__qualname__}.{name}() is marked with @applies, which is for aggregates; mark a method of a "
                    "subscriber with @handles"
                )
            for followed in getattr(member, "_enode_handles", ()):
                other = methods.setdefault(followed, name)
                if other != name:
                    raise DefinitionError(
                        f"{cls.__qualname__} has two methods for {followed.__qualname__}: {other}() and {name}(); "
                        "keep one"
                    )
    return methods


def _collect_creators(cls: type[Subscriber]) -> frozenset[str]:
    """Return the names of the methods that are marked with ``creates=True`` by the nearest class that marks them."""
    creators = frozenset(name for name, creates in _marked(cls, "_enode_creates").items() if creates)
    if creators and not cls._enode_may_create:
        raise DefinitionError(
            f"{cls.__qualname__}.{min(creators)} says creates=True, which is for the handlers of a ModelProjection or "
            "a MultiProjection; leave it out"
        )
    return creators


def _collect_marks(cls: type[Subscriber]) -> dict[str, HandlerMark]:
    """Return the marks with options. Raises `DefinitionError` for one that is of no use to this kind of subscriber."""
    marks = {name: mark for name, mark in _marked(cls, "_enode_mark").items() if mark is not None}
    for name, mark in marks.items():
        if not (
            (cls._enode_has_keys and mark == HandlerMark(mark.key)) or "state" in cls._enode_arguments_of_handlers()
        ):
            raise DefinitionError(
                f"{cls.__qualname__}.{name} is marked with a key, @starts or @ends, which are for process managers "
                "with a state, and the key for a MultiProjection; derive it from ProcessManager[SomeState], or leave "
                "them out"
            )
        if isinstance(mark.key, SeveralKeys) and not cls._enode_has_keys:
            raise DefinitionError(
                f"{cls.__qualname__}.{name} is marked with keys, which are for a MultiProjection; let key return "
                "the key of the one process that the event concerns"
            )
    return marks


def _marked(cls: type[Subscriber], attribute: str) -> dict[str, Any]:
    """Return this attribute of each method that `handles` has marked, as the nearest class marks it."""
    marked: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            if hasattr(member, attribute):
                marked[name] = getattr(member, attribute)
    return marked
