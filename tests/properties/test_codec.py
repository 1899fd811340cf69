"""Whatever a field accepts decodes equal; whatever arrives decodes or raises one of our errors."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from enode_django.bus.messages import decode_published, encode_published
from enode_django.bus.results import CommandResult, CommandStatus, decode_result, encode_result
from enode_django.domain.declarations import plain_of
from enode_django.domain.fields import field_type
from enode_django.domain.messages import Command, DomainEvent, EventStamp
from enode_django.domain.metadata import Metadata
from enode_django.domain.refusals import DomainException
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import InvalidField, InvalidId, MessageError
from enode_django.ids import check_id
from enode_django.serialization.codec import (
    REFUSAL,
    STREAM,
    StoredRefusal,
    StoredStream,
    decode_command,
    decode_events,
    decode_metadata,
    decode_refusal,
    encode_command,
    encode_metadata,
    encode_refusal,
    encode_stream,
    read_stored,
    restore_command,
    stored_events,
)
from enode_django.serialization.plain import _from_extension, pack, taken, unpack


class Colour(Enum):
    RED = "red"
    NONE = None


class Level(IntEnum):
    LOW = 1
    HIGH = 2**40


class Word(StrEnum):
    YES = "yes"


@dataclasses.dataclass(frozen=True)
class Point:
    x: Decimal
    tags: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Line:
    ends: tuple[Point, Point]
    colour: Colour = Colour.RED


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
moments = st.datetimes(
    datetime(1, 1, 2),
    datetime(9999, 12, 30),
    timezones=st.integers(-840, 840).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
decimals = st.decimals(allow_nan=False)
points = st.builds(Point, x=decimals, tags=st.lists(texts, max_size=3).map(tuple))

VALUES: dict[Any, st.SearchStrategy[Any]] = {
    type(None): st.none(),
    bool: st.booleans(),
    int: st.integers() | st.integers(-(2**80), 2**80) | st.just(2**64) | st.just(-(2**63) - 1),
    float: st.floats(allow_nan=False),
    str: texts,
    bytes: st.binary(max_size=20),
    Decimal: decimals,
    datetime: moments,
    date: st.dates(),
    UUID: st.uuids(),
    Colour: st.sampled_from(Colour),
    Level: st.sampled_from(Level),
    Word: st.sampled_from(Word),
    Point: points,
    Line: st.builds(Line, ends=st.tuples(points, points), colour=st.sampled_from(Colour)),
}
KEYS = [bool, int, str, bytes, Decimal, datetime, date, UUID, Colour, Level, Word]
HASHABLE = [*KEYS, float, type(None), Point, Line]

Typed = tuple[Any, st.SearchStrategy[Any]]


def _nested(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    leaves = st.sampled_from(HASHABLE)
    return st.one_of(
        inner.map(lambda t: (list[t[0]], st.lists(t[1], max_size=3))),
        inner.map(lambda t: (tuple[t[0], ...], st.lists(t[1], max_size=3).map(tuple))),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda ts: (tuple[tuple(t[0] for t in ts)], st.tuples(*(t[1] for t in ts)))  # type: ignore[misc]
        ),
        st.tuples(st.sampled_from(KEYS), inner).map(
            lambda kt: (dict[kt[0], kt[1][0]], st.dictionaries(VALUES[kt[0]], kt[1][1], max_size=3))
        ),
        leaves.map(lambda leaf: (set[leaf], st.sets(VALUES[leaf], max_size=3))),
        leaves.map(lambda leaf: (frozenset[leaf], st.frozensets(VALUES[leaf], max_size=3))),
        inner.filter(lambda t: t[0] not in (type(None), Colour)).map(lambda t: (t[0] | None, st.none() | t[1])),
    )


typed: st.SearchStrategy[Typed] = st.recursive(
    st.sampled_from(list(VALUES)).map(lambda kind: (kind, VALUES[kind])), _nested, max_leaves=4
)
typed_values = typed.flatmap(lambda t: st.tuples(st.just(t[0]), t[1]))


@settings(max_examples=100, deadline=None)
@given(typed_values)
def test_every_accepted_value_of_every_type_decodes_equal(typed_value: tuple[Any, Any]) -> None:
    annotation, value = typed_value
    kind = field_type(annotation)
    checked = kind.check(value)
    plain = kind.encode(checked) if kind.encode else checked
    back = kind.decode(unpack(pack(plain)))
    assert back == checked == value
    assert type(back) is type(checked)
    assert kind.check(back) == back


class Everything(Command):
    type_name = "properties.Everything"
    flag: bool = False
    count: int = 0
    share: float = 0.0
    text: str = ""
    data: bytes = b""
    amount: Decimal = Decimal(0)
    at: datetime = datetime(2000, 1, 1, tzinfo=UTC)
    day: date = date(2000, 1, 1)
    key: UUID = UUID(int=0)
    colour: Colour = Colour.RED
    point: Point | None = None
    lines: tuple[Line, ...] = ()
    amounts: dict[str, Decimal] = dataclasses.field(default_factory=dict)
    levels: set[Level] = dataclasses.field(default_factory=set)


FIELDS = {
    "flag": VALUES[bool],
    "count": VALUES[int],
    "share": VALUES[float],
    "text": VALUES[str],
    "data": VALUES[bytes],
    "amount": VALUES[Decimal],
    "at": VALUES[datetime],
    "day": VALUES[date],
    "key": VALUES[UUID],
    "colour": VALUES[Colour],
    "point": st.none() | points,
    "lines": st.lists(VALUES[Line], max_size=2).map(tuple),
    "amounts": st.dictionaries(texts, decimals, max_size=3),
    "levels": st.sets(VALUES[Level]),
}
ids = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=255)


class Happened(DomainEvent):
    type_name = "properties.Happened"
    text: str = ""
    amounts: dict[str, Decimal] = dataclasses.field(default_factory=dict)
    point: Point | None = None


class Refused(DomainException):
    type_name = "properties.Refused"
    at: datetime
    point: Point | None = None


plain_values = st.recursive(
    st.one_of(*(VALUES[kind] for kind in (type(None), bool, int, float, str, bytes, Decimal, date, UUID))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=40, deadline=None)
@given(
    id=ids,
    root=ids,
    fields=st.fixed_dictionaries({}, optional=FIELDS),
    reply=texts,
    user=texts,
    expected=st.none() | st.integers(0, 2**63 - 1),
)
def test_command_arrives_equal(
    id: str, root: str, fields: dict[str, Any], reply: str, user: str, expected: int | None
) -> None:
    command = Everything(root, id=id, **fields)
    metadata = Metadata(user_id=user, extra={"reason": [1, "a", None]})
    wire = decode_command(encode_command(command, encode_metadata(metadata), reply, expected))
    assert restore_command(wire) == command
    assert (wire.id, wire.aggregate_root_id, wire.reply_to, wire.expected_version) == (id, root, reply, expected)
    assert decode_metadata(wire.metadata) == metadata
    assert pickle.loads(pickle.dumps(command)) == copy.deepcopy(command) == command


@settings(max_examples=40, deadline=None)
@given(
    events=st.lists(
        st.builds(Happened, text=texts, amounts=st.dictionaries(texts, decimals, max_size=3), point=st.none() | points),
        min_size=1,
        max_size=4,
    ),
    result=plain_values,
)
def test_stream_is_read_as_it_was_stored(events: list[Happened], result: Any) -> None:
    stored = encode_stream(events, result)
    stamp = EventStamp("a", 3, datetime.now(UTC))
    back = decode_events(stored, stamp)
    assert back == events
    assert [event.id for event in back] == [f"a/3/{index}" for index in range(len(events))]
    stream = read_stored(stored)
    assert isinstance(stream, StoredStream)
    assert stream.result == result
    record = StreamRecord("a", 3, "c", "k", "t", stamp.timestamp, stored, b"")
    assert decode_published(encode_published(record, "reply")) == (record, "reply", 0)


SIMPLE = ("flag", "count", "share", "text", "data", "amount", "at", "day", "key")


class Measured(DomainEvent):
    """Has fields of all types that two libraries can pack."""

    type_name = "properties.Measured"
    flag: bool = False
    count: int = 0
    share: float = 0.0
    text: str = ""
    data: bytes = b""
    amount: Decimal = Decimal(0)
    at: datetime = datetime(2000, 1, 1, tzinfo=UTC)
    day: date = date(2000, 1, 1)
    key: UUID = UUID(int=0)


@settings(max_examples=100, deadline=None)
@given(
    fields=st.fixed_dictionaries({}, optional={name: FIELDS[name] for name in SIMPLE}),
    result=plain_values | moments.map(lambda moment: moment.astimezone(UTC)),
)
def test_a_stream_has_the_same_bytes_whichever_library_packs_it(fields: dict[str, Any], result: Any) -> None:
    event = Measured(**fields)
    assert encode_stream([event], result) == STREAM + pack(([(event.type_name, 1, plain_of(event))], result))


stored_values = st.one_of(
    st.builds(lambda fields, result: STREAM + pack(([("t", 1, {"f": fields})], result)), plain_values, plain_values),
    st.builds(lambda value: STREAM + pack(value), plain_values),
    st.builds(lambda value: REFUSAL + pack(("t", 1, "no", {"f": value})), plain_values),
    st.builds(lambda first, value: pack(first) + pack(([], value)), st.sampled_from([1, True, 1.0]), plain_values),
    st.binary(max_size=20),
)


@settings(max_examples=120, deadline=None)
@given(stored_values, st.integers(0, 3))
@example(STREAM + pack(({}, 0)), 0)
@example(STREAM + pack(("", 0)), 0)
def test_events_are_those_of_the_stream_also_if_its_result_is_not_read(stored: bytes, cut: int) -> None:
    """This also holds if bytes are cut off."""
    stored = stored[: len(stored) - cut]
    try:
        stream = read_stored(stored)
    except MessageError:
        with suppress(MessageError):
            assert len(stored_events(stored)) < 20, "only the result, or the shape of an event, was wrong"
        return
    events = stream.events if isinstance(stream, StoredStream) else []
    assert repr([tuple(event) for event in stored_events(stored)]) == repr([tuple(event) for event in events])


def read_by_msgpack(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_from_extension, timestamp=3, strict_map_key=False)


@settings(max_examples=150, deadline=None)
@given(plain_values)
def test_values_are_the_same_whichever_library_reads_them(value: Any) -> None:
    packed = pack(value)

    assert repr(unpack(packed)) == repr(read_by_msgpack(packed))


MARKERS = [*range(0x80, 0x84), *range(0x90, 0x94), *range(0xA0, 0xA4), *range(0xC0, 0xE0), 0, 1, 2, 3, 4, 8, 0xFF]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(MARKERS), min_size=1, max_size=14).map(bytes))
def test_bytes_that_one_library_refuses_the_other_one_refuses(data: bytes) -> None:
    try:
        expected = repr(read_by_msgpack(data))
    except (ValueError, TypeError, ArithmeticError, msgpack.UnpackException, MessageError):
        expected = ""
    try:
        found = unpack(data)
    except MessageError:
        found = None
        assert expected == ""
    assert not expected or repr(found) == expected or "datetime" in expected, "less than microseconds are rounded"


def test_values_that_are_nested_as_deep_as_can_be_stored_are_read() -> None:
    value: Any = None
    for _ in range(510):
        value = [value]

    assert unpack(pack(value)) == value


def test_no_answer_has_keys_that_cannot_be_read() -> None:
    with pytest.raises(InvalidField, match="cannot be read again"):
        taken({(1, 2): "a pair"})


def test_long_streams_are_read_like_short_ones() -> None:
    for length in (4, 4_000, 400_000):
        value = STREAM + pack(([("t", 1, {"f": "x" * length})], None))
        assert list(stored_events(value)) == [["t", 1, {"f": "x" * length}]]


@settings(max_examples=50, deadline=None)
@given(message=texts, at=moments, point=st.none() | points)
def test_refusal_is_read_as_it_was_stored(message: str, at: datetime, point: Point | None) -> None:
    refusal = Refused(message, at=at, point=point)
    stored = read_stored(encode_refusal(refusal))
    assert isinstance(stored, StoredRefusal)
    for back in (decode_refusal(stored), pickle.loads(pickle.dumps(refusal)), copy.deepcopy(refusal)):
        assert isinstance(back, Refused)
        assert (back.message, back.at, back.point) == (message, at, point)


@settings(max_examples=50, deadline=None)
@given(status=st.sampled_from(CommandStatus), value=plain_values, version=st.none() | st.integers(0, 2**62), text=texts)
def test_result_arrives_equal(status: CommandStatus, value: Any, version: int | None, text: str) -> None:
    result = CommandResult(
        status=status,
        command_id="c",
        aggregate_root_id="a",
        version=version,
        value=value,
        error_type=text.replace(".", "_") if status is CommandStatus.FAILED else text,
        error_message=text,
        error_fields={"x": value},
    )
    assert decode_result(encode_result(result)) == result


garbage = st.one_of(
    st.binary(max_size=60),
    st.recursive(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-(2**70), 2**70),
            st.floats(),
            st.text(max_size=9),
            st.binary(max_size=9),
        ),
        lambda inner: (
            st.lists(inner, max_size=10)
            | st.dictionaries(st.text(max_size=5) | st.integers(-(2**70), 2**70), inner, max_size=3)
        ),
        max_leaves=12,
    ).map(lambda value: pack(_storable(value))),
)


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, list):
        return [_storable(each) for each in value]
    if isinstance(value, dict):
        return {_storable(key): _storable(each) for key, each in value.items()}
    return value


@settings(max_examples=60, deadline=None)
@given(garbage)
def test_garbage_raises_nothing_but_message_errors(body: bytes) -> None:
    for decode in (
        lambda: restore_command(decode_command(body)),
        lambda: decode_published(body),
        lambda: decode_result(body),
        lambda: decode_metadata(body),
        lambda: decode_events(b"\x01" + body, EventStamp("a", 1, datetime.now(UTC))),
        lambda: decode_events(b"\x02" + body, EventStamp("a", 1, datetime.now(UTC))),
        lambda: read_stored(body),
    ):
        try:
            decode()
        except MessageError as error:
            assert str(error)  # noqa: PT017


@settings(max_examples=60, deadline=None)
@given(
    fields=st.dictionaries(
        st.sampled_from([*FIELDS, "unknown"]),
        garbage.map(lambda body: _unpacked(body)) | st.just(10**5000) | st.just(-(10**400)),
        max_size=4,
    )
)
def test_fields_of_any_shape_make_a_valid_command_or_an_invalid_field(fields: dict[str, Any]) -> None:
    body = pack((1, "properties.Everything", "c", "a", fields, b"", ""))
    try:
        command = restore_command(decode_command(body))
    except MessageError:
        return
    assert restore_command(decode_command(encode_command(command, b""))) == command


def _unpacked(body: bytes) -> Any:
    try:
        return unpack(body)
    except MessageError:
        return None


@pytest.mark.parametrize(
    "value",
    [10**5000, -(10**400), [], {}, None, 1.5, b"", "\0", [1, 10**5000], [1, -1], [1, None], [True, 1], [1, 2, 3]],
    ids=range(13),
)
def test_command_with_one_strange_part_raises_a_message_error_or_is_a_command(value: Any) -> None:
    for place in range(8):
        parts: list[Any] = [1, "properties.Everything", "c", "a", {}, b"", "", 1]
        parts[place] = value
        try:
            restored = restore_command(decode_command(pack(parts)))
        except MessageError as error:
            assert len(str(error)) < 600, place  # noqa: PT017
        else:
            assert isinstance(restored, Everything), place


@given(st.text(max_size=300) | st.none() | st.integers() | st.binary())
def test_an_id_is_accepted_exactly_if_it_is_short_text_of_utf8_without_nul(value: Any) -> None:
    try:
        fits = 0 < len(value) <= 255 and "\0" not in value and bool(value.encode())
    except (TypeError, AttributeError, UnicodeEncodeError):
        fits = False
    if fits:
        assert check_id(value) == value
    else:
        with pytest.raises(InvalidId):
            check_id(value)
