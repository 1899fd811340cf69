"""Definitions of tables, read from PostgreSQL's catalogue, to make copies of them with the same names.

``CREATE TABLE … (LIKE … INCLUDING ALL)`` gives indexes and constraints other names than migrations expect. So LIKE only
copies the columns, and everything that has a name is made from its definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from enode_django.databases import execute

_TABLES = """
    SELECT given.name, c.oid, n.nspname, quote_ident(n.nspname) || '.', c.relname, c.relkind::text,
           c.relpersistence::text, c.relreplident::text, c.relispartition,
           coalesce(c.reloptions, '{}')::text[] || ARRAY(
               SELECT 'toast.' || option FROM pg_class AS toast, unnest(toast.reloptions) AS option
               WHERE toast.oid = c.reltoastrelid),
           pg_get_userbyid(c.relowner), e.description, coalesce(a.amname::text, ''),
           coalesce(s.spcname::text, '')
    FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS given (name, quoted, place)
    JOIN pg_class AS c ON c.oid = to_regclass(given.quoted) JOIN pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_am AS a ON a.oid = c.relam LEFT JOIN pg_tablespace AS s ON s.oid = c.reltablespace
    LEFT JOIN pg_description AS e ON (e.objoid, e.classoid, e.objsubid) = (c.oid, 'pg_class'::regclass, 0)
    ORDER BY given.place
"""
_COLUMNS = """
    SELECT json_build_array(
        a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated,
        coalesce(pg_get_expr(d.adbin, d.adrelid), ''),
        CASE a.attcollation WHEN 0 THEN '' ELSE a.attcollation::regcollation::text END,
        a.attstorage::text || a.attcompression::text, coalesce(a.attstattarget, -1), coalesce(a.attoptions, '{}'))
    FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
    WHERE a.attrelid = given.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_CONSTRAINTS = """
    SELECT json_build_array(
        conname, contype, pg_get_constraintdef(c.oid), confrelid::bigint,
        CASE confrelid WHEN 0 THEN '' ELSE confrelid::regclass::text END, e.description)
    FROM pg_constraint AS c
    LEFT JOIN pg_description AS e ON (e.objoid, e.classoid, e.objsubid) = (c.oid, 'pg_constraint'::regclass, 0)
    WHERE conrelid = given.oid AND contype IN ('p', 'u', 'x', 'c', 'f', 'n')
    ORDER BY contype = 'f', contype <> 'p', conname
"""
_INDEXES = """
    SELECT json_build_array(
        c.relname, CASE WHEN k.oid IS NULL THEN pg_get_indexdef(i.indexrelid) ELSE '' END,
        format('CREATE %%sINDEX %%I ON %%I.%%I ', CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END, c.relname,
               n.nspname, t.relname),
        coalesce(c.reloptions, '{}'), coalesce(s.spcname, ''), i.indisclustered, e.description)
    FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
    JOIN pg_class AS t ON t.oid = i.indrelid JOIN pg_namespace AS n ON n.oid = t.relnamespace
    LEFT JOIN pg_tablespace AS s ON s.oid = c.reltablespace
    LEFT JOIN pg_constraint AS k
      ON (k.conrelid, k.conindid) = (i.indrelid, i.indexrelid) AND k.contype IN ('p', 'u', 'x')
    LEFT JOIN pg_description AS e ON (e.objoid, e.classoid, e.objsubid) = (c.oid, 'pg_class'::regclass, 0)
    WHERE i.indrelid = given.oid AND i.indisvalid ORDER BY c.relname
"""
_STATISTICS = """
    SELECT json_build_array(
        s.stxname, pg_get_statisticsobjdef(s.oid), format('CREATE STATISTICS %%I.%%I ', n.nspname, s.stxname),
        format(' FROM %%s', s.stxrelid::regclass), coalesce(s.stxstattarget, -1))
    FROM pg_statistic_ext AS s JOIN pg_namespace AS n ON n.oid = s.stxnamespace
    WHERE s.stxrelid = given.oid ORDER BY s.stxname
"""
_GRANTS = """
    SELECT json_build_array(on_column, privilege, grantee, bool_or(is_grantable))
    FROM (
        SELECT on_column, (acl).privilege_type, (acl).is_grantable,
               CASE (acl).grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid((acl).grantee)) END
        FROM (
            SELECT '', acl FROM pg_class, aclexplode(relacl) AS acl WHERE oid = {0} AND acl.grantee <> relowner
            UNION ALL
            SELECT quote_ident(attname), acl FROM pg_attribute, aclexplode(attacl) AS acl
            WHERE attrelid = {0} AND NOT attisdropped
        ) AS exploded (on_column, acl)
    ) AS granted (on_column, privilege, is_grantable, grantee)
    GROUP BY on_column, privilege, grantee ORDER BY on_column, privilege, grantee
"""
_SEQUENCES = f"""
    SELECT json_build_array(
        a.attname, s.relname, s.oid::bigint, a.attidentity, e.description,
        format('AS %%s INCREMENT BY %%s MINVALUE %%s MAXVALUE %%s START WITH %%s CACHE %%s %%s',
               format_type(q.seqtypid, NULL), q.seqincrement, q.seqmin, q.seqmax, q.seqstart, q.seqcache,
               CASE WHEN q.seqcycle THEN 'CYCLE' ELSE 'NO CYCLE' END),
        ARRAY({_GRANTS.format("s.oid")}))
    FROM pg_depend AS d JOIN pg_class AS s ON s.oid = d.objid AND s.relkind = 'S'
    JOIN pg_sequence AS q ON q.seqrelid = s.oid
    JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (d.refobjid, d.refobjsubid)
    LEFT JOIN pg_description AS e ON (e.objoid, e.classoid, e.objsubid) = (s.oid, 'pg_class'::regclass, 0)
    WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = given.oid
      AND d.deptype IN ('a', 'i') ORDER BY s.relname
"""
_PARTS = f"""
    SELECT to_json(ARRAY({_COLUMNS})), to_json(ARRAY({_CONSTRAINTS})), to_json(ARRAY({_INDEXES})),
           to_json(ARRAY({_STATISTICS})), to_json(ARRAY({_GRANTS.format("given.oid")})), to_json(ARRAY({_SEQUENCES}))
    FROM unnest(%s::oid[]) WITH ORDINALITY AS given (oid, place) ORDER BY given.place
"""


