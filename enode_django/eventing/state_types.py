"""The states of processes as bytes: a format byte, then msgpack of ``{field: value}``, like the fields of messages.

Fields can be added: a stored state without them gets their defaults. Fields that this code does not know are kept as
they are when the state is stored again: newer code has added them, and runs beside this one during a deploy.

A state that is an event is stored once, when the process begins, with the name and schema version of its class, and is
read like a stored event: upcasters apply.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from enode_django.domain.declarations import resolved_schema, schema_of
from enode_django.domain.fields import Schema
from enode_django.domain.messages import DomainEvent, EventStamp, sealed_plain, stamp_of
from enode_django.domain.metadata import Metadata
from enode_django.domain.origin import KnownOrigin
from enode_django.exceptions import DefinitionError, EnodeError, InvalidField, MalformedMessage, shown
from enode_django.serialization.codec import restorer_of
from enode_django.serialization.plain import pack, unpack
from enode_django.serialization.registry import types

FORMAT = b"\x01"
JOINED = "@joined"
"""The stored field with the names of the classes whose events have come to handlers that join them."""
EVENT = "@event"
"""The stored field of a state that is an event, with what its fields do not have: class, place, time and command."""
KEEPS_ITS_KIND = "a process keeps the kind of state that it began with"


class DataclassState:
    """A dataclass, whose instances the handlers change. The constructor raises `DefinitionError` if ``cls`` is not a
    dataclass, is frozen, or has a field without a default."""

    def __init__(self, cls: Any, owner: str) -> None:
        if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
            raise DefinitionError(
                f"{owner} has state = {shown(cls)}; give it a class marked with @dataclass, or the class of the event "
                "that begins its processes"
            )
        if cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise DefinitionError(f"{owner} has the state {cls.__qualname__}, which is frozen; its handlers change it")
        for field in dataclasses.fields(cls):
            if field.init is False:
                raise DefinitionError(f"{cls.__qualname__}.{field.name} has init=False, so it could not be restored")
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise DefinitionError(
                    f"{cls.__qualname__}.{field.name} has no default; a process begins with the defaults of its state"
                )
        self.cls = cls

    @cached_property
    def _schema(self) -> Schema:
        return resolved_schema(self.cls)

    def check(self) -> None:
        """Raise `DefinitionError` for a field that cannot be stored."""
        resolved_schema(self.cls)

    def begin(self, key: str, key_field: str, message: Any) -> tuple[Any, bytes]:
        """Return the state that ``message`` begins, its key in ``key_field``, and its bytes if it will not change."""
        state = self._made({})
        if key_field in self._schema.names:
            setattr(state, key_field, key)
        return state, b""

    def read(self, packed: bytes) -> Any:
        """Return a stored state. Raises `MalformedMessage` and `InvalidField`."""
        plain = plain_state(packed)
        if EVENT in plain:
            name = self.cls.__qualname__
            raise MalformedMessage(f"the state {shown(plain)} is an event, not a {name}; {KEEPS_ITS_KIND}")
        return self._made(self._schema.decode(plain))

    def fits(self, name: str, value: Any) -> bool:
        """Return whether the field takes this stored value."""
        try:
            self._schema.decode({name: value})
        except InvalidField:
            return False
        return True

    def _made(self, fields: dict[str, Any]) -> Any:
        try:
            return self.cls(**fields)
        except Exception as error:  # its own __post_init__
            raise InvalidField(f"{self.cls.__qualname__} refuses {shown(fields)}: {error}") from error

    def write(self, state: Any, over: bytes = b"", joined: Sequence[str] = ()) -> bytes:
        """Return the bytes of a state that was read from ``over``, if it was stored before. Raises `InvalidField` for a
        value that does not fit its field, or has the name of none."""
        schema = self._schema
        unknown = {name: value for name, value in plain_state(over).items() if name not in schema.types}
        if joined:
            unknown[JOINED] = list(joined)
        self._check_names(state, over)
        fields = schema.checked({name: getattr(state, name) for name in schema.names})
        return FORMAT + pack({**unknown, **schema.encode(fields)})

    def _check_names(self, state: Any, over: bytes) -> None:
        values = getattr(state, "__dict__", {})  # slots refuse other names
        names = [name for name in values if name not in self._schema.types and not name.startswith("_")]
        if strange := [name for name in names if not hasattr(self.cls, name)]:
            made = vars(self.read(over) if over else self._made({}))  # its own __post_init__ may set more than fields
            for name in strange:
                if name not in made:
                    raise InvalidField(
                        f"{self.cls.__qualname__}.{name} is no field, so it would not be stored; its fields are "
                        f"{', '.join(self._schema.names)}"
                    )


class EventState:
    """The event that has begun a process. It does not change. The methods are those of `DataclassState`."""

    def __init__(self, cls: type[DomainEvent]) -> None:
        self.cls = cls

    def check(self) -> None:
        schema_of(self.cls)

    def begin(self, key: str, key_field: str, message: Any) -> tuple[Any, bytes]:
        packed = FORMAT + pack({**sealed_plain(message), EVENT: _place_of(message)})
        return self.read(packed), packed  # a copy, because a handler may change lists of the event that it is given

    def read(self, packed: bytes) -> Any:
        plain = plain_state(packed)
        kept = plain.get(EVENT)
        if kept is None:
            raise MalformedMessage(f"the state {shown(plain)} is not an event; {KEEPS_ITS_KIND}")
        fields = {name: value for name, value in plain.items() if name not in (EVENT, JOINED)}
        try:
            event = _restored(kept, fields)
        except EnodeError:
            raise
        except Exception as error:
            raise MalformedMessage(f"an event cannot be made of {shown(plain)}: {error}") from error
        if not isinstance(event, self.cls):
            raise MalformedMessage(f"the state is {shown(event)}, not a {self.cls.__qualname__}; {KEEPS_ITS_KIND}")
        return event

    def write(self, state: Any, over: bytes = b"", joined: Sequence[str] = ()) -> bytes:
        return FORMAT + pack({**plain_state(over), JOINED: list(joined)}) if joined else over


StateType = DataclassState | EventState


def state_type(cls: Any, owner: str) -> StateType:
    """Return the type of ``owner``'s states. Raises `DefinitionError` for a class that cannot be a state."""
    if isinstance(cls, type) and issubclass(cls, DomainEvent):
        return EventState(cls)
    return DataclassState(cls, owner)


