"""Making copies of tables, without rows, in another schema under the same names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from enode_django.databases import execute
from enode_django.rebuilding.definitions import (
    Column,
    Constraint,
    Grant,
    Index,
    OwnSequence,
    Table,
    quoted,
    search_path,
)

_LIKE = "DEFAULTS IDENTITY GENERATED STORAGE COMPRESSION COMMENTS"
_REPLICA_IDENTITIES = {"f": "FULL", "n": "NOTHING"}
_REVOKE = """
    DO $make$ DECLARE other record; BEGIN
        FOR other IN SELECT DISTINCT grantee FROM pg_class, aclexplode(relacl)
            WHERE pg_class.oid = {name}::regclass AND grantee <> relowner
        LOOP
            EXECUTE format('REVOKE ALL ON {kind} %s FROM %s', {name},
                CASE other.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(other.grantee)) END);
        END LOOP;
    END $make$
"""


def make_tables(alias: str, schema: str, tables: Mapping[str, Table]) -> None:
    """Make the tables, with owners and grants, in an existing schema. For use in a transaction."""
    run(alias, statements(schema, tables.values()))


def run(alias: str, made_of: Iterable[str]) -> None:
    """Execute statements whose names are all qualified by a schema. For use in a transaction."""
    with search_path(alias, ""):
        for statement in made_of:
            execute(alias, statement, None)


def statements(schema: str, tables: Iterable[Table]) -> Iterator[str]:
    """Yield the statements that make the tables. Foreign keys come after all tables, since these may refer to each
    other. Pure."""
    known = list(tables)
    for table in known:
        yield from _bare(schema, table)
    for table in known:
        yield from _constraints(schema, table)
    by_oid = {table.oid: table for table in known}
    for table in known:
        for constraint in table.constraints:
            if constraint.kind == "f":
                yield from foreign_key(schema, table, constraint, by_oid)
    for table in known:
        yield from _rights(schema, table)


def _bare(schema: str, table: Table) -> Iterator[str]:
    name = quoted(schema, table.name)
    unlogged = "UNLOGGED " if table.persistence == "u" else ""
    including = " ".join(f"INCLUDING {what}" for what in _LIKE.split())
    method = f" USING {quoted(table.access_method)}" if table.access_method else ""
    options = f" WITH ({', '.join(table.options)})" if table.options else ""
    place = f" TABLESPACE {quoted(table.tablespace)}" if table.tablespace else ""
    like = f"(LIKE {quoted(table.schema, table.name)} {including})"
    yield f"CREATE {unlogged}TABLE {name} {like}{method}{options}{place}"
    yield from _comment("TABLE", name, table.comment)
    for column in table.columns:
        yield from _column(name, column)
    for sequence in table.sequences:
        yield from _sequence(schema, table, sequence)


def _column(table: str, column: Column) -> Iterator[str]:
    """Yield the statements for properties of a column that LIKE does not copy."""
    if column.statistics >= 0:
        yield f"ALTER TABLE {table} ALTER {quoted(column.name)} SET STATISTICS {column.statistics}"
    if column.options:
        yield f"ALTER TABLE {table} ALTER {quoted(column.name)} SET ({', '.join(column.options)})"


def _sequence(schema: str, table: Table, sequence: OwnSequence) -> Iterator[str]:
    """Yield the statements for a column's sequence. An identity column has got one, under a name that PostgreSQL chose;
    a serial column still uses the original table's, and gets its own."""
    name, column = quoted(schema, sequence.name), quoted(sequence.column)
    made = f"{literal(quoted(schema, table.name))}, {literal(sequence.column)}"
    if sequence.identity:
        yield f"""
            DO $make$ DECLARE made text = pg_get_serial_sequence({made}); BEGIN
                IF made::regclass::oid <> coalesce(to_regclass({literal(name)})::oid, 0) THEN
                    EXECUTE format('ALTER SEQUENCE %s RENAME TO %I', made, {literal(sequence.name)});
                END IF;
            END $make$
        """
        yield f"ALTER SEQUENCE {name} {sequence.options}"
    else:
        yield f"CREATE SEQUENCE {name} {sequence.options} OWNED BY {quoted(schema, table.name)}.{column}"
        yield f"ALTER TABLE {quoted(schema, table.name)} ALTER {column} SET DEFAULT nextval({literal(name)}::regclass)"
    yield from _comment("SEQUENCE", name, sequence.comment)


