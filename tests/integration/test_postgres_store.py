"""Tests that need PostgreSQL: other transactions, atomic blocks, constraints that the store does not know."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from django.db import connection, transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from enode_django.databases import healthy_connection
from enode_django.eventstore import known_corrections, statements
from enode_django.eventstore.base import Appended, Outcome, StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import CorrectionOutdated, StoreFailing, StoreUnavailable
from enode_django.models import EventStream
from enode_django.testing.event_store_read_contract import history, outcomes, refusal, stream
from tests.integration.store_sessions import Call, bare_session, database_alias, insert

STORED, REPEATED, CONFLICT = Outcome.STORED, Outcome.REPEATED, Outcome.CONFLICT
INVALID, DEPENDENT = Outcome.INVALID, Outcome.DEPENDENT

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def store() -> PostgresEventStore:
    return PostgresEventStore()


OURS = stream("b", 1, "k")


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        pytest.param(OURS, Appended(STORED), id="the same row"),
        pytest.param(refusal("b", "k"), Appended(REPEATED, refusal("b", "k")), id="the same command"),
        pytest.param(stream("b", 1, "other"), Appended(CONFLICT), id="the same version"),
    ],
)
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
@pytest.mark.parametrize("doubtful", [False, True])
def test_a_writer_that_has_not_committed_is_waited_for(
    store: PostgresEventStore, theirs: StreamRecord, expected: Appended, commits: bool, doubtful: bool
) -> None:
    sent = [stream("a", 1), OURS, stream("b", 2), stream("c", 1)]
    with (
        database_alias("waiting", OPTIONS={"application_name": "waiting"}),
        bare_session() as rival,
        bare_session() as observer,
    ):
        insert(rival, theirs)
        call = Call(lambda: PostgresEventStore("waiting").append(sent, doubtful=doubtful))
        call.wait_for_a_lock(observer, "waiting")
        if commits:
            rival.commit()
        else:
            rival.rollback()
        results = call.result()
    refused = commits and expected.outcome is not STORED
    assert results[1] == (expected if commits else Appended(STORED))
    assert outcomes([results[0], *results[2:]]) == [STORED, DEPENDENT if refused else STORED, STORED]
    assert (store.heads("b") == {"b": 2}) is not refused


@pytest.mark.parametrize("doubtful", [False, True])
def test_keys_are_taken_in_one_order_so_that_writers_do_not_lock_each_other_out(
    store: PostgresEventStore, doubtful: bool
) -> None:
    with (
        database_alias("waiting", OPTIONS={"application_name": "waiting"}),
        bare_session(options="-c lock_timeout=60s") as rival,
        bare_session() as observer,
    ):
        insert(rival, stream("a", 1))
        sent = [stream("b", 1), stream("a", 1)]
        call = Call(lambda: PostgresEventStore("waiting").append(sent, doubtful=doubtful))
        call.wait_for_a_lock(observer, "waiting")
        insert(rival, stream("b", 1))
        rival.commit()
        assert outcomes(call.result()) == [CONFLICT, CONFLICT]


# Inside an atomic block


def test_a_rollback_around_the_store_takes_everything_back(store: PostgresEventStore) -> None:
    store.append([stream("a", 1)])
    with transaction.atomic():
        assert outcomes(store.append([stream("a", 2), stream("b", 1)])) == [STORED, STORED]
        assert outcomes(store.append([stream("b", 2)], doubtful=True)) == [STORED]
        transaction.set_rollback(True)
    assert store.heads("ab") == {"a": 1}


@pytest.mark.parametrize(
    ("guilty", "outcome"),
    [(stream("a", 1), CONFLICT), (stream("a", 2)._replace(command_type="\0"), INVALID)],
    ids=["conflict", "bad data"],
)
def test_a_refusal_does_not_break_the_surrounding_block(
    store: PostgresEventStore, guilty: StreamRecord, outcome: Outcome
) -> None:
    store.append([stream("a", 1)])
    with transaction.atomic():
        EventStream.unprotected.bulk_create([EventStream(**stream("before", 1)._asdict())])
        assert outcomes(store.append([guilty, stream("b", 1)])) == [outcome, STORED]
        EventStream.unprotected.bulk_create([EventStream(**stream("after", 1)._asdict())])
    assert store.heads(["a", "b", "before", "after"]) == {"a": 1, "b": 1, "before": 1, "after": 1}


def test_without_autocommit_the_caller_commits(store: PostgresEventStore) -> None:
    connection.set_autocommit(False)
    try:
        assert outcomes(store.append([stream("a", 1)])) == [STORED]
        assert outcomes(store.append([stream("a", 1), stream("b", 1)])) == [CONFLICT, STORED]
        connection.rollback()
    finally:
        connection.set_autocommit(True)
    assert store.heads("ab") == {}


def test_a_lost_connection_inside_a_block_is_left_to_the_block(store: PostgresEventStore) -> None:
    with pytest.raises(StoreUnavailable), transaction.atomic():
        _lose_connection(store)
    assert outcomes(store.append([stream("a", 1)])) == [STORED]


def _lose_connection(store: PostgresEventStore) -> None:
    store.append([stream("a", 1)])
    with bare_session(autocommit=True) as session:
        session.execute("SELECT pg_terminate_backend(%s, 10000)", [connection.connection.info.backend_pid])
    lost = connection.connection
    try:
        store.append([stream("a", 2)])
    finally:
        assert connection.connection is lost


# Refusals of the database itself


@pytest.fixture
def _short_events(transactional_db: None) -> Iterator[None]:
    yield from _constraint("CHECK (length(events) < 100)")


@pytest.fixture
def _unique_metadata(transactional_db: None) -> Iterator[None]:
    yield from _constraint("UNIQUE (metadata)")


@pytest.fixture
def _dropping(transactional_db: None) -> Iterator[None]:
    """The first rows of aggregate ``dropped`` vanish, as many as their metadata say; a sequence never rolls back."""
    with connection.cursor() as cursor:
        cursor.execute(f"""
            CREATE SEQUENCE not_ours;
            CREATE FUNCTION not_ours() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF NEW.aggregate_root_id = 'dropped' AND nextval('not_ours') <= get_byte(NEW.metadata, 0)
                THEN RETURN NULL; END IF;
                RETURN NEW;
            END $$;
            CREATE TRIGGER not_ours BEFORE INSERT ON {statements.TABLE} FOR EACH ROW EXECUTE FUNCTION not_ours()
        """)
        try:
            yield
        finally:
            cursor.execute("DROP FUNCTION not_ours CASCADE; DROP SEQUENCE not_ours")


@pytest.fixture
def _checked_at_commit(transactional_db: None) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(f"""
            CREATE FUNCTION not_ours() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF length(NEW.events) >= 100 THEN RAISE check_violation USING MESSAGE = 'too long at commit'; END IF;
                RETURN NULL;
            END $$;
            CREATE CONSTRAINT TRIGGER not_ours AFTER INSERT ON {statements.TABLE} DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION not_ours()
        """)
        try:
            yield
        finally:
            cursor.execute("DROP FUNCTION not_ours CASCADE")


def _constraint(definition: str) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {statements.TABLE} ADD CONSTRAINT not_ours {definition}")
        try:
            yield
        finally:
            cursor.execute(f"ALTER TABLE {statements.TABLE} DROP CONSTRAINT not_ours")


@pytest.fixture
def _statements_logged(transactional_db: None) -> Iterator[None]:
    """The statement that wrote a row is in the table ``written_by``."""
    with connection.cursor() as cursor:
        cursor.execute(f"""
            CREATE TABLE written_by (root text, version bigint, statement text);
            CREATE FUNCTION not_ours() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                INSERT INTO written_by VALUES
                    (NEW.aggregate_root_id, NEW.version, split_part(btrim(current_query(), E' \\n'), ' ', 1));
                RETURN NULL;
            END $$;
            CREATE TRIGGER not_ours AFTER INSERT ON {statements.TABLE} FOR EACH ROW EXECUTE FUNCTION not_ours()
        """)
        try:
            yield
        finally:
            cursor.execute("DROP FUNCTION not_ours CASCADE; DROP TABLE written_by")


@pytest.mark.usefixtures("_statements_logged")
@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        pytest.param(stream("b", 2, "other"), Appended(CONFLICT), id="a version that is taken"),
        pytest.param(stream("b", 3, "k2"), Appended(REPEATED, stream("b", 2, "k2")), id="a command that is stored"),
    ],
)
@pytest.mark.parametrize("doubtful", [False, True])
def test_a_refused_record_does_not_send_other_aggregates_by_the_slow_statement(
    store: PostgresEventStore, refused: StreamRecord, expected: Appended, doubtful: bool
) -> None:
    store.append([stream("b", 1, "k1"), stream("b", 2, "k2"), stream("c", 1)])
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM written_by")
        results = store.append(
            [stream("a", 1), refused, stream("b", 4), stream("c", 2), stream("d", 1)], doubtful=doubtful
        )
        cursor.execute("SELECT root, version, statement FROM written_by ORDER BY root")
        assert cursor.fetchall() == [("a", 1, "COPY"), ("c", 2, "COPY"), ("d", 1, "COPY")]
    assert results[1] == expected
    assert outcomes([results[0], *results[2:]]) == [STORED, DEPENDENT, STORED, STORED]


@pytest.mark.usefixtures("_statements_logged")
def test_records_before_the_refused_one_are_stored(store: PostgresEventStore) -> None:
    store.append([stream("b", 1), stream("b", 3)])
    assert outcomes(store.append([stream("b", 2), stream("b", 3, "other"), stream("b", 4)])) == [
        STORED,
        CONFLICT,
        DEPENDENT,
    ]
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM written_by WHERE version = 2")
        assert cursor.fetchall() == [("INSERT",)]


@pytest.mark.usefixtures("_short_events")
@pytest.mark.parametrize("doubtful", [False, True])
def test_a_batch_is_halved_until_the_guilty_records_stand_alone(store: PostgresEventStore, doubtful: bool) -> None:
    taken = stream("root-9", 1)
    store.append([taken])
    sent = [stream(f"root-{number % 10}", number // 10 + 1) for number in range(100)]
    guilty = {34: "root-4", 35: "root-5", 76: "root-6"}
    for place in guilty:
        sent[place] = sent[place]._replace(events=bytes(100))
    results = store.append(sent, doubtful=doubtful)
    for place, result in enumerate(results):
        first_bad = {4: 34, 5: 35, 6: 76, 9: 9}.get(place % 10, 1_000)
        if place < first_bad:
            assert result == Appended(STORED)
        elif place > first_bad:
            assert result == Appended(DEPENDENT)
        elif place in guilty:
            assert result.outcome is INVALID
            assert "not_ours" in result.error
            assert "23514" in result.error
        else:
            assert result == Appended(CONFLICT)
    rows = store.load_many([f"root-{number}" for number in range(10)])
    lengths = {root: len(streams) for root, streams in rows.items()}
    shorter = {"root-4": 3, "root-5": 3, "root-6": 7, "root-9": 1}
    assert lengths == {**{f"root-{number}": 10 for number in range(9)}, **shorter}


@pytest.mark.usefixtures("_unique_metadata")
def test_a_row_that_a_foreign_constraint_refuses_is_invalid(store: PostgresEventStore) -> None:
    sent = [stream("a", 1, metadata=b"1"), stream("b", 1, metadata=b"1"), stream("b", 2, metadata=b"2")]
    sent.append(stream("c", 1, metadata=b"3"))
    results = store.append(sent)
    assert outcomes(results) == [STORED, INVALID, DEPENDENT, STORED]
    assert "not the app's own" in results[1].error
    assert store.heads("abc") == {"a": 1, "c": 1}


@pytest.mark.usefixtures("_dropping")
@pytest.mark.parametrize(("times", "outcome"), [(3, STORED), (100, INVALID)])
@pytest.mark.parametrize("doubtful", [False, True])
def test_a_row_that_goes_missing_is_tried_again_and_never_reported_as_stored(
    store: PostgresEventStore, times: int, outcome: Outcome, doubtful: bool
) -> None:
    missing, other = stream("dropped", 1, metadata=bytes([times])), stream("a", 1)
    assert outcomes(store.append([missing, other], doubtful=doubtful)) == [outcome, STORED]
    assert store.heads(["a", "dropped"]) == ({"a": 1, "dropped": 1} if outcome is STORED else {"a": 1})


@pytest.mark.usefixtures("_dropping")
@pytest.mark.parametrize("conflicts", [False, True])
def test_a_stream_after_one_that_goes_missing_is_not_stored(store: PostgresEventStore, conflicts: bool) -> None:
    store.append([stream("b", 1)])
    # The first COPY, and each try of the slow path, drops one row. The other row is never dropped.
    sent = [stream("dropped", 1, metadata=bytes([100])), stream("dropped", 2, metadata=bytes([0])), stream("a", 1)]
    if conflicts:
        sent.append(stream("b", 1, "theirs"))
    assert outcomes(store.append(sent)) == [INVALID, DEPENDENT, STORED, *([CONFLICT] if conflicts else [])]
    assert store.heads(["a", "dropped"]) == {"a": 1}


@pytest.mark.usefixtures("_checked_at_commit")
@pytest.mark.parametrize("doubtful", [False, True])
def test_a_row_that_is_refused_by_the_commit_is_invalid(store: PostgresEventStore, doubtful: bool) -> None:
    sent = [stream("a", 1), stream("b", 1, events=bytes(100)), stream("b", 2), stream("c", 1)]
    results = store.append(sent, doubtful=doubtful)
    assert outcomes(results) == [STORED, INVALID, DEPENDENT, STORED]
    assert "too long at commit" in results[1].error
    assert store.heads("abc") == {"a": 1, "c": 1}


@pytest.mark.parametrize("doubtful", [False, True])
def test_a_missing_table_is_told_with_what_to_do(store: PostgresEventStore, doubtful: bool) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {statements.TABLE} RENAME TO elsewhere")
        try:
            with pytest.raises(StoreFailing, match=r"42P01\); run manage\.py migrate"):
                store.append([stream("a", 1)], doubtful=doubtful)
        finally:
            cursor.execute(f"ALTER TABLE elsewhere RENAME TO {statements.TABLE}")


# The session


def test_nothing_is_left_in_the_session(transactional_db: None) -> None:
    with database_alias("eager", OPTIONS={"prepare_threshold": 0}) as alias:
        before = _session(alias)
        store = PostgresEventStore(alias)
        records = [*history("a", 3), refusal("a")]
        for doubtful in (False, True, False):
            store.append(records, doubtful=doubtful)
        list(store.load("a"))
        store.load_many("a")
        store.heads("a")
        store.find([records[0].command_key])
        store.prune_refusals(records[0].created_at)
        assert _session(alias) == before


def _session(alias: str) -> list[list[tuple[object, ...]]]:
    with psycopg.Cursor[tuple[object, ...]](healthy_connection(alias).connection) as cursor:
        return [
            cursor.execute(question, prepare=False).fetchall()
            for question in (
                "SELECT pg_backend_pid()",
                "SELECT name, setting FROM pg_settings ORDER BY name",
                "SELECT name FROM pg_prepared_statements",
                "SELECT name FROM pg_cursors",
                "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
            )
        ]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_times_are_in_utc_whatever_the_session_says(transactional_db: None, zone: str) -> None:
    with database_alias("elsewhere", TIME_ZONE=zone) as alias:
        store, record = PostgresEventStore(alias), stream("a", 1)
        store.append([record], doubtful=True)
        (loaded,) = store.load("a")
        assert loaded == record
        assert loaded.created_at.isoformat() == record.created_at.isoformat()


# Corrections


def test_a_correction_waits_for_one_that_is_being_made_and_is_refused_after_it(store: PostgresEventStore) -> None:
    store.append(history("a", 1))

    def correct(alias: str, events: bytes) -> None:
        PostgresEventStore(alias).correct("a", 1, events, by="ann", reason="a typing error", last=0)

    with (
        database_alias("waiting", OPTIONS={"application_name": "waiting"}),
        bare_session() as observer,
    ):
        with transaction.atomic():
            correct("default", b"first")
            call = Call(lambda: correct("waiting", b"second"))
            call.wait_for_a_lock(observer, "waiting")
        with pytest.raises(CorrectionOutdated):
            call.result()
    assert next(iter(store.load("a"))).events == b"first"


def test_a_process_that_was_told_of_a_correction_reads_it_at_once(
    store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_corrections, "LOOK_EVERY", 3_600.0)
    (record,) = history("a", 1)
    store.append([record])
    with bare_session() as another_process:
        another_process.execute(statements.CORRECT.encode(), (b"better", "ann", "a typing error", "a", 1))
        another_process.commit()
    assert list(store.load("a")) == [record], "it has looked a moment ago"
    assert [one.version for one in store.corrected_since(0)] == [1]
    assert [one.events for one in store.load("a")] == [b"better"]


# Beside the memory driver

_drafts = st.lists(
    st.builds(
        stream,
        root_id=st.sampled_from("ab"),
        version=st.sampled_from([None, 1, 2, 3]),
        command_id=st.sampled_from(["k1", "k2", "k3", "k4", "\0"]),
        events=st.sampled_from([b"x", b"y"]),
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(_drafts, st.booleans()), max_size=4))
def test_both_drivers_come_to_the_same_results(
    store: PostgresEventStore, batches: list[tuple[list[StreamRecord], bool]]
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {statements.TABLE}")
    memory = MemoryEventStore()
    for batch, doubtful in batches:
        assert list(store.append(batch, doubtful=doubtful)) == list(memory.append(batch))
    assert store.load_many("ab") == memory.load_many("ab")
    keys = [(command, root) for command in ("k1", "k2", "k3", "k4") for root in "ab"]
    assert store.find(keys) == memory.find(keys)
