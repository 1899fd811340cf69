"""Event streams, refusals and commands as bytes.

The events value of a stored row is a format byte followed by msgpack:

=============  =====================================================================
STREAM (1)     ``[[[type name, schema version, {field: value}], …], result]``; the result may be combined with sent
               commands (see `sent_commands`)
REFUSAL (2)    ``[type name, schema version, message, {field: value}]``
=============  =====================================================================

A command in the queue is ``[1, type name, id, aggregate root id, {field: value}, metadata, reply address]``. It has an
eighth element if the schema version is not 1, namely the schema version, or if it has an expected version, namely
``[schema version, expected version]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from enode_django.domain.declarations import plain_of
from enode_django.domain.messages import (
    Command,
    DomainEvent,
    EventStamp,
    event_restorer,
    message_of,
    restored_command,
    sealed_plain,
)
from enode_django.domain.metadata import EMPTY, Metadata
from enode_django.domain.refusals import DomainException, restored_refusal
from enode_django.domain.scalars import TooLong
from enode_django.exceptions import EnodeError, InvalidField, MalformedMessage, shown
from enode_django.ids import MAX_ID_LENGTH, check_id
from enode_django.serialization.plain import command_unpacker, pack, taken, unpack, unpack_command, unpacker
from enode_django.serialization.registry import types
from enode_django.serialization.sent_commands import SentCommand, looks_sent, may_have_sent, result_and_sent, with_sent
from enode_django.serialization.simple_streams import NOT_SIMPLE, pack_simple_stream
from enode_django.serialization.unpacking import CANNOT_HARM
from enode_django.serialization.upcasting import Upcastable, upcasters

STREAM = b"\x01"
REFUSAL = b"\x02"
COMMAND_FORMAT: Literal[1] = 1
LONGEST_REPLY_ADDRESS = 512
"""Characters. The address of an inbox has 40 with its mark, the longest name of a process manager 255."""


class StoredEvent(NamedTuple):
    """An event as it is stored, readable without its class."""

    type_name: str
    schema_version: int
    fields: dict[str, Any]


class StoredStream(NamedTuple):
    events: Sequence[StoredEvent]
    result: Any
    sent: Sequence[SentCommand] = ()


class StoredRefusal(NamedTuple):
    type_name: str
    schema_version: int
    message: str
    fields: dict[str, Any]


def encode_stream(events: Sequence[DomainEvent], result: Any = None, sent: Sequence[SentCommand] = ()) -> bytes:
    """Raises `InvalidField` for a value that cannot be stored, and `TypeNameError` for a class without a name."""
    if sent or (type(result) is dict and looks_sent(result)):
        result = with_sent(result, sent)
    try:
        return STREAM + pack_simple_stream(events, result)
    except NOT_SIMPLE:
        name_of = types.name_of
        return STREAM + pack(([(name_of(type(one)), one.schema_version, sealed_plain(one)) for one in events], result))


def encode_refusal(refusal: DomainException) -> bytes:
    return REFUSAL + pack((types.name_of(type(refusal)), refusal.schema_version, refusal.message, plain_of(refusal)))


def read_stored(stored: bytes) -> StoredStream | StoredRefusal:
    """Decode the events value of a row without its classes. Raises `MalformedMessage`."""
    kind, value = stored[:1], unpack(stored[1:])
    try:
        if kind == STREAM:
            events, result = value
            found = [StoredEvent(*event) for event in events]
            if type(events) is not list or not all(type(event.type_name) is str for event in found):
                raise TypeError
            return StoredStream(found, *result_and_sent(result))
        if kind == REFUSAL:
            return StoredRefusal(*value)
    except (TypeError, ValueError) as error:
        raise MalformedMessage(f"an events value of {len(stored)} bytes has another shape than ours") from error
    raise MalformedMessage(f"an events value begins with {kind!r}, which is not a format of ours")


def sent_with(stored: bytes) -> Sequence[SentCommand]:
    """Return the commands that were sent with a stored stream, usually none. Raises `MalformedMessage`."""
    if not may_have_sent(stored):
        return ()
    found = read_stored(stored)
    return found.sent if isinstance(found, StoredStream) else ()


def decode_events(stored: bytes, stamp: EventStamp) -> list[DomainEvent]:
    """Return the stamped events of a stored stream (none for a refusal).

    Raises `UnknownMessageType` (also for an event newer than its class here) and `MalformedMessage`.
    """
    return EventDecoder().decode(stored, stamp)


Restore = Callable[[dict[str, Any], EventStamp, int], DomainEvent]


_unpack_events = unpacker(tuple[list[Any], msgspec.Raw])
"""Unpacks the events of a stream, but not its result, which readers of events do not need."""


def stored_events(stored: bytes) -> Sequence[Any]:
    """Return the events of a stored stream (none for a refusal), each a list of type name, schema version and plain
    fields; `EventDecoder.restore` checks that shape. Raises `MalformedMessage`."""
    if stored[:1] != STREAM:
        read_stored(stored)  # raises, unless it is a refusal
        return ()
    if len(stored) <= CANNOT_HARM:
        try:
            return _unpack_events(stored[1:])[0]
        except Exception:  # noqa: S110  (what follows says what is wrong)
            pass
    stream = unpack(stored[1:])
    if type(stream) is not list or len(stream) != 2 or type(stream[0]) is not list:
        raise MalformedMessage(f"an events value of {len(stored)} bytes has another shape than ours")
    events: list[Any] = stream[0]
    return events


def restorer_of(name: str, schema_version: int) -> Restore:
    """Return a function that makes stamped events from stored fields of this type and schema version. Raises
    `UnknownMessageType`."""
    cls = types.class_of(DomainEvent, name)
    newest: Restore = event_restorer(cls)

    def upcast(fields: dict[str, Any], stamp: EventStamp, index: int) -> DomainEvent:
        return newest(upcasters.upcast(cls, name, schema_version, fields), stamp, index)

    return newest if schema_version == cls.schema_version else upcast


class EventDecoder:
    """A `decode_events` for the streams of one history, which looks each type up once. It is for one thread and a short
    time: later registrations of types have no effect on it."""

    def __init__(self) -> None:
        self._restorers: dict[tuple[str, int], Restore] = {}

    def decode(self, stored: bytes, stamp: EventStamp) -> list[DomainEvent]:
        return self.restore(stored_events(stored), stamp)

    def restore(self, stored: Iterable[Any], stamp: EventStamp) -> list[DomainEvent]:
        """Return the stamped events of ``stored``, a result of `stored_events`. Raises as `decode_events`."""
        known = self._restorers
        events = []
        for index, stored_event in enumerate(stored):
            try:
                name, schema_version, fields = stored_event
                restore = known.get((name, schema_version))
                if restore is None:
                    restore = known[name, schema_version] = restorer_of(name, schema_version)
                events.append(restore(fields, stamp, index))
            except InvalidField as error:
                raise unreadable(stored_event, error, stamp) from error
            except EnodeError:
                raise
            except Exception as error:
                raise MalformedMessage(f"an event cannot be made of {shown(stored_event)}: {error}") from error
        return events


def restore_event(stored: StoredEvent | Sequence[Any]) -> DomainEvent:
    """Return the event that the code makes of a stored one, upcast and without a stamp: its ``id``, ``version`` and the
    like raise `AttributeError`. Raises `UnknownMessageType` (also for a newer schema version) and `MalformedMessage`.

    For example::

        event = restore_event(StoredEvent("bank.AccountOpened", 1, {"owner": "Ada"}))
        assert event == AccountOpened(owner="Ada")
    """
    try:
        name, schema_version, fields = stored
        cls = types.class_of(DomainEvent, name)
        if schema_version != cls.schema_version:
            fields = upcasters.upcast(cls, name, schema_version, fields)
        return message_of(cls, fields)
    except InvalidField as error:
        raise unreadable(stored, error) from error
    except EnodeError:
        raise
    except Exception as error:
        raise MalformedMessage(f"an event cannot be made of {shown(stored)}: {error}") from error


def unreadable(stored: Any, error: InvalidField, stamp: EventStamp | None = None) -> MalformedMessage:
    """Return the error for a stored event whose values do not fit its class. No `InvalidField` leaves a reader, because
    that one tells the sender of a command to change a value."""
    name, schema_version, _ = stored
    place = "" if stamp is None else f", in version {stamp.version} of aggregate {stamp.aggregate_root_id!r},"
    return MalformedMessage(
        f"{name!r} of schema version {schema_version}{place} cannot be read: {error};"
        f" {way_out_of(types.class_of(DomainEvent, name), schema_version)}"
    )


def way_out_of(cls: Upcastable, schema_version: int) -> str:
    """Return what makes stored fields of this version readable."""
    if schema_version in upcasters.of(cls):
        return f"correct the upcasters of {cls.__qualname__}, from version {schema_version} on"
    upcaster = f"an upcaster, @upcasts({cls.__qualname__}, from_version={schema_version})"
    is_newest = schema_version == cls.schema_version
    return f"raise schema_version to {schema_version + 1} and write {upcaster}" if is_newest else f"write {upcaster}"


def decode_refusal(refusal: StoredRefusal) -> DomainException:
    """Raises as `decode_events`."""
    try:
        name, schema_version, message, fields = refusal
        cls = types.class_of(DomainException, name)
        if schema_version != cls.schema_version:
            fields = upcasters.upcast(cls, name, schema_version, fields)
        return restored_refusal(cls, message, fields)
    except InvalidField as error:
        raise MalformedMessage(
            f"{name!r} of schema version {schema_version} cannot be read: {error}; {way_out_of(cls, schema_version)}"
        ) from error
    except EnodeError:
        raise
    except Exception as error:
        raise MalformedMessage(f"{shown(refusal)} is not a stored refusal: {error}") from error


def current_fields(refusal: StoredRefusal) -> dict[str, Any]:
    """Return the plain fields in the class's schema version; unchanged if the class is unknown, or if upcasting fails
    or returns values that are not plain: they could not be sent to who waits for the answer."""
    try:
        cls = types.class_of(DomainException, refusal.type_name)
        if refusal.schema_version == cls.schema_version:
            return refusal.fields
        fields: dict[str, Any] = taken(upcasters.upcast(cls, refusal.type_name, refusal.schema_version, refusal.fields))
        return fields
    except EnodeError:
        return refusal.fields


def encode_metadata(metadata: Metadata) -> bytes:
    """Raises `InvalidField`, which names the key, for a value that cannot be stored."""
    if metadata is EMPTY or metadata == EMPTY:
        return b""
    fields = metadata.as_map()
    try:
        packed = pack(fields)
        if len(packed) > _MAY_BE_DEEP:
            taken(fields)  # raises if it cannot be read again
        return packed
    except InvalidField:
        _find_unstorable(fields)
        raise


_MAY_BE_DEEP = 500
"""Fewer bytes cannot be nested so deep that they could be packed but not be unpacked."""


def _find_unstorable(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        try:
            taken({name: value})
        except InvalidField as error:
            raise InvalidField(f"metadata {name}={shown(value)}: {error}") from error


def decode_metadata(stored: bytes) -> Metadata:
    """Raises `MalformedMessage`."""
    if not stored:
        return EMPTY
    fields = unpack(stored)
    if type(fields) is not dict:
        raise MalformedMessage(f"metadata is {shown(fields)}, not a map")
    return Metadata.from_map(fields)


Id = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_LENGTH)]
Address = Annotated[str, msgspec.Meta(max_length=LONGEST_REPLY_ADDRESS)]


class WireCommand(msgspec.Struct, array_like=True, frozen=True):
    """A command in the queue: ids checked, fields plain, metadata still encoded."""

    form: Literal[1]
    """`COMMAND_FORMAT`."""
    type_name: str
    id: Id
    aggregate_root_id: Id
    fields: dict[Any, Any]
    metadata: bytes
    reply_to: Address
    schema_version: int = 1
    expected_version: int | None = None


def encode_command(command: Command, metadata: bytes, reply_to: str = "", expected_version: int | None = None) -> bytes:
    """Encode a command. ``reply_to`` is the address for its outcome (see `enode_django.bus.addresses`; empty: none).
    ``expected_version`` is the version that the aggregate must have (None: any)."""
    version = command.schema_version
    conditions: tuple[Any, ...] = () if version == 1 else (version,)
    if expected_version is not None:
        conditions = ((version, expected_version),)
    return pack(
        (
            COMMAND_FORMAT,
            types.name_of(type(command)),
            command.id,
            command.aggregate_root_id,
            plain_of(command),
            metadata,
            reply_to,
            *conditions,
        ),
        small=True,
    )


_SEVEN = 0x97
"""The first byte of a msgpack array of seven elements, as nearly all commands are. A `WireCommand` has more fields than
a message may have elements, so others must not be unpacked as one."""
_unpack_of_seven = command_unpacker(WireCommand)


def decode_command(body: bytes) -> WireCommand:
    """Decode a command without checking its fields. Raises `MalformedMessage` and `InvalidId`."""
    if 0 < len(body) <= CANNOT_HARM and body[0] == _SEVEN:
        try:
            wire = _unpack_of_seven(body)
        except Exception:
            return _decode_command_slowly(body)  # which says what is wrong
        if "\0" not in wire.id and "\0" not in wire.aggregate_root_id:
            return wire
    return _decode_command_slowly(body)


def _decode_command_slowly(body: bytes) -> WireCommand:
    """Decode any command, like `decode_command`."""
    try:
        parts = unpack_command(body)
        version, expected_version = 1, None
        if len(parts) == 7:
            form, type_name, id, aggregate_root_id, fields, metadata, reply_to = parts
        else:
            form, type_name, id, aggregate_root_id, fields, metadata, reply_to, version = parts
            if type(version) is not int:
                version, expected_version = _conditions(version)
    except (TypeError, ValueError) as error:
        raise MalformedMessage(f"{len(body)} bytes are not a command of ours: {error}") from error
    if (
        form != COMMAND_FORMAT
        or type(type_name) is not str
        or type(fields) is not dict
        or type(metadata) is not bytes
        or type(reply_to) is not str
    ):
        raise MalformedMessage(f"a command of format {shown(form)} has another shape than ours")
    if len(reply_to) > LONGEST_REPLY_ADDRESS:
        raise MalformedMessage(f"a reply address of {len(reply_to)} characters is none of ours: {shown(reply_to)}")
    check_id(id, "command id")
    check_id(aggregate_root_id, "aggregate_root_id")
    return WireCommand(
        COMMAND_FORMAT, type_name, id, aggregate_root_id, fields, metadata, reply_to, version, expected_version
    )


def as_new_command(body: bytes, id: str) -> bytes:
    """Return the same command with another id and without a reply address. Raises as `decode_command`."""
    decode_command(body)
    parts = unpack(body)
    parts[2], parts[6] = id, ""
    return pack(parts)


def _conditions(value: Any) -> tuple[int, int | None]:
    if type(value) is TooLong:  # an unknown version
        return int(value), None
    if type(value) is not list or len(value) != 2 or any(type(one) is not int or not 0 <= one < 2**63 for one in value):
        raise ValueError(f"{shown(value)} stands for the schema version")
    return value[0], value[1]


def restore_command(wire: WireCommand) -> Command:
    """Return the command. Raises `UnknownMessageType` (retriable), `InvalidField`, and `MalformedMessage` for fields
    that cannot be upcast."""
    cls = types.class_of(Command, wire.type_name)
    fields = wire.fields
    if wire.schema_version != cls.schema_version:
        fields = upcasters.upcast(cls, wire.type_name, wire.schema_version, fields)
    try:
        return restored_command(cls, wire.id, wire.aggregate_root_id, fields)
    except InvalidField as error:
        way_out = way_out_of(cls, wire.schema_version)
        raise InvalidField(f"{error}; if it was sent before {cls.__qualname__} has changed, {way_out}") from error
    except EnodeError:
        raise
    except Exception as error:  # field types are application code, too: an enum, a dataclass, a hash
        raise InvalidField(f"{wire.type_name} cannot be made of {shown(wire.fields)}: {error}") from error
