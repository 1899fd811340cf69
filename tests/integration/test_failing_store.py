"""A database refuses everything until somebody mends it: nothing is answered, nothing is lost, and the outage is
logged.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from django.db import connection

from enode_django import CommandStatus, execute_command, send_command
from enode_django.eventstore.base import Outcome
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.statements import GENERATIONS, TABLE
from enode_django.exceptions import StoreFailing
from enode_django.rebuilding.definitions import quoted
from enode_django.testing.event_store_read_contract import outcomes, stream
from tests.integration.notebook import Count, CreateNote
from tests.integration.running import processors, wait_for
from tests.rebuilding.tables import role

pytestmark = pytest.mark.django_db(transaction=True)

FAULTS = {
    "54000": "no transaction ids are left, or no multixacts",
    "53100": "disk full",
    "53200": "out of memory",
    "58030": "input/output error",
    "XX000": "internal error",
    "XX001": "a damaged page",
}


def run(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture
def refuse(transactional_db: None) -> Iterator[Callable[..., None]]:
    """Yield a function that lets the database refuse rows with an SQLSTATE: all rows, or statements with more than
    ``above``."""

    def refuse(state: str, above: int = 0) -> None:
        run(
            f"""CREATE OR REPLACE FUNCTION tests_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF (SELECT count(*) FROM new_rows) > {above} THEN
                    RAISE EXCEPTION 'refused' USING ERRCODE = '{state}';
                END IF;
                RETURN NULL; END $$""",
            f"""CREATE OR REPLACE TRIGGER tests_refuse AFTER INSERT ON {TABLE} REFERENCING NEW TABLE AS new_rows
                FOR EACH STATEMENT EXECUTE FUNCTION tests_refuse()""",
        )

    yield refuse
    run(f"DROP TRIGGER IF EXISTS tests_refuse ON {TABLE}", "DROP FUNCTION IF EXISTS tests_refuse()")


def mend() -> None:
    run(f"DROP TRIGGER tests_refuse ON {TABLE}")


@pytest.mark.parametrize("doubtful", [False, True])
@pytest.mark.parametrize("state", FAULTS)
def test_what_no_row_can_be_blamed_for_is_waited_out(refuse: Callable[..., None], state: str, doubtful: bool) -> None:
    store = PostgresEventStore()
    records = [stream("a", 1), stream("a", 2), stream("b", 1)]
    refuse(state)
    with pytest.raises(StoreFailing, match=r"refused .*look after"):
        store.append(records, doubtful=doubtful)
    assert StoreFailing.retriable
    mend()
    assert outcomes(store.append(records, doubtful=True)) == [Outcome.STORED] * 3


@pytest.mark.parametrize("state", ["54000", "53200", "XX000"])
def test_a_batch_that_is_too_much_at_once_is_stored_in_parts(refuse: Callable[..., None], state: str) -> None:
    store = PostgresEventStore()
    records = [stream(f"root-{number % 5}", number // 5 + 1) for number in range(20)]
    refuse(state, above=3)
    assert outcomes(store.append(records, doubtful=state == "53200")) == [Outcome.STORED] * 20
    assert [record.version for record in store.load("root-4")] == [1, 2, 3, 4]


@pytest.mark.parametrize("privilege", [f"INSERT ON {TABLE}", f"SELECT ON {GENERATIONS}"])
def test_a_missing_privilege_is_waited_for(transactional_db: None, privilege: str) -> None:
    store = PostgresEventStore()
    with role() as name:
        user = quoted(name)
        run(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}", f"REVOKE {privilege} FROM {user}")
        try:
            run(f"SET ROLE {user}")
            with pytest.raises(StoreFailing, match=r"permission denied .*GRANT its user what is missing"):
                store.append([stream("a", 1)])
            run("RESET ROLE", f"GRANT {privilege} TO {user}", f"SET ROLE {user}")
            assert outcomes(store.append([stream("a", 1)], doubtful=True)) == [Outcome.STORED]
        finally:
            run("RESET ROLE")


@pytest.mark.parametrize(
    ("undo", "redo"),
    [
        (f"ALTER TABLE {TABLE} RENAME TO away", f"ALTER TABLE away RENAME TO {TABLE}"),
        (f"ALTER TABLE {TABLE} RENAME metadata TO away", f"ALTER TABLE {TABLE} RENAME away TO metadata"),
    ],
)
def test_a_missing_migration_is_waited_for(transactional_db: None, undo: str, redo: str) -> None:
    store = PostgresEventStore()
    run(undo)
    try:
        with pytest.raises(StoreFailing, match=r"does not exist .*run manage\.py migrate: until then commands wait"):
            store.append([stream("a", 1)])
    finally:
        run(redo)
    assert outcomes(store.append([stream("a", 1)], doubtful=True)) == [Outcome.STORED]


def test_commands_wait_and_are_answered_when_the_database_is_mended(
    redis_url: str, refuse: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    note = str(uuid.uuid4())
    with processors() as running:
        execute_command(CreateNote(note), timeout=240)
        figures = running.statistics.report
        assert figures()["waiting_for_help"] == 0
        refuse("54000")
        count = Count(note)
        send_command(count)
        wait_for(lambda: figures()["waiting_for_help"] == 1)
        wait_for(lambda: any("look after" in one.getMessage() for one in caplog.records if one.levelname == "ERROR"))
        mend()
        result = execute_command(count, timeout=240)
        assert (result.status, result.version) == (CommandStatus.SUCCESS, 2)
        wait_for(lambda: figures()["waiting_for_help"] == 0)
