"""Commands and domain events: frozen values whose fields are given by keyword and checked when they are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, dataclass_transform

from enode_django.domain.declarations import Declared, plain_of, schema_of
from enode_django.domain.metadata import Metadata, caused_by
from enode_django.domain.origin import NO_ORIGIN, KnownOrigin, Origin
from enode_django.exceptions import InvalidField, shown
from enode_django.ids import check_id, new_id

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    ResultT = TypeVarWithDefault("ResultT", default=Any, covariant=True)
else:
    ResultT = TypeVar("ResultT", covariant=True)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
class Message(Declared):
    """Subclasses become frozen dataclasses.

    ``type_name`` may be given in a class body; by default it is ``"<app_label>.<ClassName>"``.
    """

    _enode_settings: ClassVar[frozenset[str]] = frozenset({"schema_version"})
    schema_version: ClassVar[int] = 1

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        (self._enode_schema or schema_of(type(self))).check(self.__dict__)


AnyMessage = TypeVar("AnyMessage", bound=Message)


def message_of(cls: type[AnyMessage], plain: dict[str, Any]) -> AnyMessage:
    """Return a message made of plain field values; raises `InvalidField`. ``__post_init__`` does not run: what was
    accepted once stays readable when the rules of making change."""
    message = object.__new__(cls)
    (cls._enode_schema or schema_of(cls)).decode_into(message.__dict__, plain)
    return message


class Command(Message, Generic[ResultT]):
    """A wish to change one aggregate, whose id comes first: ``Withdraw("ada", amount=Decimal(30))``. ``id`` is
    generated unless given; the same id takes effect once.

    ``Command[Decimal]`` tells type checkers that the command's result is a `Decimal`. Nothing checks it at run time.

    ``exposed = False`` in a class body makes the command internal, as those of a process manager should be: it is sent
    by code, and is not offered to people by the API, by forms and serializers, or (but for superusers) by the admin.
    """

    exposed: ClassVar[bool] = True
    _enode_settings: ClassVar[frozenset[str]] = frozenset({"exposed"})
    _enode_envelope: ClassVar[frozenset[str]] = frozenset({"id", "aggregate_root_id"})

    aggregate_root_id: str = dataclasses.field(kw_only=False)
    id: str = dataclasses.field(default_factory=new_id)

    def __post_init__(self) -> None:
        super().__post_init__()
        values = self.__dict__
        values["aggregate_root_id"] = check_id(values["aggregate_root_id"], "aggregate_root_id")
        values["id"] = check_id(values["id"], "command id")


AnyCommand = TypeVar("AnyCommand", bound=Command)


def restored_command(cls: type[AnyCommand], id: str, aggregate_root_id: str, plain: dict[str, Any]) -> AnyCommand:
    """Return the command that was sent, from checked ids and plain fields. Raises `InvalidField`, also for unknown
    fields and for values out of bounds: what comes from the queue need not have been made here."""
    schema = cls._enode_schema or schema_of(cls)
    known = schema.defaults
    if not plain.keys() <= known.keys():
        unknown = min(map(shown, plain.keys() - known.keys()))
        raise InvalidField(f"{cls.__qualname__} has no field {unknown}; it has {tuple(known)}")
    command = object.__new__(cls)
    values = command.__dict__
    schema.decode_into(values, plain)
    if schema.bounded:
        schema.check_bounded(values)
    values["aggregate_root_id"] = aggregate_root_id
    values["id"] = id
    return command


class EventStamp:
    """The values that all events of one stream share."""

    __slots__ = ("aggregate_root_id", "origin", "timestamp", "version")

    def __init__(self, aggregate_root_id: str, version: int, timestamp: datetime, origin: Origin = NO_ORIGIN) -> None:
        self.aggregate_root_id = aggregate_root_id
        self.version = version
        self.timestamp = timestamp
        self.origin = origin

    @property
    def metadata(self) -> Metadata:
        """That of the command, with the command as the cause."""
        return caused_by(self.origin.metadata, self.origin.command_id)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle or copy ids and metadata, not the command's context."""
        origin = KnownOrigin(self.origin.command_id, self.origin.metadata)
        return (EventStamp, (self.aggregate_root_id, self.version, self.timestamp, origin))


class _NotApplied:
    """Stands for the stamp of an event that has none: one in the event itself comes before it."""

    def __get__(self, event: object, owner: type) -> EventStamp:
        if event is None:
            raise AttributeError("a class of events has no stamp; ask an event")
        raise AttributeError(f"{event!r} was not applied yet: ids, version, timestamp and metadata come with apply()")


class DomainEvent(Message):
    """A fact about an aggregate. Two events are equal if their class and declared fields are.

    The attributes below are there once the event was applied; ``timestamp`` is in UTC.
    """

    # Instance state, but no fields: equality, repr and the constructor leave it out.
    _enode_stamp = _NotApplied()
    _enode_index: ClassVar[int]
    _enode_plain: ClassVar[dict[str, Any] | None] = None

    @property
    def id(self) -> str:
        """Derived from the event's place in the store, so it is the same however often the event is read."""
        return f"{self._enode_stamp.aggregate_root_id}/{self._enode_stamp.version}/{self._enode_index}"

    @property
    def aggregate_root_id(self) -> str:
        return self._enode_stamp.aggregate_root_id

    @property
    def version(self) -> int:
        return self._enode_stamp.version

    @property
    def timestamp(self) -> datetime:
        return self._enode_stamp.timestamp

    @property
    def command_id(self) -> str:
        return self._enode_stamp.origin.command_id

    @property
    def metadata(self) -> Metadata:
        """That of the event's command, with the command as its cause."""
        return self._enode_stamp.metadata


AnyEvent = TypeVar("AnyEvent", bound=DomainEvent)


def stamp_event(event: DomainEvent, stamp: EventStamp, index: int) -> None:
    values = event.__dict__
    values["_enode_stamp"] = stamp
    values["_enode_index"] = index


def is_stamped(event: DomainEvent) -> bool:
    return "_enode_stamp" in event.__dict__


def seal(event: AnyEvent) -> AnyEvent:
    """Fix what will be stored. Returns another event for the applier, which may keep and change what that one holds.
    Needed where anything in this one can be changed; raises `InvalidField` if it was, to what does not fit."""
    schema = event._enode_schema or schema_of(type(event))
    copy = object.__new__(type(event))
    values = copy.__dict__
    values.update(event.__dict__)
    schema.check_changeable(values)
    event.__dict__["_enode_plain"] = schema.encode(values)
    return copy


def sealed_plain(event: DomainEvent) -> dict[str, Any]:
    """Return plain values as `plain_of` does, of the values that the event was applied with. Callers must not change
    them."""
    plain = event._enode_plain
    return plain_of(event) if plain is None else plain


def event_restorer(cls: type[AnyEvent]) -> Callable[[dict[str, Any], EventStamp, int], AnyEvent]:
    """Return a function that makes a stamped event of plain field values, as `message_of` and `stamp_event` do, but at
    less cost for each of many. The function raises `InvalidField`."""
    new, decode_into = object.__new__, schema_of(cls).decode_into

    def restore(plain: dict[str, Any], stamp: EventStamp, index: int) -> AnyEvent:
        event = new(cls)
        values = event.__dict__
        decode_into(values, plain)
        values["_enode_stamp"] = stamp
        values["_enode_index"] = index
        return event

    return restore
