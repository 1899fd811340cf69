"""The event store in a partitioned table, and the operation that makes one of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.core.management.color import no_style
from django.db import DatabaseError, IntegrityError, NotSupportedError, connection, connections, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.db.migrations.writer import MigrationWriter
from django.test import override_settings

from enode_django.admin import stream_list
from enode_django.checks.store import check_constraints
from enode_django.eventstore import dividing, statements
from enode_django.eventstore.base import EventStore, Outcome
from enode_django.eventstore.heads import heads_page
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.rows import by_index
from enode_django.history import tables
from enode_django.models import EventStream
from enode_django.monitoring.databases import ShardRow, ask_shard
from enode_django.operations import PartitionEventStream, ProtectHistory
from enode_django.testing.event_store_contract import EventStoreContract
from enode_django.testing.event_store_read_contract import history, outcomes, refusal, stream

TABLE = statements.TABLE
PARTITIONS = 4


@cache
def project_state() -> ProjectState:
    return MigrationLoader(connection).project_state()


def partition(forwards: bool = True, partitions: int = PARTITIONS) -> None:
    state, operation = project_state(), PartitionEventStream(partitions)
    with connection.schema_editor() as editor:
        (operation.database_forwards if forwards else operation.database_backwards)("shop", editor, state, state)


def sql(statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


def partitions() -> list[str]:
    found = sql("SELECT relid::regclass::text FROM pg_partition_tree(%s) WHERE isleaf", TABLE)
    return sorted(name for (name,) in found)


# -- the contract of the store ----------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
class TestPostgresEventStoreInAPartitionedTable(EventStoreContract):
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def partitioned(cls, django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
        with django_db_blocker.unblock():
            partition()
            yield
            partition(forwards=False)
            connections.close_all()

    @pytest.fixture
    def store(self) -> EventStore:
        return PostgresEventStore()

    @pytest.fixture
    def second_store(self) -> EventStore:
        return PostgresEventStore()

    def leave_thread(self) -> None:
        connections.close_all()

    def test_it_is_partitioned(self) -> None:
        assert len(partitions()) == PARTITIONS


# -- the operation ----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(db: None) -> PostgresEventStore:
    return PostgresEventStore()


def rows() -> list[tuple[object, ...]]:
    return list(EventStream.objects.order_by("sequence").values_list())


def some_rows(store: PostgresEventStore) -> list[tuple[object, ...]]:
    for number in range(20):
        store.append([*history(f"root-{number}", 3), refusal(f"root-{number}")])
    sql(f"DELETE FROM {TABLE} WHERE sequence = (SELECT max(sequence) FROM {TABLE})")
    return rows()


def last_sequence() -> int:
    ((last,),) = sql(f"SELECT pg_sequence_last_value(pg_get_serial_sequence('{TABLE}', 'sequence')::regclass)")
    return int(last)


def definition() -> list[tuple[Any, ...]]:
    """Return what is known of the table. Grants that were never changed are the same as the owner's own."""
    return sql(
        """
        SELECT 'index', pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = %s::regclass
        UNION ALL SELECT 'constraint', conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
            WHERE conrelid = %s::regclass AND contype <> 'n'
        UNION ALL SELECT 'trigger', pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = %s::regclass
        UNION ALL SELECT 'grants', relname || coalesce(relacl, acldefault(
                CASE relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END, relowner))::text
            FROM pg_class WHERE relname = ANY(%s)
        UNION ALL SELECT 'grants', attname || attacl::text FROM pg_attribute WHERE attrelid = %s::regclass
        UNION ALL SELECT 'options', reloptions::text FROM pg_class WHERE oid = %s::regclass
        UNION ALL SELECT 'column', format('%%s %%s %%s %%s %%s', attnum, attname, format_type(atttypid, atttypmod),
                                          attnotnull, attidentity) FROM pg_attribute
            WHERE attrelid = %s::regclass AND attnum > 0
        UNION ALL SELECT 'sequence', pg_get_serial_sequence(%s, 'sequence')
        ORDER BY 1, 2
        """,
        *[TABLE] * 3,
        [TABLE, f"{TABLE}_sequence_seq"],
        *[TABLE] * 4,
    )


def test_rows_are_spread_over_the_partitions_and_nothing_is_lost(store: PostgresEventStore) -> None:
    before = some_rows(store)
    partition()
    assert rows() == before
    counts = {part: sql(f"SELECT count(DISTINCT aggregate_root_id) FROM {part}")[0][0] for part in partitions()}
    assert len(counts) == PARTITIONS
    assert sum(counts.values()) == 20
    assert all(counts.values())
    partition(forwards=False)
    assert partitions() == []
    assert rows() == before


