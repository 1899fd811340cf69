"""Copies of tables are like the originals in everything, under the same names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection, transaction

from enode_django.rebuilding.definitions import Table, quoted
from enode_django.rebuilding.making import make_tables
from enode_django.rebuilding.swapping import move
from tests.rebuilding.tables import OTHER, STRANGE, asked, described, everything, role, sql

SCHEMA = 'Not "public"'
SHADOW = "enode_made_1"


@pytest.fixture
def tables(transactional_db: None) -> Iterator[dict[str, Table]]:
    """The definitions of the tables of `everything`. Their schemas are dropped at the end."""
    with role() as owner, role() as reader, role() as clerk:
        sql(f"CREATE SCHEMA {quoted(SCHEMA)}", f"CREATE SCHEMA {SHADOW}")
        try:
            everything(SCHEMA, owner, reader, clerk)
            yield described(STRANGE, OTHER, path=quoted(SCHEMA))
        finally:
            sql(f"DROP SCHEMA IF EXISTS {quoted(SCHEMA)}, {SHADOW} CASCADE", "DROP TABLE pointed_at CASCADE")


def make(tables: dict[str, Table]) -> dict[str, Table]:
    with transaction.atomic():
        make_tables("default", SHADOW, tables)
    return described(STRANGE, OTHER, path=SHADOW)


def test_a_made_table_is_like_the_other(tables: dict[str, Table]) -> None:
    assert set(tables) == {STRANGE, OTHER}
    for name, made in make(tables).items():
        assert made.schema == SHADOW
        assert made.oid != tables[name].oid
        assert tables[name].differences(made) == []


def test_what_is_described_is_what_was_made(tables: dict[str, Table]) -> None:
    """Otherwise a comparison of descriptions would prove nothing."""
    table = tables[STRANGE]
    assert {constraint.kind for constraint in table.constraints} >= {"p", "u", "x", "c", "f"}
    assert {index.name for index in table.indexes} >= {'an "odd" index %', "covering", "hashed", "The Key", "apart"}
    assert next(index for index in table.indexes if index.is_clustered).name == "covering"
    assert [statistics.target for statistics in table.statistics] == [300]
    assert len(table.sequences) == 2
    assert len(table.grants) == 6
    assert sum(grant.with_option for grant in table.grants) == 2
    assert (table.persistence, table.replica_identity) == ("u", "f")
    assert "toast.autovacuum_enabled=false" in table.options


def test_tables_that_are_made_together_point_to_each_other_and_others_stay_where_they_were(
    tables: dict[str, Table],
) -> None:
    make(tables)
    pointing = asked(
        "SELECT conname, confrelid::regclass::text FROM pg_constraint WHERE contype = 'f' "
        f"AND connamespace = '{SHADOW}'::regnamespace ORDER BY conname"
    )
    assert pointing == [
        ('be"side', f"{SHADOW}.{quoted(OTHER)}"),
        ("out", "pointed_at"),
        ("self", f"{SHADOW}.{quoted(STRANGE)}"),
    ]


def test_sequences_of_a_made_table_are_its_own(tables: dict[str, Table]) -> None:
    make(tables)
    where = quoted(SHADOW, STRANGE)
    sql(
        "INSERT INTO pointed_at VALUES (1), (4)",
        f"INSERT INTO {where} (\"percent % sign\") VALUES ('a')",
        f"INSERT INTO {where} (\"percent % sign\", parent) VALUES ('b', 10)",
    )
    assert asked(f'SELECT "Id", serial FROM {where} ORDER BY 1') == [(10, 1), (15, 4)]
    assert asked(f"SELECT count(*) FROM {quoted(SCHEMA, STRANGE)}") == [(0,)]
    sql(f"DROP TABLE {where}")
    assert described(STRANGE, OTHER, path=quoted(SCHEMA)) == tables


def test_tables_that_change_places_twice_are_as_they_were(tables: dict[str, Table]) -> None:
    made = make(tables)
    sql("CREATE SCHEMA enode_made_0")

    def exchange(outgoing: str, incoming: str) -> None:
        with transaction.atomic():
            for table in tables.values():
                move("default", table, SCHEMA, outgoing)
                move("default", table, incoming, SCHEMA)

    try:
        exchange("enode_made_0", SHADOW)
        swapped = described(STRANGE, OTHER, path=quoted(SCHEMA))
        assert {name: table.oid for name, table in swapped.items()} == {name: table.oid for name, table in made.items()}
        for name, table in tables.items():
            assert table.differences(swapped[name]) == []
        exchange(SHADOW, "enode_made_0")
        assert described(STRANGE, OTHER, path=quoted(SCHEMA)) == tables
        assert described(STRANGE, OTHER, path=SHADOW) == made
    finally:
        sql("DROP SCHEMA enode_made_0 CASCADE")


def test_default_privileges_do_not_give_a_made_table_more_than_the_other_has(tables: dict[str, Table]) -> None:
    with role() as intruder:
        sql(
            f"ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {quoted(intruder)}",
            f"ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO PUBLIC, {quoted(intruder)}",
        )
        try:
            made = make(tables)
        finally:
            sql(
                f"ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM {quoted(intruder)}",
                f"ALTER DEFAULT PRIVILEGES REVOKE ALL ON SEQUENCES FROM PUBLIC, {quoted(intruder)}",
            )
        for name, table in tables.items():
            assert table.differences(made[name]) == []


def test_a_role_that_is_no_superuser_makes_tables_for_the_owner_whose_member_it_is(tables: dict[str, Table]) -> None:
    owner = tables[STRANGE].owner
    with role() as member:
        sql(
            f"GRANT {quoted(owner)} TO {quoted(member)}",
            f"ALTER TABLE {quoted(SCHEMA, OTHER)} OWNER TO {quoted(owner)}",
            f"GRANT REFERENCES ON pointed_at TO {quoted(owner)}",
            f"GRANT USAGE, CREATE ON SCHEMA {quoted(SCHEMA)} TO {quoted(member)}",
            f"ALTER SCHEMA {SHADOW} OWNER TO {quoted(member)}",
        )
        changed = described(STRANGE, OTHER, path=quoted(SCHEMA))
        try:
            sql(f"SET ROLE {quoted(member)}")
            made = make(changed)
        finally:
            sql("RESET ROLE")
        for name, table in changed.items():
            assert table.differences(made[name]) == []


@pytest.mark.parametrize(
    ("field", "statement"),
    [
        ("columns", "ALTER TABLE {} ALTER code SET DEFAULT 'new'"),
        ("columns", "ALTER TABLE {} ADD added integer"),
        ("constraints", 'ALTER TABLE {} DROP CONSTRAINT "a % check", ADD CONSTRAINT "a % check" CHECK (amount > 2)'),
        ("indexes", "CREATE INDEX added ON {} (amount)"),
        ("grants", "REVOKE SELECT ON {} FROM PUBLIC"),
        ("options", "ALTER TABLE {} SET (fillfactor = 80)"),
        ("comment", "COMMENT ON TABLE {} IS 'other'"),
        ("replica_identity", "ALTER TABLE {} REPLICA IDENTITY DEFAULT"),
    ],
)
def test_what_was_altered_is_told(tables: dict[str, Table], field: str, statement: str) -> None:
    sql(statement.format(quoted(SCHEMA, STRANGE)))
    assert tables[STRANGE].differences(described(STRANGE, path=quoted(SCHEMA))[STRANGE]) == [field]
    assert connection.in_atomic_block is False