def _place_of(event: DomainEvent) -> dict[str, Any]:
    """Return what the fields of an applied event do not say."""
    stamp = stamp_of(event)
    return {
        "type": types.name_of(type(event)),
        "schema_version": event.schema_version,
        "aggregate_root_id": stamp.aggregate_root_id,
        "version": stamp.version,
        "index": event._enode_index,
        "timestamp": stamp.timestamp.isoformat(),
        "command_id": stamp.origin.command_id,
        "metadata": stamp.origin.metadata.as_map(),
    }


def _restored(kept: dict[str, Any], fields: dict[str, Any]) -> DomainEvent:
    origin = KnownOrigin(kept["command_id"], Metadata.from_map(kept["metadata"]))
    time = datetime.fromisoformat(kept["timestamp"])
    stamp = EventStamp(kept["aggregate_root_id"], kept["version"], time, origin)
    return restorer_of(kept["type"], kept["schema_version"])(fields, stamp, kept["index"])


def misfits(state_type: DataclassState, packed: bytes) -> list[str]:
    """Return the names of the stored fields whose values their fields do not take. Raises `MalformedMessage`."""
    return [name for name, value in plain_state(packed).items() if not state_type.fits(name, value)]


def joined_in(packed: bytes) -> Sequence[str]:
    """Return the names of the classes of events that a stored state has joined. Raises `MalformedMessage`."""
    joined: Sequence[str] = plain_state(packed).get(JOINED, ())
    return joined


def plain_state(packed: bytes) -> dict[str, Any]:
    """Return the plain fields of a stored state, without its class; none for no bytes. Raises `MalformedMessage`."""
    if not packed:
        return {}
    fields = unpack(packed[1:]) if packed[:1] == FORMAT else None
    if type(fields) is not dict:
        raise MalformedMessage(
            f"a state of {len(packed)} bytes begins with {packed[:1]!r}, which is not a format of ours"
        )
    return fields
