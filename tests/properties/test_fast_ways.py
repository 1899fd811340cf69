"""Messages are made, checked and read in fast ways, which must agree with the thorough ones, and with stored bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from enode_django.bus.messages import PublishedStream, _decode_slowly, decode_published, encode_published
from enode_django.domain.declarations import schema_of
from enode_django.domain.metadata import Metadata
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import EnodeError
from enode_django.serialization.codec import (
    _decode_command_slowly,
    decode_command,
    decode_events,
    decode_refusal,
    encode_command,
    encode_metadata,
    encode_refusal,
    encode_stream,
    read_stored,
    restore_command,
)
from enode_django.serialization.plain import pack
from tests.properties.test_codec import (
    FIELDS,
    Colour,
    EventStamp,
    Everything,
    Happened,
    Level,
    Line,
    Measured,
    Point,
    Refused,
    garbage,
    ids,
    plain_values,
    texts,
)

# Written by the version before messages were checked by compiled functions and commands were read as structs.
COMMAND = bytes.fromhex(
    "9701b570726f706572746965732e45766572797468696e67a3632d31a36164618ea4666c6167c3a5636f756e7407a57368617265cb3fe0"
    "000000000000a474657874a2c3a4a464617461c4020078a6616d6f756e74c7050131322e3530a26174d7ff00009c40663881d9a3646179"
    "c70a03323032342d30352d3036a36b6579d80200000000000000000000000000000005a6636f6c6f7572c0a5706f696e7482a178d40131"
    "a47461677391a161a56c696e65739182a4656e64739282a178d40131a4746167739082a178d40132a47461677390a6636f6c6f7572a372"
    "6564a7616d6f756e747381a178d60131452b33a66c6576656c739101c40881a475736572a175a5696e626f78"
)
EXPECTING = bytes.fromhex(
    "9801b570726f706572746965732e45766572797468696e67a3632d31a36164618ea4666c6167c3a5636f756e7407a57368617265cb3fe0"
    "000000000000a474657874a2c3a4a464617461c4020078a6616d6f756e74c7050131322e3530a26174d7ff00009c40663881d9a3646179"
    "c70a03323032342d30352d3036a36b6579d80200000000000000000000000000000005a6636f6c6f7572c0a5706f696e7482a178d40131"
    "a47461677391a161a56c696e65739182a4656e64739282a178d40131a4746167739082a178d40132a47461677390a6636f6c6f7572a372"
    "6564a7616d6f756e747381a178d60131452b33a66c6576656c739101c400a0920107"
)
STREAM = bytes.fromhex(
    "01929293b370726f706572746965732e4d656173757265640189a4666c6167c3a5636f756e7407a57368617265cb3fe0000000000000a4"
    "74657874a2c3a4a464617461c4020078a6616d6f756e74c7050131322e3530a26174d7ff00009c40663881d9a3646179c70a0332303234"
    "2d30352d3036a36b6579d8020000000000000000000000000000000593b370726f706572746965732e4d656173757265640189a4666c61"
    "67c2a5636f756e7400a57368617265cb0000000000000000a474657874a0a464617461c400a6616d6f756e74d40130a26174d6ff386d43"
    "80a3646179c70a03323030302d30312d3031a36b6579d80200000000000000000000000000000000d6012d302e31"
)
NESTED = bytes.fromhex(
    "01929193b370726f706572746965732e48617070656e65640183a474657874a174a7616d6f756e747381a161d40132a5706f696e7482a1"
    "78d40133a47461677390920181a161c0"
)
REFUSAL = bytes.fromhex("0294b270726f706572746965732e5265667573656401a26e6f82a26174d6ff66381d80a5706f696e74c0")
PUBLISHED = bytes.fromhex(
    "9a01ac62616e6b2e4163636f756e74a361646103a3632d31ac62616e6b2e4465706f736974d7ff00009c40663881d9c41401929293b370"
    "726f706572746965732e4d656173c4016da5696e626f78"
)

AT = datetime(2024, 5, 6, 7, 8, 9, 10, UTC)
SIMPLE: dict[str, Any] = {
    "flag": True,
    "count": 7,
    "share": 0.5,
    "text": "ä",
    "data": b"\0x",
    "amount": Decimal("12.50"),
    "at": AT,
    "day": date(2024, 5, 6),
    "key": UUID(int=5),
}
COMPLEX: dict[str, Any] = {
    "colour": Colour.NONE,
    "point": Point(Decimal(1), ("a",)),
    "lines": (Line((Point(Decimal(1)), Point(Decimal(2)))),),
    "amounts": {"x": Decimal("1E+3")},
    "levels": {Level.LOW},
}


def test_stored_commands_are_read_and_written_as_ever() -> None:
    command, metadata = Everything("ada", id="c-1", **SIMPLE, **COMPLEX), encode_metadata(Metadata(user_id="u"))

    assert restore_command(decode_command(COMMAND)) == restore_command(decode_command(EXPECTING)) == command
    assert decode_command(EXPECTING).expected_version == 7
    assert encode_command(command, metadata, "inbox") == COMMAND
    assert encode_command(command, b"", "", 7) == EXPECTING


def test_stored_events_and_refusals_are_read_and_written_as_ever() -> None:
    measured, stamp = [Measured(**SIMPLE), Measured()], EventStamp("ada", 3, AT)
    happened = [Happened(text="t", amounts={"a": Decimal(2)}, point=Point(Decimal(3)))]
    refusal = Refused("no", at=datetime(2024, 5, 6, tzinfo=UTC))

    assert decode_events(STREAM, stamp) == measured
    assert decode_events(NESTED, stamp) == happened
    assert vars(decode_refusal(read_stored(REFUSAL))) == vars(refusal)  # type: ignore[arg-type]
    assert encode_stream(measured, Decimal("-0.1")) == STREAM
    assert encode_stream(happened, [1, {"a": None}]) == NESTED
    assert encode_refusal(refusal) == REFUSAL


def test_published_streams_are_read_and_written_as_ever() -> None:
    record = StreamRecord("ada", 3, "c-1", "bank.Account", "bank.Deposit", AT, STREAM[:20], b"m")

    assert decode_published(PUBLISHED) == PublishedStream(record, "inbox")
    assert encode_published(record, "inbox") == PUBLISHED


def outcome(call: Callable[[], Any]) -> str:
    """Return the result of the call, or its error, as a text."""
    try:
        return repr(call())
    except EnodeError as error:
        return f"{type(error).__name__}: {error}"


strange = garbage.map(lambda body: body[:9]) | plain_values
parts = st.tuples(
    st.just(1) | strange,
    texts | strange,
    ids | strange,
    ids | strange,
    st.dictionaries(texts | st.integers(), plain_values, max_size=3) | strange,
    st.binary(max_size=9) | strange,
    texts | st.just("x" * 513) | strange,
)


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(parts, st.tuples(parts, st.lists(strange, max_size=2)).map(lambda pair: (*pair[0], *pair[1]))), st.data()
)
def test_a_command_is_read_alike_in_both_ways(parts: tuple[Any, ...], data: st.DataObject) -> None:
    body = pack(parts)
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(body) - 1))
        body = body[:place] + bytes([data.draw(st.integers(0, 255))]) + body[place + 1 :]

    assert outcome(lambda: decode_command(body)) == outcome(lambda: _decode_command_slowly(body))


def test_a_command_with_an_id_of_zeros_is_refused() -> None:
    for place, told in ((2, "command id"), (3, "aggregate_root_id")):
        parts: list[Any] = [1, "t", "c", "a", {}, b"", ""]
        parts[place] = "a\0b"
        assert outcome(lambda parts=parts: decode_command(pack(parts))).startswith(f"InvalidId: {told}")  # type: ignore[misc]


names = texts | st.just("x" * 256) | st.just("a\0b") | strange
published = st.tuples(
    st.just(1) | strange,
    names,
    names,
    st.integers(-1, 1 << 64) | st.none() | st.booleans() | strange,
    names,
    names,
    st.just(AT) | st.just(AT.isoformat()) | strange,
    st.binary(max_size=9) | texts | strange,
    st.binary(max_size=9) | strange,
    texts | st.just("x" * 513) | strange,
)


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        published,
        st.tuples(published, st.lists(st.integers(0, 9) | strange, max_size=2)).map(lambda one: (*one[0], *one[1])),
    )
)
def test_a_published_stream_is_read_alike_in_both_ways(parts: tuple[Any, ...]) -> None:
    body = pack(parts)
    assert outcome(lambda: decode_published(body)) == outcome(lambda: _decode_slowly(body))


fields = st.fixed_dictionaries(
    {name: values | plain_values | st.just(Decimal("NaN")) for name, values in FIELDS.items()}
)


@settings(max_examples=50, deadline=None)
@given(st.one_of(fields, st.fixed_dictionaries(FIELDS)))
def test_fields_are_checked_alike_in_both_ways(values: dict[str, Any]) -> None:
    schema, other = schema_of(Everything), copy.deepcopy(values)

    told = outcome(lambda: schema.check(values))
    assert told == outcome(lambda: schema._check_slowly(other))
    if told == "None":
        assert repr(values) == repr(other)


@settings(max_examples=50, deadline=None)
@given(st.fixed_dictionaries(FIELDS), st.dictionaries(st.sampled_from([*FIELDS]), plain_values, max_size=1), st.data())
def test_fields_are_decoded_alike_in_both_ways(
    values: dict[str, Any], strange: dict[str, Any], data: st.DataObject
) -> None:
    schema = schema_of(Everything)
    plain = {**schema.encode(schema.checked(values)), **strange}
    for name in data.draw(st.sets(st.sampled_from([*FIELDS]), max_size=3)):
        plain.pop(name, None)

    fast: dict[str, Any] = {}
    slow: dict[str, Any] = {}
    assert outcome(lambda: schema.decode_into(fast, plain)) == outcome(lambda: schema._decode_slowly(slow, plain))
    assert not fast or repr(fast) == repr(slow)
