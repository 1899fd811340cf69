"""Secondary indexes and foreign keys of a shadow are made after the load, exactly as they are in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from enode_django.exceptions import JobCancelled, RebuildError, TablesInUse
from enode_django.jobs.progress import Report
from enode_django.rebuilding import clearing, completing
from enode_django.rebuilding.engine import InProcess, Plan
from enode_django.rebuilding.rebuild import rebuild, undo
from enode_django.rebuilding.replaying import Replayed
from tests.following.domain import Added, Opened
from tests.following.harness import Harness
from tests.integration.store_sessions import Call, bare_session
from tests.rebuilding.conftest import schemas
from tests.rebuilding.domain import Balances, Postings
from tests.rebuilding.histories import balances, follow, nothing, some_history
from tests.rebuilding.histories import postings as posted
from tests.rebuilding.tables import asked, sql

TABLE = "rebuilding_balance"
DEFINITIONS = """
    SELECT relname, pg_get_indexdef(indexrelid), indisclustered, obj_description(indexrelid, 'pg_class')
    FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE indrelid = 'rebuilding_balance'::regclass
    UNION ALL
    SELECT conname, pg_get_constraintdef(oid), convalidated, obj_description(oid, 'pg_constraint')
    FROM pg_constraint WHERE conrelid = 'rebuilding_balance'::regclass ORDER BY 1, 2
"""
LATE = {"by_total", "partial", "covering", "hashed", "patterns", "blocks"}
UNIQUE = {"rebuilding_balance_pkey", "one_each", "one_some"}


@pytest.fixture
def indexed(postings: Harness) -> Iterator[Harness]:
    """A harness whose table of balances has indexes and foreign keys of many kinds."""
    sql(
        "CREATE TABLE known_total (id integer PRIMARY KEY)",
        "INSERT INTO known_total SELECT * FROM generate_series(0, 100)",
        f'CREATE INDEX by_total ON {TABLE} (total DESC NULLS LAST, "count")',
        f'CREATE INDEX partial ON {TABLE} ((total * 2)) WHERE "count" > 1',
        f'CREATE INDEX covering ON {TABLE} (total) INCLUDE ("count") WITH (fillfactor = 70)',
        f"CREATE INDEX hashed ON {TABLE} USING hash (total)",
        f"CREATE INDEX patterns ON {TABLE} (lower(aggregate_root_id) text_pattern_ops)",
        f"CREATE INDEX blocks ON {TABLE} USING brin (version)",
        f"CREATE UNIQUE INDEX one_some ON {TABLE} (aggregate_root_id, total) WHERE total > 5",
        "COMMENT ON INDEX partial IS 'it''s partial'",
        f"ALTER TABLE {TABLE} CLUSTER ON by_total, ADD CONSTRAINT one_each UNIQUE (aggregate_root_id, total)",
        f"ALTER TABLE {TABLE} ADD CONSTRAINT known FOREIGN KEY (total) REFERENCES known_total DEFERRABLE",
        f'ALTER TABLE {TABLE} ADD CONSTRAINT later FOREIGN KEY ("count") REFERENCES known_total NOT VALID',
        f"ALTER TABLE {TABLE} ADD CONSTRAINT follows FOREIGN KEY (total) REFERENCES known_total ON DELETE CASCADE",
        f"COMMENT ON CONSTRAINT known ON {TABLE} IS 'a key'",
    )
    try:
        yield postings
    finally:
        sql(
            "DROP TABLE known_total CASCADE",
            f"ALTER TABLE {TABLE} DROP CONSTRAINT one_each",
            f"DROP INDEX {', '.join(sorted({*LATE, 'one_some'}))}",
        )


class Looking(InProcess):
    """An engine that records the names of the shadow's indexes and foreign keys before and after the replay."""

    def __init__(self) -> None:
        self.seen: list[set[str]] = []

    def replay(self, plan: Plan, report: Report) -> Replayed:
        self.seen.append(names(plan.shadow.schema))
        replayed = super().replay(plan, report)
        self.seen.append(names(plan.shadow.schema))
        return replayed


def names(schema: str) -> set[str]:
    found = asked(
        "SELECT indexname FROM pg_indexes WHERE schemaname = %s AND tablename ~ '^rebuilding_' UNION ALL "
        "SELECT conname FROM pg_constraint WHERE connamespace = to_regnamespace(%s) AND contype = 'f'",
        schema,
        schema,
    )
    return {name for (name,) in found}


