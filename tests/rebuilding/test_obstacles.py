"""Objects that depend on a table, and would stay with the old one, are reported before anything is done."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from django.db import connection

from enode_django.eventing.registry import subscribers
from enode_django.exceptions import RebuildError
from enode_django.models import Rebuild
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import plan, rebuild
from tests.rebuilding.conftest import schemas
from tests.rebuilding.domain import Posting
from tests.rebuilding.histories import nothing
from tests.rebuilding.tables import asked, quoted, role, sql

TABLE = "rebuilding_posting"
RENAME = f"ALTER TABLE {TABLE} RENAME TO moved"
FUNCTION = "CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"
PUBLISHED_SCHEMA = "CREATE PUBLICATION many FOR TABLES IN SCHEMA public"
FOREIGN = "CREATE FOREIGN DATA WRAPPER odd; CREATE SERVER afar FOREIGN DATA WRAPPER odd"

OBSTACLES = {
    f"CREATE TABLE pointing (posting bigint CONSTRAINT points REFERENCES {TABLE})": (
        "the foreign key points of pointing points to it; write db_constraint=False in the field, and migrate"
    ),
    f"{FUNCTION}; CREATE TRIGGER notes BEFORE INSERT ON {TABLE} EXECUTE FUNCTION noted()": "it has the trigger notes",
    f"CREATE RULE also AS ON INSERT TO {TABLE} DO ALSO NOTHING": "it has the rule also",
    f"ALTER TABLE {TABLE} ENABLE ROW LEVEL SECURITY": "it has row level security",
    f"CREATE POLICY mine ON {TABLE}": "it has the policy mine",
    f"CREATE TABLE child () INHERITS ({TABLE})": "other tables inherit from it",
    f"CREATE PUBLICATION one FOR TABLE {TABLE}": "the publication one has it",
    "CREATE PUBLICATION every FOR ALL TABLES": "the publication every has it",
    PUBLISHED_SCHEMA: "the publication many has it",
    f"CREATE VIEW seen AS SELECT amount FROM {TABLE}": "the view seen reads from it",
    f"CREATE VIEW whole AS SELECT {TABLE} FROM {TABLE}": "the view whole reads from it",
    f"CREATE MATERIALIZED VIEW kept AS SELECT amount FROM {TABLE}": "the view kept reads from it",
    f"CREATE FUNCTION total() RETURNS bigint BEGIN ATOMIC SELECT sum(amount) FROM {TABLE}; END": (
        "function total() depends on it"
    ),
    f"CREATE FUNCTION one(it {TABLE}) RETURNS bigint LANGUAGE sql AS 'SELECT 1'": (
        f"function one({TABLE}) depends on it"
    ),
    f"CREATE TABLE holder (held {TABLE}[])": "column held of table holder depends on it",
    f"CREATE TABLE counting (number bigint DEFAULT nextval('{TABLE}_id_seq'))": (
        f"default value for column number of table counting depends on its sequence {TABLE}_id_seq"
    ),
    f"ALTER TABLE {TABLE} ADD number bigint DEFAULT nextval('{TABLE}_id_seq')": (
        f"default value for column number of table {TABLE} depends on its sequence {TABLE}_id_seq"
    ),
    f"CREATE VIEW counted AS SELECT last_value FROM {TABLE}_id_seq": (
        f"rule _RETURN on view counted depends on its sequence {TABLE}_id_seq"
    ),
    f"ALTER TABLE {TABLE} REPLICA IDENTITY USING INDEX {TABLE}_pkey": "its replica identity is an index",
    f"CREATE TYPE mood AS ENUM ('good'); ALTER TABLE {TABLE} ADD mood mood": (
        "its column mood has the type mood, whose operators lie in the schema public"
    ),
    f"ALTER EXTENSION plpgsql ADD TABLE {TABLE}": "it belongs to the extension plpgsql",
    f"{RENAME}": "there is no such table; run manage.py migrate",
    f"{RENAME}; CREATE VIEW {TABLE} AS SELECT 1": "it is a view",
    f"{RENAME}; CREATE MATERIALIZED VIEW {TABLE} AS SELECT 1": "it is a materialized view",
    f"{RENAME}; CREATE TABLE {TABLE} (id int) PARTITION BY RANGE (id)": "it is partitioned",
    f"{RENAME}; CREATE TABLE whole (id int) PARTITION BY RANGE (id);CREATE TABLE {TABLE} PARTITION OF whole DEFAULT": (
        "it is a partition of another"
    ),
    f"{RENAME}; {FOREIGN}; CREATE FOREIGN TABLE {TABLE} (id int) SERVER afar": "it is a foreign table",
    f"{RENAME}; CREATE TYPE form AS (id int); CREATE TABLE {TABLE} OF form": "it is a table of the type form",
    f"CREATE TEMPORARY TABLE {TABLE} (id int)": "it is temporary",
}


@pytest.fixture
def declared(db: None, rebuilding_tables: None) -> Iterator[None]:
    """Make `Postings` and `Balances` the only subscribers. The test's changes of the database are rolled back."""
    from tests.rebuilding.domain import Balances, Postings

    with subscribers.only(Postings, Balances):
        yield


@pytest.mark.parametrize("statement", OBSTACLES)
def test_a_table_that_something_hangs_on_is_refused_and_nothing_is_left_behind(declared: None, statement: str) -> None:
    if statement == PUBLISHED_SCHEMA and connection.pg_version < 150_000:
        pytest.skip("PostgreSQL 15 or newer publishes schemas")
    plan("rebuilding.postings")
    sql(statement)
    told = re.escape(f"{TABLE}: {OBSTACLES[statement]}")
    with pytest.raises(RebuildError, match=f"^rebuilding.postings cannot be rebuilt: .*{told}"):
        rebuild("rebuilding.postings", InProcess(), nothing)
    assert schemas() == []
    assert Rebuild.objects.count() == 0


def test_what_a_user_may_not_do_is_told_with_what_would_let_him(declared: None) -> None:
    with role() as user:
        name = quoted(user)
        sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC")  # as it is from PostgreSQL 15 on
        sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}", f"SET ROLE {name}")
        try:
            with pytest.raises(RebuildError) as raised:
                plan("rebuilding.postings")
        finally:
            sql("RESET ROLE")
        ((owner, database),) = asked("SELECT current_user, current_database()")
    told = str(raised.value)
    assert f"GRANT CREATE ON DATABASE {database} TO {name}" in told
    assert f"{TABLE}: {name} is not its owner, {owner}" in told
    assert f"{TABLE}: {name} may not put tables into its schema: GRANT CREATE ON SCHEMA public TO {name}" in told


@pytest.mark.parametrize("name", [f'"public"."{TABLE}"', f'public"."{TABLE}', f'"{TABLE}"'])
def test_a_table_that_a_model_names_in_quotes_is_refused(
    declared: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Django takes such a name as it is, so handlers would find the table in use and not the one that is built."""
    monkeypatch.setattr(Posting._meta, "db_table", name)
    told = re.escape(f"{name}: its name is quoted in db_table")
    with pytest.raises(RebuildError, match=f"^rebuilding.postings cannot be rebuilt: {told}"):
        plan("rebuilding.postings")


def test_a_table_that_two_projections_write_is_refused(declared: None) -> None:
    from tests.rebuilding.domain import Postings

    class Others(Postings):
        abstract = True
        name = "rebuilding.others"

    with (
        subscribers.only(Postings, Others()),
        pytest.raises(RebuildError, match=r"rebuilding.postings and rebuilding.others both write rebuilding_posting: "),
    ):
        plan("rebuilding.postings")
