"""The baseline: stored rows, written again byte for byte by COPY alone."""

from __future__ import annotations

import time
from collections.abc import Sequence

from psycopg import sql

from benchmarks.workspace import Workspace
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.copy_format import COLUMNS, HEADER, TRAILER, encode
from enode_django.eventstore.statements import COPY, TABLE

BATCH = 1_000


def stored_rows(workspace: Workspace) -> list[bytes]:
    """Return the rows in COPY's binary format, in the order of storing."""
    columns = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
    select = sql.SQL("COPY (SELECT {} FROM {} ORDER BY sequence) TO STDOUT (FORMAT BINARY)")
    statement = select.format(columns, sql.Identifier(TABLE))
    with workspace.connect() as connection, connection.cursor().copy(statement) as copy:
        return _split(b"".join(copy))


def encoded_rows(records: Sequence[StreamRecord]) -> list[bytes]:
    return _split(encode(records))


def copy_seconds(workspace: Workspace, before: list[bytes], rows: list[bytes]) -> float:
    """Return the seconds to write ``rows`` into the real table, on one connection with a transaction per batch.
    ``before`` is written first, unmeasured."""
    batches = [_batch(rows[start : start + BATCH]) for start in range(0, len(rows), BATCH)]
    with workspace.connect() as connection, connection.cursor() as cursor:
        with cursor.copy(COPY) as copy:
            copy.write(_batch(before))
        connection.execute("CHECKPOINT")
        started = time.perf_counter()
        for batch in batches:
            with cursor.copy(COPY) as copy:
                copy.write(batch)
        return time.perf_counter() - started


def batches_of(stream: bytes) -> list[bytes]:
    """Split a binary COPY into binary COPYs of `BATCH` rows."""
    rows = _split(stream)
    return [_batch(rows[start : start + BATCH]) for start in range(0, len(rows), BATCH)]


def _batch(rows: list[bytes]) -> bytes:
    return HEADER + b"".join(rows) + TRAILER


def _split(stream: bytes) -> list[bytes]:
    """Split a binary COPY into rows. A row is a count of fields, then the length (-1: NULL) and the bytes of each."""
    rows = []
    place = len(HEADER)
    while stream[place : place + 2] != TRAILER:
        end = place + 2
        for _ in range(int.from_bytes(stream[place:end], "big")):
            length = int.from_bytes(stream[end : end + 4], "big", signed=True)
            end += 4 + max(length, 0)
        rows.append(stream[place:end])
        place = end
    return rows
