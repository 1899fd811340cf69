from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.db import connection
from hypothesis import given, settings
from hypothesis import strategies as st

from enode_django.eventstore import statements
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.copy_format import COLUMNS, chunks, encode
from enode_django.eventstore.rows import execute, record_of

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=255)
records = st.builds(
    StreamRecord,
    aggregate_root_id=texts,
    version=st.none() | st.integers(-(2**63), 2**63 - 1),
    command_id=texts,
    aggregate_root_type=texts,
    command_type=texts,
    created_at=st.datetimes(timezones=st.sampled_from([UTC])),
    events=st.binary(max_size=2_000),
    metadata=st.binary(max_size=100),
)


def read_rows(data: bytes) -> list[list[bytes | None]]:
    """Binary COPY, read as its documentation says."""
    assert data[:11] == b"PGCOPY\n\377\r\n\0"
    flags, extension = struct.unpack_from("!ii", data, 11)
    assert (flags, extension) == (0, 0)
    place, rows = 19, []
    while (count := struct.unpack_from("!h", data, place)[0]) != -1:
        place += 2
        row: list[bytes | None] = []
        for _ in range(count):
            length = struct.unpack_from("!i", data, place)[0]
            place += 4
            row.append(None if length == -1 else data[place : place + length])
            place += max(length, 0)
        rows.append(row)
    assert place + 2 == len(data), "nothing follows the trailer"
    return rows


def record_from(row: list[bytes | None]) -> StreamRecord:
    fields = dict(zip(COLUMNS, row, strict=True))
    version = fields.pop("version")
    given_fields = {name: value for name, value in fields.items() if value is not None}
    assert given_fields.keys() == fields.keys(), "only the version may be NULL"
    microseconds = int.from_bytes(given_fields.pop("created_at"), "big", signed=True)
    events, metadata = given_fields.pop("events"), given_fields.pop("metadata")
    return StreamRecord(
        version=None if version is None else int.from_bytes(version, "big", signed=True),
        created_at=datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds),
        events=events,
        metadata=metadata,
        **{name: value.decode() for name, value in given_fields.items()},
    )


@given(st.lists(records, max_size=20))
def test_what_is_encoded_reads_back_equal(sent: list[StreamRecord]) -> None:
    assert [record_from(row) for row in read_rows(encode(sent))] == sent


@given(st.lists(records, max_size=20), st.integers(1, 25))
def test_pieces_join_to_the_whole(sent: list[StreamRecord], size: int) -> None:
    assert b"".join(chunks(sent, size)) == encode(sent)


@pytest.mark.django_db
@settings(max_examples=40, deadline=None)
@given(st.lists(records, max_size=20, unique_by=(lambda row: row.command_key, lambda row: row[:2])))
def test_postgres_reads_what_is_encoded(db: None, sent: list[StreamRecord]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {statements.TABLE}")
    with psycopg.Cursor(connection.connection).copy(statements.COPY) as copy:
        copy.write(encode(sent))
    rows = execute(connection, f"SELECT {', '.join(StreamRecord._fields)} FROM {statements.TABLE}", ())
    assert sorted(map(record_of, rows), key=str) == sorted(sent, key=str)


@pytest.mark.parametrize("field", ["aggregate_root_id", "command_id", "aggregate_root_type", "command_type"])
@pytest.mark.parametrize("bad", ["x" * 255 + " ", "\udc80"], ids=ascii)
def test_text_that_the_column_would_change_is_refused(field: str, bad: str) -> None:
    good = StreamRecord("a", 1, "c", "t", "t", datetime.now(UTC), b"", b"")
    with pytest.raises(ValueError, match=r"255|surrogate"):
        encode([StreamRecord(**{**good._asdict(), field: bad})])
