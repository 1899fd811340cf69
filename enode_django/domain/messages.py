"""Commands and domain events: frozen, keyword-only values whose fields are checked when they are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar, Self, dataclass_transform

from enode_django.domain.declarations import Declared
from enode_django.domain.metadata import Metadata
from enode_django.domain.origin import NO_ORIGIN, KnownOrigin, Origin
from enode_django.exceptions import InvalidField, shown
from enode_django.ids import check_id, new_id


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
class Message(Declared):
    """Subclasses become frozen dataclasses.

    ``type_name`` may be given in a class body; by default it is ``"<app_label>.<ClassName>"``.
    """

    schema_version: ClassVar[int] = 1

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        (self._schema or self.schema()).check(self.__dict__)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """A message from plain field values; raises `InvalidField`. ``__post_init__`` does not run: what was accepted
        once stays readable when the rules of making change."""
        message = object.__new__(cls)
        (cls._schema or cls.schema()).decode_into(message.__dict__, plain)
        return message

    def to_plain(self) -> dict[str, Any]:
        return (self._schema or self.schema()).encode(self.__dict__)


class Command(Message):
    """A wish to change one aggregate. ``id`` is generated unless given; the same id takes effect once."""

    _envelope: ClassVar[frozenset[str]] = frozenset({"id", "aggregate_root_id"})

    aggregate_root_id: str
    id: str = dataclasses.field(default_factory=new_id)

    def __post_init__(self) -> None:
        super().__post_init__()
        values = self.__dict__
        values["aggregate_root_id"] = check_id(values["aggregate_root_id"], "aggregate_root_id")
        values["id"] = check_id(values["id"], "command id")

    @classmethod
    def restore(cls, id: str, aggregate_root_id: str, plain: dict[str, Any]) -> Self:
        """The command that was sent, from checked ids and plain fields. Raises `InvalidField`, also for unknown fields
        and for values out of bounds: what comes from the queue need not have been made here."""
        schema = cls._schema or cls.schema()
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


Command._reserved = frozenset({"id", "aggregate_root_id", "type_name", "schema_version"})


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
        origin = self.origin
        return dataclasses.replace(
            origin.metadata,
            causation_id=origin.command_id or None,
            correlation_id=origin.metadata.correlation_id or origin.command_id or None,
        )

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

    _reserved: ClassVar[frozenset[str]] = frozenset(
        {"id", "aggregate_root_id", "version", "timestamp", "command_id", "metadata", "type_name", "schema_version"}
    )

    # Instance state, but no fields: equality, repr and the constructor leave it out.
    _stamp = _NotApplied()
    _index: ClassVar[int]
    _plain: ClassVar[dict[str, Any] | None] = None

    def seal(self) -> Self:
        """Fix what will be stored. Returns another event for the applier, which may keep and change what that one
        holds. Needed where anything in this one can be changed; raises `InvalidField` if it was, to what does not
        fit."""
        schema = self._schema or self.schema()
        copy = object.__new__(type(self))
        values = copy.__dict__
        values.update(self.__dict__)
        schema.check_changeable(values)
        self.__dict__["_plain"] = schema.encode(values)
        return copy

    def to_store(self) -> dict[str, Any]:
        """Return plain values as `to_plain` does, of the values that the event was applied with. Callers must not
        change them."""
        plain = self._plain
        return (self._schema or self.schema()).encode(self.__dict__) if plain is None else plain

    def stamp(self, stamp: EventStamp, index: int) -> None:
        self.__dict__["_stamp"] = stamp
        self.__dict__["_index"] = index

    @classmethod
    def restorer(cls) -> Callable[[dict[str, Any], EventStamp, int], DomainEvent]:
        """Return a function that makes a stamped event of plain field values, as `from_plain` and `stamp` do, but at
        less cost for each of many. The function raises `InvalidField`."""
        new, decode_into = object.__new__, cls.schema().decode_into

        def restore(plain: dict[str, Any], stamp: EventStamp, index: int) -> DomainEvent:
            event = new(cls)
            values = event.__dict__
            decode_into(values, plain)
            values["_stamp"] = stamp
            values["_index"] = index
            return event

        return restore

    @property
    def is_stamped(self) -> bool:
        return "_stamp" in self.__dict__

    @property
    def id(self) -> str:
        """Derived from the event's place in the store, so it is the same however often the event is read."""
        return f"{self._stamp.aggregate_root_id}/{self._stamp.version}/{self._index}"

    @property
    def aggregate_root_id(self) -> str:
        return self._stamp.aggregate_root_id

    @property
    def version(self) -> int:
        return self._stamp.version

    @property
    def timestamp(self) -> datetime:
        return self._stamp.timestamp

    @property
    def command_id(self) -> str:
        return self._stamp.origin.command_id

    @property
    def metadata(self) -> Metadata:
        """That of the event's command, with the command as its cause."""
        return self._stamp.metadata
