"""Obstacles to the rebuild of a table: other objects that would keep using the old table, or would be lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from enode_django.databases import execute
from enode_django.rebuilding.definitions import Table

_KINDS = {"p": "it is partitioned", "v": "it is a view", "m": "it is a materialized view", "f": "it is a foreign table"}

# Each is asked for all tables at once, `given` by their oids.
_FOREIGN_KEYS = """
    SELECT format('the foreign key %%I of %%s points to it; write db_constraint=False in the field, and migrate',
                  conname, conrelid::regclass)
    FROM pg_constraint WHERE contype = 'f' AND confrelid = given.oid AND NOT conrelid = ANY(%s)
"""
_TRIGGERS = """
    SELECT format('it has the trigger %%I', tgname) FROM pg_trigger WHERE tgrelid = given.oid AND NOT tgisinternal
"""
_RULES = """
    SELECT format('it has the rule %%I', rulename) FROM pg_rewrite WHERE ev_class = given.oid
    UNION ALL SELECT 'it has row level security' FROM pg_class
        WHERE oid = given.oid AND (relrowsecurity OR relforcerowsecurity)
    UNION ALL SELECT format('it has the policy %%I', polname) FROM pg_policy WHERE polrelid = given.oid
    UNION ALL SELECT 'other tables inherit from it, or it from another' FROM pg_inherits
        WHERE inhrelid = given.oid OR inhparent = given.oid
"""
_PUBLICATIONS = """
    SELECT format('the publication %%I has it', p.pubname) FROM pg_publication AS p
    WHERE p.puballtables OR EXISTS (SELECT FROM pg_publication_tables AS t
        JOIN pg_class AS c ON c.relname = t.tablename JOIN pg_namespace AS n
        ON n.oid = c.relnamespace AND n.nspname = t.schemaname WHERE t.pubname = p.pubname AND c.oid = given.oid)
"""
_VIEWS = """
    SELECT DISTINCT format('the view %%s reads from it', r.ev_class::regclass)
    FROM pg_depend AS d JOIN pg_rewrite AS r ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
    WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = given.oid AND r.ev_class <> d.refobjid
"""
_DEPENDENTS = """
    SELECT DISTINCT format('%%s depends on it', pg_describe_object(d.classid, d.objid, d.objsubid)) FROM pg_depend AS d
    WHERE d.deptype = 'n' AND d.classid <> 'pg_rewrite'::regclass
      AND ((d.refclassid = 'pg_class'::regclass AND d.refobjid = given.oid AND d.classid = 'pg_proc'::regclass)
        OR (d.refclassid = 'pg_type'::regclass AND d.refobjid IN (
            SELECT unnest(ARRAY[t.oid, t.typarray]) FROM pg_type AS t JOIN pg_class AS c ON c.reltype = t.oid
            WHERE c.oid = given.oid)))
"""
# Its sequences go with the table, and are dropped with it.
_SEQUENCES = """
    SELECT DISTINCT format('%%s depends on its sequence %%s', pg_describe_object(d.classid, d.objid, d.objsubid),
                           own.objid::regclass)
    FROM pg_depend AS own JOIN pg_class AS s ON s.oid = own.objid AND s.relkind = 'S'
    JOIN pg_depend AS d ON (d.refclassid, d.refobjid) = (own.classid, own.objid)
    LEFT JOIN pg_attrdef AS a ON d.classid = 'pg_attrdef'::regclass AND a.oid = d.objid
    WHERE own.classid = 'pg_class'::regclass AND own.refclassid = 'pg_class'::regclass AND own.refobjid = given.oid
      AND own.deptype IN ('a', 'i') AND d.deptype = 'n'
      AND (a.adrelid, a.adnum) IS DISTINCT FROM (own.refobjid, own.refobjsubid)