def test_an_empty_table_is_partitioned_and_put_back_as_it_was(store: PostgresEventStore) -> None:
    before = definition()
    partition()
    assert outcomes(store.append([stream("a", 1)])) == [Outcome.STORED]
    sql(f"DELETE FROM {TABLE}")
    partition(forwards=False)
    assert definition() == before


@pytest.mark.parametrize("forwards", [True, False])
def test_sequences_go_on_after_the_last_one_even_if_its_row_is_gone(store: PostgresEventStore, forwards: bool) -> None:
    some_rows(store)
    partition()
    if not forwards:
        partition(forwards=False)
    last = last_sequence()
    assert last > max(row[0] for row in rows())
    store.append([stream("later", 1)])
    assert EventStream.objects.get(aggregate_root_id="later").sequence == last + 1


def test_what_a_project_has_added_to_the_table_stays(store: PostgresEventStore) -> None:
    sql(f"CREATE INDEX shop_by_type ON {TABLE} (command_type) WHERE version > 1")
    sql(f"CREATE UNIQUE INDEX shop_unique ON {TABLE} (aggregate_root_id, metadata, version)")
    sql(f"ALTER TABLE {TABLE} ADD CONSTRAINT shop_short CHECK (length(events) < 100)")
    sql(f"ALTER TABLE {TABLE} SET (autovacuum_vacuum_scale_factor = 0.01)")
    sql(f"CREATE ROLE shop_reader; GRANT SELECT, INSERT ON {TABLE} TO shop_reader WITH GRANT OPTION")
    sql(f"GRANT UPDATE (metadata) ON {TABLE} TO PUBLIC")
    sql(f"GRANT USAGE ON SEQUENCE {TABLE}_sequence_seq TO shop_reader")
    sql(f"ALTER TABLE {TABLE} ADD shop_note text DEFAULT 'none', ADD shop_size int GENERATED ALWAYS AS (1) STORED")
    store.append([stream("noted", 1)])
    sql(f"UPDATE {TABLE} SET shop_note = 'kept'")
    protect()
    before = definition()
    partition()
    assert outcomes(store.append([stream("a", 1, events=bytes(100))])) == [Outcome.INVALID]
    assert sql("SELECT count(*) FROM pg_inherits WHERE inhparent = 'shop_by_type'::regclass") == [(PARTITIONS,)]
    assert sql("SELECT has_table_privilege('shop_reader', %s, 'INSERT WITH GRANT OPTION')", TABLE) == [(True,)]
    options = "SELECT DISTINCT reloptions FROM pg_class WHERE oid = ANY(%s::regclass[])"
    assert sql(options, partitions()) == [(["autovacuum_vacuum_scale_factor=0.01"],)]
    assert sql(f"SELECT shop_note, shop_size FROM {TABLE}") == [("kept", 1)]
    partition(forwards=False)
    assert sql(f"SELECT shop_note, shop_size FROM {TABLE}") == [("kept", 1)]
    assert definition() == before


def protect() -> None:
    with connection.schema_editor() as editor:
        ProtectHistory().database_forwards("shop", editor, project_state(), project_state())


def refuses(statement: str) -> bool:
    try:
        with transaction.atomic():
            sql(statement)
    except IntegrityError as error:
        return "are neither changed nor deleted" in str(error)
    return False


@pytest.mark.parametrize("protects_first", [True, False])
def test_history_is_protected_in_the_partitions_too(store: PostgresEventStore, protects_first: bool) -> None:
    store.append([stream("a", 1), refusal("a", "refused")])
    if protects_first:
        protect()
    partition()
    protect()
    for part in [TABLE, *partitions()]:
        assert not sql(f"SELECT FROM {part} WHERE version = 1") or (
            refuses(f"DELETE FROM {part} WHERE version = 1") and refuses(f"UPDATE {part} SET events = ''")
        )
    assert store.prune_refusals(stream("a", 1).created_at.replace(year=2100)) == 1