class Column(NamedTuple):
    """``identity``, ``generated`` and ``storage`` are PostgreSQL's letters. ``collation`` is quoted; ``statistics`` is
    -1 if it was not set."""

    name: str
    type: str
    not_null: bool
    identity: str
    generated: str
    default: str
    collation: str
    storage: str
    statistics: int
    options: Sequence[str]


class Constraint(NamedTuple):
    """``kind`` is PostgreSQL's letter. ``references`` is the oid of the table that a foreign key refers to, otherwise
    0; ``referenced`` is its quoted name."""

    name: str
    kind: str
    definition: str
    references: int
    referenced: str
    comment: str | None


class Index(NamedTuple):
    """``using`` is the definition from USING on; empty for the index of a constraint."""

    name: str
    is_unique: bool
    using: str
    options: Sequence[str]
    tablespace: str
    is_clustered: bool
    comment: str | None


class Statistics(NamedTuple):
    """``what`` is the definition without names."""

    name: str
    what: str
    target: int


class Grant(NamedTuple):
    """A grant on the table, or with ``column`` (quoted) on that column; ``grantee`` is quoted."""

    column: str
    privilege: str
    grantee: str
    with_option: bool


class OwnSequence(NamedTuple):
    """A sequence of an identity or serial column."""

    column: str
    name: str
    oid: int
    identity: str
    comment: str | None
    options: str
    grants: Sequence[Grant]


