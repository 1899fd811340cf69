"""Unique values in a table with a unique index, in the first database of the event store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.types.json import Jsonb

from enode_django.databases import in_transaction
from enode_django.eventstore.rows import connected, execute, run
from enode_django.eventstore.unique_values import (
    Change,
    Claim,
    Confirmed,
    Owner,
    UniqueKey,
    UniqueValue,
    without_rows,
)
from enode_django.exceptions import ConfigurationError

TABLE = "enode_django_uniquevalue"
_PAGE = 1_000

_ROW = """name, digest, aggregate_root_id, claims, releases, version,
    greatest(0, extract(epoch FROM statement_timestamp() - changed_at))::float8, id, revision"""
_KEYS = "unnest(%s::text[], %s::bytea[])"

# Sorted: all writers lock rows in the same order, so they do not deadlock. A row of another owner stays as it is.
_CLAIM = f"""
    INSERT INTO {TABLE} AS known (name, digest, aggregate_root_id, claims, releases, version, changed_at, revision)
    SELECT name, digest, aggregate_root_id, jsonb_build_object(command_id, command_type), '{{}}', 0,
        statement_timestamp(), 0
    FROM unnest(%s::text[], %s::bytea[], %s::text[], %s::text[], %s::text[])
        AS wanted (name, digest, aggregate_root_id, command_id, command_type)
    ORDER BY name, digest
    ON CONFLICT (name, digest) DO UPDATE SET claims = known.claims || EXCLUDED.claims,
        changed_at = EXCLUDED.changed_at, revision = known.revision + 1
    WHERE known.aggregate_root_id = EXCLUDED.aggregate_root_id
    RETURNING name, digest
"""
_RELEASE = f"""
    WITH given_up AS (
        SELECT known.id, wanted.version
        FROM unnest(%s::text[], %s::bytea[], %s::text[], %s::bigint[])
            AS wanted (name, digest, aggregate_root_id, version)
        JOIN {TABLE} AS known USING (name, digest, aggregate_root_id)
        ORDER BY name, digest FOR UPDATE OF known
    )
    UPDATE {TABLE} AS known SET releases = array_append(array_remove(releases, given_up.version), given_up.version),
        changed_at = statement_timestamp(), revision = revision + 1
    FROM given_up WHERE known.id = given_up.id
"""
_FIND = f"SELECT {_ROW} FROM {TABLE} WHERE (name, digest) IN (SELECT * FROM {_KEYS}) ORDER BY name, digest"
_NEWEST = "WHERE id = %s AND revision = %s"
_TAKE_OVER = f"""
    UPDATE {TABLE} SET aggregate_root_id = %s, claims = %s, releases = '{{}}', version = 0,
        changed_at = statement_timestamp(), revision = revision + 1 {_NEWEST}
"""
_KEEP = f"""
    UPDATE {TABLE} SET claims = '{{}}', releases = ARRAY(SELECT * FROM unnest(releases) AS one WHERE one > %s),
        version = %s, changed_at = statement_timestamp(), revision = revision + 1 {_NEWEST}
"""
_FREE = f"DELETE FROM {TABLE} {_NEWEST}"

_STORED = f"""
    WITH stored AS (
        SELECT * FROM unnest(%s::text[], %s::bytea[], %s::text[], %s::text[], %s::bigint[])
            AS sent (name, digest, aggregate_root_id, command_id, version)
    ), found AS (
        SELECT known.id, stored.command_id, stored.version
        FROM stored JOIN {TABLE} AS known USING (name, digest, aggregate_root_id)
        ORDER BY name, digest FOR UPDATE OF known
    )
"""
_CONFIRM_CLAIMS = f"""{_STORED}
    UPDATE {TABLE} AS known SET claims = known.claims - found.command_id, version = found.version,
        revision = known.revision + 1
    FROM found WHERE known.id = found.id AND known.claims ? found.command_id AND found.version >= known.version