def test_a_table_is_not_partitioned_twice(store: PostgresEventStore) -> None:
    partition()
    with pytest.raises(NotSupportedError, match="is partitioned already; reverse that first"), transaction.atomic():
        partition()
    partition(forwards=False)
    with pytest.raises(NotSupportedError, match="is not partitioned"):
        partition(forwards=False)


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("ALTER TABLE {} ENABLE ROW LEVEL SECURITY", "row level security"),
        ("CREATE POLICY shop_all ON {}", "the policy shop_all"),
        ("ALTER TABLE {} REPLICA IDENTITY FULL", "a replica identity of its own"),
        ("CREATE RULE shop_rule AS ON UPDATE TO {} DO ALSO NOTHING", "the rule shop_rule"),
        ("CREATE PUBLICATION shop_changes FOR TABLE {}", "the publication shop_changes"),
    ],
)
def test_what_would_be_lost_is_named_and_the_table_stays(store: PostgresEventStore, statement: str, named: str) -> None:
    sql(statement.format(TABLE))
    with (
        pytest.raises(NotSupportedError, match=f"cannot be replaced: it .* ?{named}; remove that"),
        transaction.atomic(),
    ):
        partition()
    assert partitions() == []


def test_a_view_on_the_table_is_not_dropped(store: PostgresEventStore) -> None:
    sql(f"CREATE VIEW shop_types AS SELECT DISTINCT command_type FROM {TABLE}")
    with pytest.raises(DatabaseError, match="view shop_types depends on"), transaction.atomic():
        partition()
    assert partitions() == []


def test_the_table_stays_in_its_schema(store: PostgresEventStore) -> None:
    sql(f'CREATE SCHEMA "the shop"; ALTER TABLE {TABLE} SET SCHEMA "the shop"')
    sql('SET LOCAL search_path = public, "the shop"')
    before = [*some_rows(store), *definition()]
    partition()
    schemas = "SELECT DISTINCT relnamespace::regnamespace::text FROM pg_class WHERE relname LIKE %s AND relkind <> 'S'"
    assert sql(schemas, f"{TABLE}%") == [('"the shop"',)]
    partition(forwards=False)
    assert [*rows(), *definition()] == before


@pytest.mark.parametrize("number", [-1, 0, 1, 1025])
def test_impossible_numbers_of_partitions_are_refused_at_once(number: int) -> None:
    with pytest.raises(ValueError, match=f"{number} partitions are not possible; give from 2 to 1024"):
        PartitionEventStream(partitions=number)


def test_the_operation_can_be_written_into_a_migration() -> None:
    assert MigrationWriter.serialize(PartitionEventStream(partitions=16))[0].endswith(
        "operations.PartitionEventStream(\n    partitions=16,\n)"
    )
    assert PartitionEventStream(partitions=16).describe() == "Partition the event streams into 16 tables"


@override_settings(
    DATABASE_ROUTERS=["enode_django.routers.EventStoreRouter"], ENODE={"EVENT_STORE": {"DATABASES": ["elsewhere"]}}
)
def test_a_database_without_the_streams_is_left_alone(store: PostgresEventStore) -> None:
    partition()
    assert partitions() == []


# -- what reads the table ---------------------------------------------------------------------------------------------


@pytest.fixture
def partitioned(store: PostgresEventStore) -> PostgresEventStore:
    partition()
    return store


def test_the_models_and_the_checks_see_no_difference(partitioned: PostgresEventStore) -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
    assert check_constraints(None, databases=["default"]) == []
    assert TABLE in connection.introspection.table_names()


def test_a_refused_version_and_a_repeated_command_are_told_apart(partitioned: PostgresEventStore) -> None:
    """PostgreSQL names the constraint of the partition."""
    first, second = history("a", 2)
    partitioned.append([first, second])
    assert outcomes(partitioned.append([stream("a", 2), stream("b", 1)])) == [Outcome.CONFLICT, Outcome.STORED]
    assert outcomes(partitioned.append([second], doubtful=True)) == [Outcome.STORED]
    assert outcomes(partitioned.append([stream("a", 3, second.command_id)])) == [Outcome.REPEATED]


def fill(count: int) -> None:
    sql(f"""
        INSERT INTO {TABLE} ({", ".join(stream("", 1)._fields)})
        SELECT 'root-' || to_char(n, 'FM00000'), 1, 'command-' || n, 'bank.BankAccount', 'bank.Deposit',
               now(), convert_to(repeat('e', 200), 'UTF8'), ''
        FROM generate_series(1, {count}) AS n
    """)