class Table(NamedTuple):
    """``schema`` and ``name`` are not quoted; ``prefix`` is the schema as it stands in definitions, with the dot.
    ``kind``, ``persistence`` and ``replica_identity`` are PostgreSQL's letters."""

    oid: int
    schema: str
    prefix: str
    name: str
    kind: str
    persistence: str
    replica_identity: str
    is_partition: bool
    options: Sequence[str]
    owner: str
    comment: str | None
    access_method: str
    tablespace: str
    columns: Sequence[Column]
    constraints: Sequence[Constraint]
    indexes: Sequence[Index]
    statistics: Sequence[Statistics]
    grants: Sequence[Grant]
    sequences: Sequence[OwnSequence]

    @property
    def shape(self) -> Mapping[str, Any]:
        """A short description of the table, as a JSON value."""
        return {
            "columns": [list(column[:5]) for column in self.columns],
            "constraints": sorted(constraint.name for constraint in self.constraints),
            "indexes": sorted(index.name for index in self.indexes),
        }

    def differences(self, other: Table) -> list[str]:
        """Return the names of the fields in which the tables differ, apart from their schemas. Pure."""
        one, two = self._likeness(self.prefix), other._likeness(self.prefix)
        return [name for name in one if one[name] != two[name]]

    def _likeness(self, prefix: str) -> dict[str, Any]:
        """Return the fields of the table as they would be in the schema of ``prefix``, without oids."""
        alike = self._replace(
            constraints=[constraint._replace(references=0) for constraint in self.constraints],
            sequences=[sequence._replace(oid=0) for sequence in self.sequences],
        )
        return {
            name: _renamed(value, self.prefix, prefix)
            for name, value in alike._asdict().items()
            if name not in ("oid", "schema", "prefix")
        }


def _renamed(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return value.replace(old, new)
    return [_renamed(one, old, new) for one in value] if isinstance(value, list | tuple) else value


def describe(alias: str, names: Iterable[str]) -> dict[str, Table]:
    """Return tables by the names given, which are Django's; a table that does not exist is left out.

    For use in a transaction whose ``search_path`` has the tables. All names in definitions are qualified by a schema.
    """
    given = list(names)
    rows = execute(alias, _TABLES, (given, list(map(quoted, given)))).fetchall()
    with search_path(alias, ""):
        parts = execute(alias, _PARTS, ([oid for _, oid, *_ in rows],)).fetchall()
    return {name: Table._make((*row, *_made(*each))) for (name, *row), each in zip(rows, parts, strict=True)}


def _made(columns: Any, constraints: Any, indexes: Any, statistics: Any, grants: Any, sequences: Any) -> Iterator[Any]:
    """Yield the last fields of a table, made of JSON values."""
    yield [Column(*found) for found in columns]
    yield [Constraint(*found) for found in constraints]
    yield [_index(*found) for found in indexes]
    yield [_statistics(*found) for found in statistics]
    yield [Grant(*found) for found in grants]
    yield [OwnSequence._make((*found, [Grant(*each) for each in granted])) for *found, granted in sequences]


def _index(name: str, definition: str, beginning: str, *rest: Any) -> Index:
    using = _between(beginning, definition, "") if definition else ""
    return Index(name, beginning.startswith("CREATE UNIQUE "), using, *rest)


def _statistics(name: str, definition: str, beginning: str, end: str, target: int) -> Statistics:
    return Statistics(name, _between(beginning, definition, end), target)


def _between(beginning: str, definition: str, end: str) -> str:
    if not (definition.startswith(beginning) and definition.endswith(end)):
        raise AssertionError(f"PostgreSQL writes this in a way that is not known: {definition!r}")
    return definition.removeprefix(beginning).removesuffix(end)


def quoted(*names: str) -> str:
    """Return names as a quoted PostgreSQL identifier, joined by dots.

    >>> quoted("public", 'a "table"')
    '"public"."a ""table\"""'
    """
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


@contextmanager
def search_path(alias: str, path: str) -> Iterator[None]:
    """Resolve unqualified names in these schemas (quoted, separated by commas) inside the block. For use in a
    transaction, which must be rolled back if the block raises."""
    ((before, _),) = execute(alias, _SET_PATH, (path,)).fetchall()
    yield
    execute(alias, _SET_PATH, (before,))


_SET_PATH = """
    WITH path AS MATERIALIZED (SELECT current_setting('search_path') AS before)
    SELECT before, set_config('search_path', %s, true) FROM path
"""