"""
_CONFIRM_RELEASES = f"""{_STORED}, kept AS (
        UPDATE {TABLE} AS known SET releases = array_remove(known.releases, found.version),
            version = greatest(known.version, found.version), revision = known.revision + 1
        FROM found
        WHERE known.id = found.id AND found.version = ANY(known.releases)
            AND NOT (found.version > known.version AND known.claims = '{{}}')
    )
    DELETE FROM {TABLE} AS known USING found
    WHERE known.id = found.id AND found.version > known.version AND known.claims = '{{}}'
"""
_ADOPT = f"""
    INSERT INTO {TABLE} (name, digest, aggregate_root_id, claims, releases, version, changed_at, revision)
    SELECT name, digest, %s, '{{}}', '{{}}', %s, statement_timestamp(), 0
    FROM {_KEYS} AS held (name, digest) ORDER BY name, digest
    ON CONFLICT DO NOTHING
"""
_UNSETTLED = f"""
    SELECT {_ROW} FROM {TABLE} WHERE (claims <> '{{}}' OR releases <> '{{}}')
        AND changed_at <= statement_timestamp() - make_interval(secs => %s)
    ORDER BY changed_at, id LIMIT %s OFFSET %s
"""
_ROWS = f"SELECT {_ROW} FROM {TABLE} WHERE (name, digest) > (%s, %s) ORDER BY name, digest LIMIT {_PAGE}"


class PostgresUniqueValues:
    """Unique values in one database, over the calling thread's Django connection.

    For example::

        values = PostgresUniqueValues("default")
        key = UniqueKey("members.Member:nickname", b"digest of ada")
        assert not values.claim(Owner("member-1", 1, "command-1", "members.Join"), [key], [])
        (held,) = values.claim(Owner("member-2", 1, "command-2", "members.Join"), [key], [])
        assert held.aggregate_root_id == "member-1"
    """

    def __init__(self, alias: str = "default") -> None:
        self.alias = alias

    def claim(self, owner: Owner, claims: Sequence[UniqueKey], releases: Sequence[UniqueKey]) -> Sequence[UniqueValue]:
        return self.claim_all([Claim(owner, Change(claims, releases))])[0]

    def claim_all(self, claims: Sequence[Claim]) -> Sequence[Sequence[UniqueValue]]:
        wanted = {key: owner for owner, change in claims for key in change.claims}
        with connected(self.alias) as connection:
            for shard in {owner.shard for owner, _ in claims}:
                _check_transaction(connection, shard)
            others = {row.key: row for row in self._claim(connection, wanted)}
            # A refused command gives nothing up: that would have to be looked into again and again.
            releases = [
                (*key, owner.aggregate_root_id, owner.version)
                for owner, change in claims
                if others.keys().isdisjoint(change.claims)
                for key in change.releases
            ]
            if releases:
                run(connection, _RELEASE, _transposed(releases))
        return [[others[key] for key in change.claims if key in others] for _, change in claims]

    def _claim(self, connection: BaseDatabaseWrapper, wanted: Mapping[UniqueKey, Owner]) -> Sequence[UniqueValue]:
        """Claim what is free, and return the rows of others."""
        others: list[UniqueValue] = []
        left = [(*key, owner.aggregate_root_id, owner.command_id, owner.command_type) for key, owner in wanted.items()]
        while left:
            rows = execute(connection, _CLAIM, _transposed(left))
            done = {UniqueKey(*row) for row in rows}
            left = [one for one in left if UniqueKey(*one[:2]) not in done]
            if left:
                others += _read(connection, _FIND, _columns([UniqueKey(*one[:2]) for one in left]))
                found = {row.key for row in others}
                left = [one for one in left if UniqueKey(*one[:2]) not in found]  # a row was deleted in between
        return others

    def is_certain(self, shard: str) -> bool:
        if shard in ("", self.alias):
            return True
        connection = connections[shard]
        return connection.connection is None or not in_transaction(connection)

    def take_over(self, row: UniqueValue, owner: Owner) -> bool:
        mark = Jsonb({owner.command_id: owner.command_type})
        return self._run(_TAKE_OVER, (owner.aggregate_root_id, mark, *row.token))

    def keep(self, row: UniqueValue, version: int) -> bool:
        return self._run(_KEEP, (version, version, *row.token))

    def free(self, row: UniqueValue) -> bool:
        return self._run(_FREE, row.token)

    def confirm(self, confirmed: Sequence[Confirmed]) -> Sequence[Confirmed]:
        finds_all = True
        with connected(self.alias) as connection:
            for batch in _once_each(confirmed):
                claims = [(*key, *one[:3]) for one in batch for key in one.claims]
                releases = [(*key, *one[:3]) for one in batch for key in one.releases]
                if claims:
                    finds_all &= run(connection, _CONFIRM_CLAIMS, _transposed(sorted(claims))) == len(claims)
                if releases:
                    run(connection, _CONFIRM_RELEASES, _transposed(sorted(releases)))
            if finds_all:
                return []
            rows = _read(connection, _FIND, _columns([key for one in confirmed for key in one.claims]))
        return without_rows(confirmed, {row.key: row.aggregate_root_id for row in rows})

    def adopt(self, aggregate_root_id: str, version: int, keys: Sequence[UniqueKey]) -> Sequence[UniqueValue]:
        with connected(self.alias) as connection:
            run(connection, _ADOPT, (aggregate_root_id, version, *_columns(keys)))
            return _read(connection, _FIND, _columns(keys))

    def unsettled(self, age: float, *, skip: int = 0, limit: int = 100) -> Sequence[UniqueValue]:
        with connected(self.alias) as connection:
            return _read(connection, _UNSETTLED, (age, limit, skip))

    def rows(self) -> Iterator[UniqueValue]:
        last, page = UniqueKey("", b""), _PAGE
        while page == _PAGE:
            with connected(self.alias) as connection:
                found = _read(connection, _ROWS, last)
            yield from found
            page, last = len(found), found[-1].key if found else last

    def _run(self, statement: str, parameters: Sequence[object]) -> bool:
        with connected(self.alias) as connection:
            return run(connection, statement, parameters) == 1


def _read(connection: BaseDatabaseWrapper, statement: str, parameters: Sequence[object]) -> list[UniqueValue]:
    return [
        UniqueValue(UniqueKey(name, digest), id, claims, releases, version, age, (row, revision))
        for name, digest, id, claims, releases, version, age, row, revision in execute(
            connection, statement, parameters
        )
    ]


def _transposed(rows: Iterable[Sequence[object]]) -> tuple[list[object], ...]:
    return tuple(map(list, zip(*rows, strict=True)))


def _columns(keys: Sequence[UniqueKey]) -> tuple[list[str], list[bytes]]:
    return [key.name for key in keys], [key.digest for key in keys]


def _once_each(confirmed: Sequence[Confirmed]) -> Iterator[Sequence[Confirmed]]:
    """Divide into parts with at most one stream for each key, because a statement changes each row only once."""
    part: list[Confirmed] = []
    known: set[UniqueKey] = set()
    for one in confirmed:
        keys = {*one.claims, *one.releases}
        if keys & known:
            yield part
            part, known = [], set()
        part.append(one)
        known |= keys
    if part:
        yield part


def _check_transaction(connection: BaseDatabaseWrapper, shard: str) -> None:
    """Raise `ConfigurationError` if a rollback would undo the claim, but not the stream."""
    if shard and shard != connection.alias and in_transaction(connection) and not in_transaction(connections[shard]):
        raise ConfigurationError(
            f"a transaction is open in {connection.alias!r}, which has the unique values, but none in {shard!r}, which "
            "has the aggregate: a rollback would undo the claim and not its events; open one in both, the one in "
            f"{shard!r} first, or none"
        )