def test_a_table_is_loaded_without_secondary_indexes_and_has_the_same_definitions_after_the_swap(
    indexed: Harness,
) -> None:
    some_history(indexed, "a", "b", "c")
    follow(Balances)
    before, rows, engine = asked(DEFINITIONS), balances(), Looking()
    rebuilt = rebuild(Balances.name, engine, nothing)
    assert engine.seen == [UNIQUE | {"follows"}] * 2
    assert (rebuilt.is_swapped, rebuilt.replayed.parked) == (True, ())
    assert asked(DEFINITIONS) == before
    assert balances() == rows
    undo(Balances.name, InProcess(), nothing)
    assert asked(DEFINITIONS) == before


def test_a_projection_whose_handlers_may_look_rows_up_is_loaded_with_its_indexes(postings: Harness) -> None:
    some_history(postings, "a")
    follow(Postings)
    engine = Looking()
    rebuild(Postings.name, engine, nothing)
    in_use = {name for name in names("public") if "posting" in name}
    assert any("_fk_" in name for name in in_use)
    assert engine.seen[0] == {*in_use, "once"}


def test_a_projection_that_says_so_is_loaded_without_them(postings: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Postings, "indexes_after_load", True)
    some_history(postings, "a", "b")
    follow(Postings)
    in_use, rows, engine = names("public"), posted(), Looking()
    rebuilt = rebuild(Postings.name, engine, nothing)
    assert engine.seen[1] == {"rebuilding_posting_pkey", "rebuilding_postingline_pkey", "once"}
    assert (rebuilt.comparison.is_equal, rebuilt.comparison.is_whole) == (True, True)
    assert names("public") == in_use
    assert posted() == rows


def test_an_aggregate_whose_row_breaks_a_foreign_key_is_parked_as_workers_park_it(indexed: Harness) -> None:
    some_history(indexed, "a")
    indexed.stored("b", Opened(owner="b"), Added(amount=5), Added(amount=500), Added(amount=1))
    indexed.stored("c", Added(amount=500), Added(amount=-490))
    sql(f"ALTER TABLE {TABLE} DROP CONSTRAINT follows")
    rebuilt = rebuild(Balances.name, InProcess(), nothing, accept_differences=True)
    assert sorted(rebuilt.replayed.parked) == ["b"]
    assert balances() == {"a": (10, 2, 3), "b": (5, 1, 2), "c": (10, 2, 2)}
    assert [(one.aggregate_root_id, one.version) for one in indexed.parked(Balances.name)] == [("b", 3)]
    assert "known" in indexed.parked(Balances.name)[0].error


def test_more_aggregates_that_break_a_foreign_key_than_may_be_parked_end_the_rebuild(indexed: Harness) -> None:
    sql(f"ALTER TABLE {TABLE} DROP CONSTRAINT follows")
    some_history(indexed, "a")
    follow(Balances)
    for id in "bcd":
        indexed.stored(id, Added(amount=500))
    with pytest.raises(RebuildError, match=r"known.*Key \(total\)=\(500\) is not present.*rows of 3 aggregates"):
        rebuild(Balances.name, InProcess(), nothing, accept_differences=True, max_failures=2)
    assert schemas() == []
    assert balances() == {"a": (10, 2, 3)}
    assert indexed.parked(Balances.name) == []


def test_tables_that_a_rebuild_has_replaced_hold_no_row_of_another_table(indexed: Harness) -> None:
    some_history(indexed, "a")
    follow(Balances)
    rebuild(Balances.name, InProcess(), nothing)
    ((replaced,),) = asked(
        f"SELECT nspname FROM pg_tables JOIN pg_namespace ON nspname = schemaname "
        f"WHERE tablename = '{TABLE}' AND schemaname <> 'public'"
    )
    assert "follows" in names(replaced), "a key with an action does not hold the row"
    sql(f"UPDATE {TABLE} SET total = 7", "DELETE FROM known_total WHERE id = 10")
    assert asked("SELECT count(*) FROM known_total WHERE id = 10") == [(0,)]


def test_an_undo_that_ends_early_holds_no_row_of_another_table(indexed: Harness) -> None:
    some_history(indexed, "a")
    follow(Balances)
    rebuild(Balances.name, InProcess(), nothing)

    def cancel(stage: str, /, **figures: object) -> None:
        if figures.get("foreign_key") == "later":  # "known" was made before
            raise JobCancelled("by request")

    with pytest.raises(JobCancelled):
        undo(Balances.name, InProcess(), cancel)
    sql(f"UPDATE {TABLE} SET total = 7", "DELETE FROM known_total WHERE id = 10")


