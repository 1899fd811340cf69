"""Snapshots in the event store's database.

There a snapshot cannot outlive the streams that it was made from: it is written after them, so a server that loses its
last transactions loses the snapshot first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any

import psycopg
from django.db import connections

from enode_django.databases import discard_if_lost, healthy_connection
from enode_django.eventstore import sqlstates
from enode_django.eventstore.known_corrections import statement_of
from enode_django.eventstore.limits import holds
from enode_django.eventstore.statements import CORRECTIONS, Reading
from enode_django.exceptions import StoreUnavailable
from enode_django.repository.store import Snapshot, SnapshotVersion

TABLE = "enode_django_snapshot"
COLUMNS = ", ".join(Snapshot._fields)
ON_CONFLICT = """
    ON CONFLICT (aggregate_root_id) DO UPDATE SET aggregate_root_type = EXCLUDED.aggregate_root_type,
        version = EXCLUDED.version, fingerprint = EXCLUDED.fingerprint, payload = EXCLUDED.payload,
        created_at = EXCLUDED.created_at
    WHERE known.version < EXCLUDED.version OR known.fingerprint <> EXCLUDED.fingerprint
"""
"""The end of an INSERT into the table as ``known``, in the order of the ids as texts: all writers use this order, so
that they cannot deadlock."""

_LOAD_ANY = f"SELECT {COLUMNS} FROM {TABLE} WHERE aggregate_root_id = ANY(%s::text[])"
# A row does not show whether its snapshot was made before or after a correction, even if it was saved later.
_LOAD = Reading(
    _LOAD_ANY,
    f"""{_LOAD_ANY} AND NOT EXISTS (
        SELECT FROM {CORRECTIONS} AS correction
        WHERE correction.aggregate_root_id = {TABLE}.aggregate_root_id AND correction.version <= {TABLE}.version
    )""",
)
_VERSIONS = f"""
    SELECT aggregate_root_id, aggregate_root_type, version, fingerprint FROM {TABLE}
    WHERE aggregate_root_id = ANY(%s::text[])
"""
_SAVE = f"""
    INSERT INTO {TABLE} AS known ({COLUMNS})
    SELECT {COLUMNS} FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::text[], %s::bytea[], %s::timestamptz[])
        AS made ({COLUMNS})
    ORDER BY aggregate_root_id {ON_CONFLICT}
"""
_DISCARD = f"DELETE FROM {TABLE} WHERE aggregate_root_id = %s AND version = %s AND fingerprint = %s AND payload = %s"
_DISCARD_FROM = f"DELETE FROM {TABLE} WHERE aggregate_root_id = %s AND version >= %s"
_SAMPLE = f"""
    SELECT {COLUMNS} FROM {TABLE} WHERE aggregate_root_id = ANY(ARRAY(
        SELECT aggregate_root_id FROM {TABLE} WHERE %s OR aggregate_root_type = ANY(%s::text[])
        ORDER BY random() LIMIT %s
    ))
"""


class PostgresSnapshotStore:
    """Stores snapshots in one database of ``DATABASES``, over the calling thread's Django connection."""

    def __init__(self, alias: str = "default") -> None:
        self.alias = alias

    def load(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Snapshot]:
        """Load as the port says, but no snapshot made of an event that was corrected."""
        ids = list(filter(holds, aggregate_root_ids))
        if not ids:
            return {}
        with self._cursor() as cursor:
            statement = statement_of(connections[self.alias], _LOAD)
            rows = cursor.execute(statement, (ids,), prepare=False, binary=True).fetchall()
        return {one.aggregate_root_id: one for one in map(_snapshot_of, rows)}

    def versions(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, SnapshotVersion]:
        ids = list(filter(holds, aggregate_root_ids))
        return {id: SnapshotVersion(*rest) for id, *rest in self._fetch(_VERSIONS, (ids,))} if ids else {}

    def save(self, snapshots: Sequence[Snapshot]) -> int:
        if not snapshots:
            return 0
        return self._change(_SAVE, tuple(map(list, zip(*snapshots, strict=True))))

    def discard(self, snapshot: Snapshot) -> bool:
        key = (snapshot.aggregate_root_id, snapshot.version, snapshot.fingerprint, snapshot.payload)
        return self._change(_DISCARD, key) == 1

    def discard_from(self, aggregate_root_id: str, version: int) -> bool:
        return holds(aggregate_root_id) and self._change(_DISCARD_FROM, (aggregate_root_id, version)) == 1

    def sample(self, count: int, aggregate_root_types: Sequence[str] = ()) -> Sequence[Snapshot]:
        parameters = (not aggregate_root_types, list(aggregate_root_types), count)
        return [_snapshot_of(row) for row in self._fetch(_SAMPLE, parameters)]

    def _fetch(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._cursor() as cursor:
            return cursor.execute(statement, parameters, prepare=False, binary=True).fetchall()

    def _change(self, statement: str, parameters: Sequence[Any]) -> int:
        with self._cursor() as cursor:
            return cursor.execute(statement, parameters, prepare=False).rowcount

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[psycopg.Cursor[tuple[Any, ...]]]:
        try:
            connection = healthy_connection(self.alias)
            connection.validate_no_broken_transaction()
            with psycopg.Cursor[tuple[Any, ...]](connection.connection) as cursor:
                yield cursor
        except sqlstates.DATABASE_ERRORS as error:
            discard_if_lost(connections[self.alias])
            if sqlstates.is_unavailable(error):
                raise StoreUnavailable(f"the snapshots in database {self.alias!r} are unavailable: {error}") from error
            raise


def _snapshot_of(row: tuple[Any, ...]) -> Snapshot:
    id, type_name, version, fingerprint, payload, created_at = row
    return Snapshot(id, type_name, version, fingerprint, payload, created_at.astimezone(UTC))