def test_sizes_and_samples_are_those_of_all_partitions(
    partitioned: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dividing.size("default") == 0
    fill(4_000)
    sizes = [sql("SELECT pg_relation_size(%s::regclass)", part)[0][0] for part in partitions()]
    assert dividing.size("default") == sum(sizes) > 4_000 * 200
    monkeypatch.setattr(dividing, "SAMPLED_PAGES", 100)
    bounds = dividing.bounds("default", 4)
    assert [int(bound.removeprefix("root-")) for bound in bounds] == pytest.approx([1_000, 2_000, 3_000], abs=600)


def streams_in_status() -> int:
    (row,) = ask_shard("default").rows
    assert isinstance(row, ShardRow)
    return row.streams


def test_rows_are_estimated_over_all_partitions(
    partitioned: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_list, "COUNTED", 50)
    fill(60)
    assert stream_list.size_in_words("default") == "more than 50"
    assert streams_in_status() == tables.last_sequence("default")
    for part in partitions():
        sql(f"ANALYZE {part}")  # as autovacuum does, which leaves the whole alone
    assert stream_list.size_in_words("default") == "about 60"
    assert streams_in_status() == 60


def test_heads_come_from_all_partitions_in_order(partitioned: PostgresEventStore) -> None:
    for number in range(20):
        partitioned.append(history(f"root-{number:02}", 2))
    page = heads_page("default", "root-05", "root-15", limit=100)
    assert [(head.aggregate_root_id, head.version) for head in page.heads] == [
        (f"root-{n:02}", 2) for n in range(5, 15)
    ]


def plan(statement: str, *parameters: object) -> str:
    with psycopg.Cursor[Any](connection.connection) as cursor:
        explain = f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) {statement}"
        return "\n".join(line for (line,) in cursor.execute(explain, parameters, prepare=False).fetchall())


def executed(text: str) -> set[str]:
    """Return the partitions that were read."""
    scans = [line for line in text.splitlines() if " Scan " in line and "never executed" not in line]
    return {match[0] for line in scans if (match := re.search(rf"{TABLE}_p\d+\b", line))}


def test_of_an_aggregate_one_partition_is_read(partitioned: PostgresEventStore) -> None:
    fill(2_000)
    (home,) = sql(f"SELECT tableoid::regclass::text FROM {TABLE} WHERE aggregate_root_id = 'root-00007'")[0]
    root, known = ["root-00007"], ["command-7"]
    plans = {
        "load": plan(statements.LOAD.plain, "root-00007", 0, 10, 10),
        "load many": plan(statements.LOAD_MANY.plain, root),
        "load ranges": plan(statements.LOAD_RANGES.plain, root, [0], [9], 10),
        "find": plan(statements.FIND.plain, known, root),
        "find versions": plan(statements.FIND_VERSIONS, root, [1]),
        "heads": plan(statements.HEADS, root),
        "original": plan(statements.ORIGINAL, "root-00007", 1),
    }
    assert {name: executed(text) for name, text in plans.items()} == {name: {home} for name in plans}


def test_searches_of_all_partitions_go_by_their_indexes(partitioned: PostgresEventStore) -> None:
    fill(2_000)
    everything = (0, 2**62, 0, 2**62)
    with by_index(connection):
        plans = [
            plan(statements.SETTLED, *everything, 10_000),
            plan(statements.SINCE, *everything, 10_000),
            plan(statements.FEED.plain, *everything, 0, 0, 3_001, 1_000, 3_000),
            plan(statements.FEED_WITHIN.plain, 0, 2**62, 1, 1_000),
            plan(statements.LAST_SEQUENCE),
        ]
    assert not [text for text in plans if "Seq Scan" in text]
    assert all(len(executed(text)) == PARTITIONS for text in plans)


def test_ranges_of_the_position_index_are_together_as_large_as_without_partitions(
    partitioned: PostgresEventStore,
) -> None:
    indexes = sql(
        "SELECT pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_inherits ON inhrelid = indexrelid"
        " WHERE inhparent = 'enode_stream_position'::regclass"
    )
    assert len(indexes) == PARTITIONS
    assert all(re.search(rf"pages_per_range='{512 // PARTITIONS}'", text) for (text,) in indexes)


def test_times_are_searched_in_all_partitions(partitioned: PostgresEventStore) -> None:
    records = [stream(f"root-{number}", 1) for number in range(20)]
    times = [record.created_at + timedelta(seconds=number) for number, record in enumerate(records)]
    for record, time in zip(records, times, strict=True):
        partitioned.append([record._replace(created_at=time)])
    sequences = EventStream.objects.order_by("sequence").values_list("sequence", flat=True)
    assert [tables.sequence_at("default", time) for time in times[1:]] == list(sequences)[1:]


def test_all_partitions_are_emptied_with_the_table(partitioned: PostgresEventStore) -> None:
    partitioned.append([stream(f"root-{number}", 1) for number in range(20)])
    connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), [TABLE], reset_sequences=True))
    assert not EventStream.objects.exists()
    partitioned.append([stream("a", 1)])
    assert EventStream.objects.get().sequence == 1