def test_an_undo_parks_an_aggregate_whose_old_row_points_to_what_is_gone(indexed: Harness) -> None:
    sql(f"ALTER TABLE {TABLE} DROP CONSTRAINT follows")
    some_history(indexed, "a")
    indexed.stored("b", Added(amount=5))
    follow(Balances)
    before, rows = asked(DEFINITIONS), balances()
    rebuild(Balances.name, InProcess(), nothing)
    sql(f"DELETE FROM {TABLE} WHERE total = 10", "DELETE FROM known_total WHERE id = 10")
    undo(Balances.name, InProcess(), nothing)
    assert (balances()["b"], asked(DEFINITIONS)) == (rows["b"], before)
    assert [one.aggregate_root_id for one in indexed.parked(Balances.name)] == ["a"]


def test_a_key_that_is_in_use_elsewhere_is_left_to_the_next_rebuild(
    indexed: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    some_history(indexed, "a")
    follow(Balances)
    monkeypatch.setattr(clearing, "ATTEMPTS", 1)

    def read_on(stage: str, /, **figures: object) -> None:
        if stage == "compare":
            session.execute("SELECT count(*) FROM known_total")

    with bare_session() as session:
        assert rebuild(Balances.name, InProcess(), read_on).is_swapped
    assert "rows of public.known_total cannot be deleted" in caplog.text


@pytest.mark.parametrize("stage", ["make indexes", "make foreign keys"])
def test_a_rebuild_that_ends_while_indexes_are_made_leaves_nothing_and_the_next_one_succeeds(
    indexed: Harness, stage: str
) -> None:
    some_history(indexed, "a", "b")
    follow(Balances)
    before = asked(DEFINITIONS)

    def cancel(now: str, /, **figures: object) -> None:
        if now == stage:
            raise JobCancelled("by request")

    with pytest.raises(JobCancelled):
        rebuild(Balances.name, InProcess(), cancel)
    assert schemas() == []
    assert rebuild(Balances.name, InProcess(), nothing).is_swapped
    assert asked(DEFINITIONS) == before


def test_a_lost_connection_does_not_end_the_making_of_indexes(indexed: Harness) -> None:
    some_history(indexed, "a", "b")
    follow(Balances)
    before, ended = asked(DEFINITIONS), set[Any]()

    def end_session(stage: str, /, **figures: object) -> None:
        name = figures.get("index", figures.get("foreign_key"))
        if name in {"hashed", "known"} and name not in ended:
            ended.add(name)
            ((pid,),) = asked("SELECT pg_backend_pid()")
            Call(lambda: asked("SELECT pg_terminate_backend(%s, 10000)", pid)).result()

    assert rebuild(Balances.name, InProcess(), end_session).is_swapped
    assert ended == {"hashed", "known"}
    assert asked(DEFINITIONS) == before


def test_a_table_that_is_altered_during_the_load_is_told_before_it_is_compared(indexed: Harness) -> None:
    some_history(indexed, "a")

    class Altering(InProcess):
        def replay(self, plan: Plan, report: Report) -> Replayed:
            sql(f"ALTER TABLE {TABLE} ADD added integer")
            return super().replay(plan, report)

    try:
        with pytest.raises(RebuildError, match=r"rebuilding_balance is not as it was .*\(columns\)"):
            rebuild(Balances.name, Altering(), nothing, accept_differences=True)
    finally:
        sql(f"ALTER TABLE {TABLE} DROP COLUMN added")
    assert schemas() == []


def test_a_long_transaction_that_writes_to_the_other_table_is_waited_for_and_then_told(
    indexed: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql(f"ALTER TABLE {TABLE} DROP CONSTRAINT follows")
    monkeypatch.setattr(completing, "PATIENCE", 0.0)
    monkeypatch.setattr(clearing, "ATTEMPTS", 2)
    some_history(indexed, "a")
    follow(Balances)
    other = connection.copy()
    try:
        with other.cursor() as cursor:

            def write(stage: str, /, **figures: object) -> None:
                if figures.get("foreign_key") == "known":
                    cursor.execute("BEGIN; INSERT INTO known_total VALUES (1000)")

            with pytest.raises(TablesInUse, match="long transaction"):
                rebuild(Balances.name, InProcess(), write)
            cursor.execute("ROLLBACK")
    finally:
        other.close()
    assert schemas() == []
    assert balances() == {"a": (10, 2, 3)}