def foreign_key(
    schema: str, table: Table, constraint: Constraint, known: Mapping[int, Table], suffix: str = ""
) -> Iterator[str]:
    """Yield the statements that add a foreign key, with ``suffix`` after its definition. ``known`` has the tables that
    are copied to the schema, by oid. Pure."""
    definition = constraint.definition
    if constraint.references in known:  # the copy refers to a copy
        into = quoted(schema, known[constraint.references].name)
        definition = definition.replace(f" REFERENCES {constraint.referenced}(", f" REFERENCES {into}(", 1)
    yield from _constraint(quoted(schema, table.name), constraint, f"{definition}{suffix}")


def _constraint(table: str, constraint: Constraint, definition: str) -> Iterator[str]:
    yield f"ALTER TABLE {table} ADD CONSTRAINT {quoted(constraint.name)} {definition}"
    yield from _comment("CONSTRAINT", f"{quoted(constraint.name)} ON {table}", constraint.comment)


def _constraints(schema: str, table: Table) -> Iterator[str]:
    """Yield the statements for constraints, indexes and statistics, without foreign keys. LIKE has copied NOT NULL."""
    name = quoted(schema, table.name)
    for constraint in table.constraints:
        if constraint.kind not in "fn":
            yield from _constraint(name, constraint, constraint.definition)
    for one in table.indexes:
        yield from index(schema, table, one)
    for statistics in table.statistics:
        yield f"CREATE STATISTICS {quoted(schema, statistics.name)} {statistics.what} FROM {name}"
        if statistics.target >= 0:
            yield f"ALTER STATISTICS {quoted(schema, statistics.name)} SET STATISTICS {statistics.target}"
    if table.replica_identity in _REPLICA_IDENTITIES:
        yield f"ALTER TABLE {name} REPLICA IDENTITY {_REPLICA_IDENTITIES[table.replica_identity]}"


def index(schema: str, table: Table, index: Index) -> Iterator[str]:
    """Yield the statements that make an index, or complete the index of a constraint. Pure."""
    name, on = quoted(schema, index.name), quoted(schema, table.name)
    if index.using:
        unique = "UNIQUE " if index.is_unique else ""
        yield f"CREATE {unique}INDEX {quoted(index.name)} ON {on} {index.using}"
    elif index.options:
        yield f"ALTER INDEX {name} SET ({', '.join(index.options)})"
    if index.tablespace:
        yield f"ALTER INDEX {name} SET TABLESPACE {quoted(index.tablespace)}"
    if index.is_clustered:
        yield f"ALTER TABLE {on} CLUSTER ON {quoted(index.name)}"
    yield from _comment("INDEX", name, index.comment)


def _rights(schema: str, table: Table) -> Iterator[str]:
    """Yield the statements for owner and grants. The owner comes first, since the grants are the owner's; what default
    privileges have granted is revoked."""
    name, owner = quoted(schema, table.name), quoted(table.owner)
    yield f"GRANT USAGE, CREATE ON SCHEMA {quoted(schema)} TO {owner}"
    yield f"ALTER TABLE {name} OWNER TO {owner}"
    yield _REVOKE.format(kind="TABLE", name=literal(name))
    for grant in table.grants:
        yield _grant(grant, f"TABLE {name}")
    for sequence in table.sequences:
        on = quoted(schema, sequence.name)
        yield _REVOKE.format(kind="SEQUENCE", name=literal(on))
        for grant in sequence.grants:
            yield _grant(grant, f"SEQUENCE {on}")


def _comment(kind: str, name: str, comment: str | None) -> Iterator[str]:
    if comment is not None:
        yield f"COMMENT ON {kind} {name} IS {literal(comment)}"


def _grant(grant: Grant, on: str) -> str:
    column = f" ({grant.column})" if grant.column else ""
    option = " WITH GRANT OPTION" if grant.with_option else ""
    return f"GRANT {grant.privilege}{column} ON {on} TO {grant.grantee}{option}"


def literal(text: str) -> str:
    """Return the text as a PostgreSQL literal that is valid for every value of ``standard_conforming_strings``.

    >>> print(literal("it's"), literal("a\\\\b"))
    'it''s' E'a\\\\b'
    """
    escaped = text.replace("'", "''")
    return f"E'{escaped.replace(chr(92), chr(92) * 2)}'" if chr(92) in text else f"'{escaped}'"
