"""Commands and domain events: frozen values whose fields are passed by keyword and checked by the constructor."""

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
    """The base of commands and events. Subclasses become frozen dataclasses.

    A class body may set ``type_name``; by default it is ``"<app_label>.<ClassName>"``.
    """

    _enode_settings: ClassVar[frozenset[str]] = frozenset({"schema_version"})
    schema_version: ClassVar[int] = 1

    @classmethod
    def _enode_complete(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        (self._enode_schema or schema_of(type(self))).check(self.__dict__)


AnyMessage = TypeVar("AnyMessage", bound=Message)


def message_of(cls: type[AnyMessage], plain: dict[str, Any]) -> AnyMessage:
    """Return a message made from plain field values. Raises `InvalidField`. ``__post_init__`` does not run, so that a
    stored message stays readable when its checks change."""
    message = object.__new__(cls)
    (cls._enode_schema or schema_of(cls)).decode_into(message.__dict__, plain)
    return message


class Command(Message, Generic[ResultT]):
    """A request to change one aggregate, whose id is the first argument: ``Withdraw("ada", amount=Decimal(30))``.
    ``id`` is generated unless given; the same id takes effect once.

    ``Command[Decimal]`` tells type checkers that the command's result is a `Decimal`; it is not checked at run time.
    ``exposed = False`` in a class body makes the command internal, for example for a process manager: only code sends
    it. The API, forms and serializers do not offer it; the admin offers it to superusers only.

    For example::

        class Withdraw(Command[Decimal]):
            amount: Decimal

        command = Withdraw("ada", amount=Decimal(30))
        assert (command.aggregate_root_id, command.amount) == ("ada", 30)
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
    """Return a received command, from checked ids and plain fields. Raises `InvalidField`, also for unknown fields and
    for values out of bounds, because a message in the queue may come from another program."""
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
        """The metadata of the command, with the command as the cause."""
        return caused_by(self.origin.metadata, self.origin.command_id)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle or copy the ids and metadata, without the command's context."""
        origin = KnownOrigin(self.origin.command_id, self.origin.metadata)
        return (EventStamp, (self.aggregate_root_id, self.version, self.timestamp, origin))


class _NotApplied:
    """The stamp of an event that was not applied; it raises AttributeError. An event's own stamp takes precedence."""

    def __get__(self, event: object, owner: type) -> EventStamp:
        if event is None:
            raise AttributeError("a class of events has no stamp; ask an event")
        raise AttributeError(f"{event!r} was not applied yet: ids, version, timestamp and metadata come with apply()")


_NOT_SEALED: dict[str, Any] | None = None


class DomainEvent(Message):
    """A fact about an aggregate. Two events are equal if their class and declared fields are.

    The attributes below exist once the event was applied, and raise AttributeError before. ``timestamp`` is in UTC.

    For example::

        class Deposited(DomainEvent):
            amount: Decimal

        assert Deposited(amount=Decimal(5)) == Deposited(amount=Decimal(5))
    """

    # Instance state, but not fields: equality, repr and the constructor ignore it. No annotations, because hypothesis
    # shows all of a dataclass's annotated attributes.
    _enode_stamp = _NotApplied()
    _enode_plain = _NOT_SEALED
    if TYPE_CHECKING:
        _enode_index: ClassVar[int]

    @property
    def id(self) -> str:
        """The id, derived from the event's place in the store, so that it is the same at each reading."""
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
        """The metadata of the event's command, with the command as its cause."""
        return self._enode_stamp.metadata


AnyEvent = TypeVar("AnyEvent", bound=DomainEvent)


def stamp_event(event: DomainEvent, stamp: EventStamp, index: int) -> None:
    values = event.__dict__
    values["_enode_stamp"] = stamp
    values["_enode_index"] = index


def stamp_of(event: DomainEvent) -> EventStamp:
    """Return the stamp of an applied event."""
    return event._enode_stamp


def is_stamped(event: DomainEvent) -> bool:
    return "_enode_stamp" in event.__dict__


def seal(event: AnyEvent) -> AnyEvent:
    """Freeze the values that will be stored, and return a copy of the event for the applier, which may keep and change
    its values. Needed for events with mutable values. Raises `InvalidField` if one was changed to an invalid value."""
    schema = event._enode_schema or schema_of(type(event))
    copy = object.__new__(type(event))
    values = copy.__dict__
    values.update(event.__dict__)
    schema.check_changeable(values)
    event.__dict__["_enode_plain"] = schema.encode(values)
    return copy


def sealed_plain(event: DomainEvent) -> dict[str, Any]:
    """Return the plain values that the event was applied with, like `plain_of`. Callers must not change them."""
    plain = event._enode_plain
    return plain_of(event) if plain is None else plain


def event_restorer(cls: type[AnyEvent]) -> Callable[[dict[str, Any], EventStamp, int], AnyEvent]:
    """Return a function that makes a stamped event from plain field values, like `message_of` and `stamp_event`, but
    faster for many events. The function raises `InvalidField`."""
    return schema_of(cls).maker("_enode_stamp", "_enode_index")
