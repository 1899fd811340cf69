"""Aggregate roots: state in memory that changes only by applying events."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar, overload

from enode_django.domain.annotations import handled_classes, is_bare
from enode_django.domain.class_bodies import check_marked_once
from enode_django.domain.declarations import Declared, schema_of
from enode_django.domain.messages import DomainEvent, EventStamp, is_stamped, seal, stamp_event
from enode_django.domain.method_handlers import register_methods
from enode_django.domain.origin import NO_ORIGIN, handled_command
from enode_django.domain.prefixes import check_prefix, check_prefixed
from enode_django.domain.reading import Readable
from enode_django.domain.signatures import check_marked, check_method
from enode_django.domain.unique import Unique, uniques_of, unknown_fields
from enode_django.exceptions import (
    AggregateReadOnly,
    ApplierNotFound,
    BrokenHistory,
    DefinitionError,
    InvalidField,
    shown,
)
from enode_django.ids import check_id

Applier = TypeVar("Applier", bound=Callable[..., None])
Owner = TypeVar("Owner")
E1 = TypeVar("E1", bound=DomainEvent)
E2 = TypeVar("E2", bound=DomainEvent)
E3 = TypeVar("E3", bound=DomainEvent)
E4 = TypeVar("E4", bound=DomainEvent)
E5 = TypeVar("E5", bound=DomainEvent)
Method = Callable[[Owner, E1], None]
Root = TypeVar("Root", bound="AggregateRoot")
SnapshotPolicy = int | None | Callable[[int, int], bool]
"""The number of versions between snapshots (None or 0: no snapshots), or a function of the last snapshot's version (0:
none) and the current one."""


@overload
def applies(event: type[E1], /) -> Callable[[Method[Owner, E1]], Method[Owner, E1]]: ...
@overload
def applies(e1: type[E1], e2: type[E2], /) -> Callable[[Method[Owner, E1 | E2]], Method[Owner, E1 | E2]]: ...
@overload
def applies(
    e1: type[E1], e2: type[E2], e3: type[E3], /
) -> Callable[[Method[Owner, E1 | E2 | E3]], Method[Owner, E1 | E2 | E3]]: ...
@overload
def applies(
    e1: type[E1], e2: type[E2], e3: type[E3], e4: type[E4], /
) -> Callable[[Method[Owner, E1 | E2 | E3 | E4]], Method[Owner, E1 | E2 | E3 | E4]]: ...
@overload
def applies(
    e1: type[E1], e2: type[E2], e3: type[E3], e4: type[E4], e5: type[E5], /
) -> Callable[[Method[Owner, E1 | E2 | E3 | E4 | E5]], Method[Owner, E1 | E2 | E3 | E4 | E5]]: ...
@overload
def applies(*events: type[DomainEvent]) -> Callable[[Applier], Applier]: ...
@overload
def applies(method: Method[Owner, E1], /) -> Method[Owner, E1]: ...
def applies(*events: Any) -> Any:
    """Mark a method of an aggregate root as the applier of these classes of events.

    Without classes (``@applies``) they are taken from the annotation of the method's parameter. Raises
    `DefinitionError` if the annotation is missing then, or contradicts the classes.

    For example::

        class Account(AggregateRoot):
            balance: Decimal = Decimal(0)

            @applies
            def _moved(self, event: Deposited | Withdrawn) -> None:
                self.balance = event.balance
    """
    if is_bare(events):
        return applies()(events[0])
    for event in events:
        if not (isinstance(event, type) and issubclass(event, DomainEvent)):
            raise DefinitionError(f"applies() takes classes of domain events, got {event!r}")

    def mark(method: Applier) -> Applier:
        applied = handled_classes("applies", method, events, DomainEvent)
        check_marked_once("applies", method)
        method._enode_applies = applied  # type: ignore[attr-defined]
        return method

    return mark


class AggregateRoot(Readable, Declared):
    """The base of aggregate roots. Declared fields are the state; mutable defaults are copied for each instance.

    A constructor takes the id only. Only one thread uses an aggregate, that of its command mailbox. ``snapshot_every``
    says how often a snapshot is made. Ids of the class begin with ``id_prefix``; another id raises `InvalidId`. No two
    aggregates have the same values of the fields that are declared ``unique``.

    For example::

        class Account(AggregateRoot):
            balance: Decimal = Decimal(0)

            @command_handler
            def deposit(self, command: Deposit) -> None:
                self.apply(Deposited(amount=command.amount, balance=self.balance + command.amount))

            @applies
            def _deposited(self, event: Deposited) -> None:
                self.balance = event.balance
    """

    snapshot_every: ClassVar[SnapshotPolicy] = 100
    id_prefix: ClassVar[str] = ""
    unique: ClassVar[Unique | Sequence[Unique]] = ()
    _enode_settings: ClassVar[frozenset[str]] = frozenset({"id_prefix", "snapshot_every", "unique"})
    _enode_hooks: ClassVar[frozenset[str]] = frozenset({"snapshot_every", "snapshot", "restore"})
    _enode_appliers: ClassVar[dict[type[DomainEvent], str]] = {}
    _enode_initial: ClassVar[tuple[tuple[str, Any], ...] | None] = None
    _enode_read_only = False
    _enode_unique: ClassVar[tuple[Unique, ...]] = ()

    @classmethod
    def _enode_complete(cls) -> None:
        for name, value in list(vars(cls).items()):
            if isinstance(value, dataclasses.Field) and value.default is not dataclasses.MISSING:
                setattr(cls, name, value.default)
        cls._enode_appliers = _collect_appliers(cls)
        cls._enode_initial = None
        cls._enode_unique = uniques_of(cls, cls.unique)
        check_prefix(cls)
        _check_constructor(cls)
        _check_snapshots(cls)
        register_methods(cls)

    def __init__(self, id: str) -> None:
        self._enode_id = check_id(id, "aggregate root id")
        if self.id_prefix:
            check_prefixed(type(self), id)
        self._enode_version = 0
        # A tuple between commands: a list would be one more object for each aggregate in memory.
        self._enode_uncommitted: list[DomainEvent] | tuple[()] = ()
        initial = self._enode_initial
        for name, default in initial if initial is not None else _initial_state(type(self)):
            self.__dict__[name] = default() if callable(default) else default

    def __post_init__(self) -> None:
        """Called by the constructor that ``@dataclass`` has put in the place of ours."""
        raise DefinitionError(
            f"{type(self).__qualname__} is marked with @dataclass, whose constructor makes no aggregate; remove "
            "the mark: declared fields need none"
        )

    @property
    def id(self) -> str:
        return self._enode_id

    @property
    def version(self) -> int:
        """The number of commands that have changed this aggregate, without the one being handled."""
        return self._enode_version

    @property
    def uncommitted_events(self) -> Sequence[DomainEvent]:
        """The events that the command being handled has applied so far."""
        return tuple(self._enode_uncommitted)

    def apply(self, event: DomainEvent) -> None:
        """Apply ``event``: change the state now. The event is stored, as it is now, when the command is done.

        Before anything changes, raises `ApplierNotFound` for an event without an applier, `InvalidField` for an event
        that was changed to invalid values after it was made, `DefinitionError` for an event that was applied already,
        and `AggregateReadOnly`. Raises what the applier raises, and `DefinitionError` if the applier applies another
        event; in both cases the command fails even if its handler catches the error.
        """
        kind = type(event)
        applier = self._enode_appliers.get(kind) or _find_applier(type(self), kind)
        if is_stamped(event):
            raise DefinitionError(f"{event!r} was applied already; make a new event for each apply()")
        applied = seal(event) if (kind._enode_schema or schema_of(kind)).copies else event
        events = self._enode_uncommitted or []
        stamp = events[0]._enode_stamp if events else _new_stamp(self)
        stamp_event(event, stamp, len(events))
        if applied is not event:
            stamp_event(applied, stamp, len(events))
        events.append(event)
        self._enode_uncommitted = events
        try:
            getattr(self, applier)(applied)
            if events[-1] is not event:
                raise DefinitionError(
                    f"{type(self).__qualname__}.{applier}() applies another event, which would happen twice when the "
                    "aggregate is loaded; let the method that applies the first one apply both"
                )
        except BaseException as error:
            command = handled_command.get()
            if command is not None:
                command.note_error(error)
            raise

    def snapshot(self) -> Any:
        """Return the state as plain values, from which `restore` makes the same state in a new instance.

        By default these are the declared fields. A class that keeps other state overrides both methods. Raises
        `InvalidField` for a value that does not fit its field.
        """
        state = {}
        for name, kind in schema_of(type(self)).types.items():
            if not hasattr(self, name):
                continue  # it has no default, and no event has set it
            try:
                value = kind.check(getattr(self, name))
            except InvalidField as error:
                raise InvalidField(f"{type(self).__qualname__}.{name}: {error}") from error
            state[name] = kind.encode(value) if kind.encode else value
        return state

    def restore(self, plain: Any) -> None:
        """Set the state of a new instance from the result of `snapshot`. Raises `InvalidField`."""
        for name, kind in schema_of(type(self)).types.items():
            if name in plain:
                self.__dict__[name] = kind.decode(plain[name])


def applied_events(cls: type[AggregateRoot]) -> Collection[type[DomainEvent]]:
    """Return the classes of events that the class has appliers for. An applier also takes their subclasses."""
    return cls._enode_appliers.keys()


def _initial_state(cls: type[AggregateRoot]) -> tuple[tuple[str, Any], ...]:
    schema = schema_of(cls)
    for unique, field in unknown_fields(cls._enode_unique, schema.names):
        raise DefinitionError(
            f"{cls.__qualname__} declares {unique!r}, but has no field {field!r}; it has "
            f"{', '.join(schema.names) or 'none'}"
        )
    cls._enode_initial = tuple((name, schema.defaults[name]) for name in schema.with_factory)
    return cls._enode_initial


def read_only(aggregate: Root) -> Root:
    """Make the aggregate refuse events from now on, and return it."""
    aggregate._enode_read_only = True
    return aggregate


def _new_stamp(aggregate: AggregateRoot) -> EventStamp:
    if aggregate._enode_read_only:
        raise AggregateReadOnly(
            f"{type(aggregate).__qualname__} {aggregate.id!r} was loaded for reading, and takes no event; send a "
            "command, whose handler changes it"
        )
    command = handled_command.get()
    if command is not None:
        command.note_change(aggregate)
    return EventStamp(aggregate._enode_id, aggregate._enode_version + 1, datetime.now(UTC), command or NO_ORIGIN)


def _find_applier(cls: type[AggregateRoot], event: type[DomainEvent]) -> str:
    appliers = cls._enode_appliers
    for base in event.__mro__:
        if base in appliers:
            appliers[event] = appliers[base]
            return appliers[event]
    if issubclass(event, type):
        raise DefinitionError("apply() takes a domain event, got a class; make an instance of it")
    if not issubclass(event, DomainEvent):
        raise DefinitionError(f"apply() takes a domain event, got an instance of {event.__qualname__}")
    raise ApplierNotFound(
        f"{cls.__qualname__} has no method for {event.__qualname__}; mark one with @applies, and annotate its "
        f"parameter with {event.__qualname__}"
    )


def accept_events(aggregate: AggregateRoot) -> Sequence[DomainEvent]:
    """Raise the version by one, and return the uncommitted events, which make up one event stream."""
    events = aggregate._enode_uncommitted
    aggregate._enode_uncommitted = ()
    aggregate._enode_version += 1
    return events


def replay_stream(aggregate: AggregateRoot, events: Sequence[DomainEvent], version: int) -> None:
    """Apply one stored event stream. Raises `BrokenHistory` unless ``version`` is the next one."""
    known = aggregate._enode_version
    if version != known + 1:
        raise BrokenHistory(f"aggregate {aggregate.id!r} is at version {known}; version {version} does not follow")
    appliers = aggregate._enode_appliers
    for event in events:
        kind = type(event)
        getattr(aggregate, appliers.get(kind) or _find_applier(type(aggregate), kind))(event)
    aggregate._enode_version = version


def restored(cls: type[AggregateRoot], id: str, version: int, plain: Any) -> AggregateRoot:
    """Return the aggregate with the state that `snapshot` returned at that version. Raises what `restore` raises."""
    aggregate = cls(id)
    aggregate.restore(plain)
    aggregate._enode_version = version
    return aggregate


def _check_snapshots(cls: type[AggregateRoot]) -> None:
    """Raise `DefinitionError` for one hook without the other, such as a domain method that is called ``restore``."""
    if (cls.snapshot is AggregateRoot.snapshot) is not (cls.restore is AggregateRoot.restore):
        one, other = ("restore", "snapshot") if cls.snapshot is AggregateRoot.snapshot else ("snapshot", "restore")
        raise DefinitionError(
            f"{cls.__qualname__} defines {one}() without {other}(): together they are how snapshots keep the state; "
            "define both, or choose another name"
        )
    for name, arguments in (("snapshot", ()), ("restore", ("plain",))):
        _check_hook(cls, name, *arguments)
    every = cls.snapshot_every
    if not (every is None or callable(every) or (type(every) is int and every >= 0)):
        raise DefinitionError(
            f"{cls.__qualname__} has snapshot_every = {shown(every)}; use a number of versions, None for no snapshots, "
            "or a function of the last snapshot's version and the present one"
        )


def _check_hook(cls: type[AggregateRoot], name: str, *arguments: str) -> None:
    try:
        if not callable(getattr(cls, name)):
            raise DefinitionError(f"it is {shown(getattr(cls, name))}")
        check_method(cls, name, *arguments)
    except DefinitionError as error:
        raise DefinitionError(
            f"{cls.__qualname__}.{name} cannot be the hook {name}({', '.join(arguments)}) of snapshots: {error}; "
            "choose another name"
        ) from error


def _check_constructor(cls: type[AggregateRoot]) -> None:
    """Raise `DefinitionError` if the constructor needs more than the id, which would fail only at the first load."""
    constructor = cls.__dict__.get("__init__")
    if constructor is None:
        return
    try:
        inspect.signature(constructor).bind(cls, "id")
    except TypeError as error:
        raise DefinitionError(
            f"{cls.__qualname__}.__init__() must do with the id alone ({error}); "
            "give the rest to a method that applies an event"
        ) from error


def _collect_appliers(cls: type[AggregateRoot]) -> dict[type[DomainEvent], str]:
    """Return the names of the appliers by event class. An overridden method keeps the events it was marked for."""
    appliers: dict[type[DomainEvent], str] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            if getattr(member, "_enode_handles", ()):
                raise DefinitionError(
                    f"{cls.__qualname__}.{name}() is marked with @handles, which is for subscribers; mark a method of "
                    "an aggregate with @applies"
                )
            for event in getattr(member, "_enode_applies", ()):
                other = appliers.setdefault(event, name)
                if other != name:
                    raise DefinitionError(
                        f"{cls.__qualname__} has two methods for {event.__qualname__}: {other}() and {name}(); keep one"
                    )
    for name in set(appliers.values()):
        check_marked(cls, name, "an applier", "event")
    return appliers
