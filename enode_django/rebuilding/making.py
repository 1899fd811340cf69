"""Making tables like others, in a schema of their own, under the same names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from enode_django.databases import execute
from enode_django.rebuilding.definitions import Grant, OwnSequence, Table, quoted, search_path

_LIKE = "DEFAULTS IDENTITY GENERATED STORAGE COMPRESSION COMMENTS STATISTICS"
_COMMENT = "COMMENT ON TABLE {} IS {}"


def make_tables(alias: str, schema: str, tables: Mapping[str, Table]) -> None:
    """In the schema, which exists; to be called in a transaction. They belong to the same owners, and everybody may do
    with them what they may with these."""
    with search_path(alias, ""):
        for statement in statements(schema, tables.values()):
            execute(alias, statement, None)


def statements(schema: str, tables: Iterable[Table]) -> Iterator[str]:
    """What makes the tables; foreign keys come last, since they may point to each other. Pure."""
    known = list(tables)
    for table in known:
        yield from _bare(schema, table)
    for table in known:
        yield from _constraints(schema, table, {one.oid: one for one in known})
    for table in known:
        yield from _rights(schema, table)


def _bare(schema: str, table: Table) -> Iterator[str]:
    name = quoted(schema, table.name)
    unlogged = "UNLOGGED " if table.persistence == "u" else ""
    including = " ".join(f"INCLUDING {what}" for what in _LIKE.split())
    options = f" WITH ({', '.join(table.options)})" if table.options else ""
    yield f"CREATE {unlogged}TABLE {name} (LIKE {quoted(table.schema, table.name)} {including}){options}"
    if table.comment is not None:
        yield _COMMENT.format(name, literal(table.comment))
    for sequence in table.sequences:
        yield from _sequence(schema, table, sequence)


def _sequence(schema: str, table: Table, sequence: OwnSequence) -> Iterator[str]:
    """An identity column brought one along, under a name of PostgreSQL's choice; a serial column shares that of the
    table it is like, and gets one of its own."""
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
        return
    yield f"CREATE SEQUENCE {name} OWNED BY {quoted(schema, table.name)}.{column}"
    yield f"ALTER TABLE {quoted(schema, table.name)} ALTER {column} SET DEFAULT nextval({literal(name)}::regclass)"


def _constraints(schema: str, table: Table, known: Mapping[int, Table]) -> Iterator[str]:
    name = quoted(schema, table.name)
    for constraint in table.constraints:
        definition = constraint.definition
        if constraint.references in known:
            definition = _pointing_into(schema, definition, known[constraint.references])
        yield f"ALTER TABLE {name} ADD CONSTRAINT {quoted(constraint.name)} {definition}"
    for index in table.indexes:
        unique = "UNIQUE " if index.is_unique else ""
        yield f"CREATE {unique}INDEX {quoted(index.name)} ON {name} {index.using}"
    if table.replica_identity == "f":
        yield f"ALTER TABLE {name} REPLICA IDENTITY FULL"


def _pointing_into(schema: str, definition: str, target: Table) -> str:
    """A foreign key between tables that are made together points to the one that is made."""
    beginning, _, rest = definition.partition(" REFERENCES ")
    _, _, columns = rest.partition("(")
    return f"{beginning} REFERENCES {quoted(schema, target.name)}({columns}"


def _rights(schema: str, table: Table) -> Iterator[str]:
    name = quoted(schema, table.name)
    for grant in table.grants:
        yield _grant(grant, f"TABLE {name}")
    for sequence in table.sequences:
        for grant in sequence.grants:
            yield _grant(grant, f"SEQUENCE {quoted(schema, sequence.name)}")
    yield f"ALTER TABLE {name} OWNER TO {quoted(table.owner)}"


def _grant(grant: Grant, on: str) -> str:
    column = f" ({grant.column})" if grant.column else ""
    option = " WITH GRANT OPTION" if grant.with_option else ""
    return f"GRANT {grant.privilege}{column} ON {on} TO {grant.grantee}{option}"


def literal(text: str) -> str:
    """As PostgreSQL takes a text, whatever ``standard_conforming_strings`` says.

    >>> print(literal("it's"), literal("a\\\\b"))
    'it''s' E'a\\\\\\\\b'
    """
    escaped = text.replace("'", "''")
    return f"E'{escaped.replace(chr(92), chr(92) * 2)}'" if chr(92) in text else f"'{escaped}'"
