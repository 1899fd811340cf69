"""What a table is like, read from PostgreSQL's catalogue, so that another one like it can be made under its own names.

``CREATE TABLE … (LIKE … INCLUDING ALL)`` gives indexes and constraints other names than those that a migration will
look for. So columns are taken over with LIKE, and everything that has a name is made from its definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from enode_django.databases import execute

_TABLE = """
    SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relreplident::text, c.relispartition,
           coalesce(c.reloptions, '{}')::text[], pg_get_userbyid(c.relowner), obj_description(c.oid, 'pg_class')
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_COLUMNS = """
    SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity::text,
           a.attgenerated::text, coalesce(pg_get_expr(d.adbin, d.adrelid), '')
    FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
# Not-null constraints come along with the columns.
_CONSTRAINTS = """
    SELECT conname::text, pg_get_constraintdef(oid), confrelid FROM pg_constraint
    WHERE conrelid = %s AND contype IN ('p', 'u', 'x', 'c', 'f') ORDER BY contype = 'f', contype <> 'p', conname
"""
_INDEXES = """
    SELECT c.relname::text, pg_get_indexdef(i.indexrelid),
           format('CREATE %%sINDEX %%I ON %%I.%%I ', CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END, c.relname,
                  n.nspname, t.relname)
    FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
    JOIN pg_class AS t ON t.oid = i.indrelid JOIN pg_namespace AS n ON n.oid = t.relnamespace
    WHERE i.indrelid = %s AND i.indisvalid
      AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = i.indexrelid AND contype IN ('p', 'u', 'x'))
    ORDER BY c.relname
"""
_GRANTS = """
    SELECT '', privilege_type, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END,
           is_grantable
    FROM pg_class, aclexplode(relacl) WHERE oid = %s AND grantee <> relowner
    UNION ALL
    SELECT quote_ident(attname), privilege_type,
           CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END, is_grantable
    FROM pg_attribute, aclexplode(attacl) WHERE attrelid = %s AND NOT attisdropped
    ORDER BY 1, 2, 3
"""
_SEQUENCES = """
    SELECT a.attname::text, s.relname::text, s.oid, a.attidentity::text
    FROM pg_depend AS d JOIN pg_class AS s ON s.oid = d.objid AND s.relkind = 'S'
    JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (d.refobjid, d.refobjsubid)
    WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %s
      AND d.deptype IN ('a', 'i') ORDER BY s.relname
"""


class Column(NamedTuple):
    """``identity``, ``generated``: PostgreSQL's letters, empty for neither."""

    name: str
    type: str
    not_null: bool
    identity: str
    generated: str
    default: str


class Constraint(NamedTuple):
    """``references`` is the oid of the table that a foreign key points to, else 0."""

    name: str
    definition: str
    references: int


class Index(NamedTuple):
    """``using`` is the rest of its definition, from USING on."""

    name: str
    is_unique: bool
    using: str


class Grant(NamedTuple):
    """Of the table, or with ``column`` (quoted) of that column; ``grantee`` is quoted."""

    column: str
    privilege: str
    grantee: str
    with_option: bool


class OwnSequence(NamedTuple):
    """Of an identity or serial column."""

    column: str
    name: str
    oid: int
    identity: str
    grants: Sequence[Grant]


class Table(NamedTuple):
    """``schema`` and ``name`` are not quoted; ``kind``, ``persistence`` and ``replica_identity`` are PostgreSQL's
    letters."""

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    replica_identity: str
    is_partition: bool
    options: Sequence[str]
    owner: str
    comment: str | None
    columns: Sequence[Column]
    constraints: Sequence[Constraint]
    indexes: Sequence[Index]
    grants: Sequence[Grant]
    sequences: Sequence[OwnSequence]

    @property
    def shape(self) -> Mapping[str, Any]:
        """What two tables have in common that can take each other's place, as JSON knows it."""
        return {
            "columns": [list(column[:5]) for column in self.columns],
            "constraints": sorted(constraint.name for constraint in self.constraints),
            "indexes": sorted(index.name for index in self.indexes),
        }


def describe(alias: str, names: Iterable[str]) -> dict[str, Table]:
    """By the names that were given, as Django's tables have them; one that does not exist is left out.

    To be called in a transaction whose ``search_path`` finds them; definitions name the schemas of everything.
    """
    rows = {name: execute(alias, _TABLE, (quoted(name),)).fetchone() for name in names}
    with search_path(alias, ""):
        return {name: _described(alias, row) for name, row in rows.items() if row is not None}


def _described(alias: str, row: Sequence[Any]) -> Table:
    oid = row[0]
    rest = (
        [Column(*found) for found in _fetch(alias, _COLUMNS, oid)],
        [Constraint(*found) for found in _fetch(alias, _CONSTRAINTS, oid)],
        [_index(*found) for found in _fetch(alias, _INDEXES, oid)],
        _grants(alias, oid),
        [OwnSequence._make((*found, _grants(alias, found[2]))) for found in _fetch(alias, _SEQUENCES, oid)],
    )
    return Table._make((*row, *rest))


def _index(name: str, definition: str, beginning: str) -> Index:
    if not definition.startswith(beginning):
        raise AssertionError(f"PostgreSQL writes an index in a way that is not known: {definition!r}")
    return Index(name, definition.startswith("CREATE UNIQUE "), definition.removeprefix(beginning))


def _grants(alias: str, oid: int) -> Sequence[Grant]:
    return [Grant(*found) for found in execute(alias, _GRANTS, (oid, oid)).fetchall()]


def _fetch(alias: str, statement: str, oid: int) -> list[Any]:
    return execute(alias, statement, (oid,)).fetchall()


def quoted(*names: str) -> str:
    """As PostgreSQL takes an identifier, joined by points.

    >>> quoted("public", 'a "table"')
    '"public"."a ""table\"""'
    """
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


@contextmanager
def search_path(alias: str, path: str) -> Iterator[None]:
    """In the block unqualified names mean what lies in these schemas (quoted, separated by commas). To be used in a
    transaction; if it raises, whoever catches that has to roll back."""
    (before,) = execute(alias, "SELECT current_setting('search_path')", ()).fetchone() or ("",)
    execute(alias, _SET_PATH, (path,))
    yield
    execute(alias, _SET_PATH, (before,))


_SET_PATH = "SELECT set_config('search_path', %s, true)"