"""
_MARKS = """
    SELECT format('it belongs to the extension %%I', extname) FROM pg_depend AS d JOIN pg_extension AS e
        ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
        WHERE d.classid = 'pg_class'::regclass AND d.objid = given.oid AND d.deptype = 'e'
    UNION ALL SELECT format('it has a security label of %%s', provider) FROM pg_seclabel
        WHERE classoid = 'pg_class'::regclass AND objoid = given.oid
    UNION ALL SELECT format('it is a table of the type %%s', reloftype::regtype) FROM pg_class
        WHERE oid = given.oid AND reloftype <> 0
"""
# A rebuild searches the shadow's schema only. Operators of such a type would not be found, or others would be used
# instead: text's for citext's.
_TYPES = """
    SELECT format('its column %%I has the type %%s, whose operators lie in the schema %%s and would not be found',
                  attname, format_type(atttypid, NULL), typnamespace::regnamespace)
    FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
    WHERE attrelid = given.oid AND attnum > 0 AND NOT attisdropped AND typnamespace <> 'pg_catalog'::regnamespace
"""
_RIGHTS = """
    SELECT format('%%I is not its owner, %%I', current_user, pg_get_userbyid(relowner)) FROM pg_class
    WHERE oid = given.oid AND NOT pg_has_role(relowner, 'USAGE')
    UNION ALL
    SELECT format('%%I may not put tables into its schema: GRANT CREATE ON SCHEMA %%s TO %%1$I', current_user,
                  relnamespace::regnamespace)
    FROM pg_class WHERE oid = given.oid AND NOT has_schema_privilege(relnamespace, 'CREATE')
"""
_MAY_MAKE_SCHEMAS = """
    SELECT has_database_privilege(current_database(), 'CREATE'), quote_ident(current_user),
           quote_ident(current_database())
"""
_EACH = """
    SELECT given.oid, found.reason FROM unnest(%s::oid[]) AS given (oid) CROSS JOIN LATERAL ({}) AS found (reason)
"""

_QUESTIONS = (_FOREIGN_KEYS, _TRIGGERS, _RULES, _PUBLICATIONS, _VIEWS, _DEPENDENTS, _SEQUENCES, _MARKS, _TYPES, _RIGHTS)


def obstacles(alias: str, names: Sequence[str], tables: Mapping[str, Table]) -> Iterator[str]:
    """Yield a text for each obstacle to a rebuild of the tables ``names``, of which ``tables`` exist."""
    allowed, user, database = execute(alias, _MAY_MAKE_SCHEMAS, ()).fetchone() or (False, "", "")
    if not allowed:
        yield f"{user} may not make schemas in the database {database}: GRANT CREATE ON DATABASE {database} TO {user}"
    found = _answers(alias, tables.values())
    for name in names:
        if '"' in name:
            yield (
                f"{name}: its name is quoted in db_table; write it without quotes and schema, and put the schema into "
                "the connection's search_path"
            )
            continue
        if name not in tables:
            yield f"{name}: there is no such table; run manage.py migrate"
            continue
        table = tables[name]
        yield from (f"{name}: {reason}" for reason in (*_of_definition(table), *found[table.oid]))


def _answers(alias: str, tables: Collection[Table]) -> Mapping[int, Sequence[str]]:
    """Return the texts that the database answers, by the oids of tables."""
    oids, asked = [table.oid for table in tables], [table.oid for table in tables if table.kind == "r"]
    found = defaultdict[int, list[str]](list)
    for question in _QUESTIONS:
        parameters = (asked, oids) if question is _FOREIGN_KEYS else (asked,)
        for oid, reason in execute(alias, _EACH.format(question), parameters):
            found[oid].append(reason)
    return found


def _of_definition(table: Table) -> Iterator[str]:
    if table.kind != "r":
        yield _KINDS.get(table.kind, f"it is not a table (relkind {table.kind!r})")
        return
    if table.is_partition:
        yield "it is a partition of another"
    if table.persistence == "t":
        yield "it is temporary"
    if table.replica_identity == "i":
        yield "its replica identity is an index"
