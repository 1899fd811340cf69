"""Rows of projections are locked in one order, in a transaction."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from psycopg.errors import LockNotAvailable

from enode_django.eventing.read_models.keyed_rows import KeyedRowTable
from enode_django.eventing.read_models.rows import RowTable
from tests.integration.rowsapp.models import (
    Bare,
    WithArray,
)
from tests.integration.store_sessions import Call, bare_session, database_alias
from tests.projection_rows.rows import put, table


def keyed_table(alias: str) -> KeyedRowTable[Any]:
    model: type[Any] = Bare
    return KeyedRowTable(model, alias, [model._meta.get_field("aggregate_root_id")], "some")


@pytest.mark.django_db(transaction=True)
def test_rows_are_neither_locked_nor_written_outside_of_a_transaction() -> None:
    bare = table(Bare)
    calls = [
        lambda: bare.load_locked(["a"]),
        lambda: bare.store([Bare(aggregate_root_id="a", version=1)]),
        lambda: bare.delete({"a": 1}),
    ]
    for call in calls:
        with pytest.raises(TransactionManagementError, match="outside of a transaction"):
            call()
    assert bare.versions(["a"]) == {}


@pytest.mark.django_db
@pytest.mark.parametrize("write", ["store", "copy"])
@pytest.mark.parametrize("model", [pytest.param(Bare, id="in arrays"), pytest.param(WithArray, id="as values")])
def test_a_transaction_that_will_be_rolled_back_takes_no_rows(model: type[Any], write: str) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            getattr(table(model), write)([model(aggregate_root_id="a", version=1)])


@pytest.mark.django_db(transaction=True)
def test_only_inserts_are_prepared(emptied: None) -> None:
    with database_alias("preparing", OPTIONS={"prepare_threshold": 0}) as alias:
        for model in (Bare, WithArray):
            rows: RowTable[Any] = RowTable(model, alias)
            with transaction.atomic(using=alias):
                rows.store([model(aggregate_root_id="a", version=1)])
                rows.load_locked(["a"])
                rows.versions(["a"])
                rows.delete({"a": 1})
        query = "SELECT statement FROM pg_prepared_statements WHERE statement LIKE %s"
        found = connections[alias].connection.execute(query, (f"%{Bare._meta.db_table}%",), prepare=False).fetchall()
        assert [statement.split()[0] for (statement,) in found] == ["INSERT"]  # others would keep a plan for few rows


@pytest.mark.django_db(transaction=True)
def test_two_sessions_take_their_locks_in_one_order_and_none_is_lost(emptied: None) -> None:
    ids = [f"{n:03}" for n in range(50)]
    with transaction.atomic():
        table(Bare).store([Bare(aggregate_root_id=id, version=0) for id in ids])

    def count(alias: str, order: list[str]) -> None:
        rows: RowTable[Any] = RowTable(Bare, alias)
        for _ in range(40):
            with transaction.atomic(using=alias):
                found = rows.load_locked(order)
                for row in found.values():
                    row.version += 1
                assert rows.store([found[id] for id in order]) == len(order)

    with database_alias("one"), database_alias("other"):
        calls = [Call(lambda: count("one", ids)), Call(lambda: count("other", ids[::-1]))]
        for call in calls:
            call.result()
    assert set(table(Bare).versions(ids).values()) == {80}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", ["locking", "making", "locking by keys"])
def test_rows_are_locked_in_the_order_of_their_ids(emptied: None, way: str) -> None:
    makes_rows = way == "making"
    if not makes_rows:
        put(Bare, "b", 1)
        put(Bare, "a", 1)

    def take() -> None:
        with transaction.atomic(using="waiting"):
            rows: RowTable[Any] = RowTable(Bare, "waiting")
            if makes_rows:
                rows.store([Bare(aggregate_root_id=id, version=1) for id in "ba"])
            elif way == "locking":
                rows.load_locked(["b", "a"])
            else:
                keyed_table("waiting").lock(["b", "a"])

    with (
        database_alias("waiting", OPTIONS={"application_name": "waiting"}),
        bare_session() as observer,
        bare_session(options="-c lock_timeout=60s") as third,
    ):
        with transaction.atomic():
            if makes_rows:
                table(Bare).store([Bare(aggregate_root_id="a", version=1)])
            else:
                table(Bare).load_locked(["a"])
            call = Call(take)
            call.wait_for_a_lock(observer, "waiting")
            third.execute(f"INSERT INTO {Bare._meta.db_table} VALUES ('b', 1) ON CONFLICT DO NOTHING")
            third.execute(f"SELECT FROM {Bare._meta.db_table} WHERE aggregate_root_id = 'b' FOR UPDATE")
            third.rollback()
        call.result()


@pytest.mark.django_db(transaction=True)
def test_a_locked_row_is_waited_for_and_then_seen_as_it_was_committed(emptied: None) -> None:
    put(Bare, "a", 1)

    def load() -> int:
        with transaction.atomic(using="waiting"):
            return int(RowTable(Bare, "waiting").load_locked(["a"])["a"].version)

    with database_alias("waiting", OPTIONS={"application_name": "waiting"}), bare_session() as observer:
        with transaction.atomic():
            row = table(Bare).load_locked(["a"])["a"]
            call = Call(load)
            call.wait_for_a_lock(observer, "waiting")
            row.version = 2
            table(Bare).store([row])
        assert call.result() == 2


@pytest.mark.django_db(transaction=True)
def test_a_key_whose_row_is_deleted_while_its_lock_is_waited_for_is_locked_without_a_row(emptied: None) -> None:
    put(Bare, "a", 1)

    def take() -> None:
        with transaction.atomic(using="waiting"):
            assert keyed_table("waiting").lock(["a"]) == {}
            with pytest.raises(LockNotAvailable), transaction.atomic(using="impatient"):
                keyed_table("impatient").lock(["a"])

    with (
        database_alias("waiting", OPTIONS={"application_name": "waiting"}),
        database_alias("impatient", OPTIONS={"options": "-c lock_timeout=50ms"}),
        bare_session() as observer,
    ):
        with transaction.atomic():
            keyed_table("default").delete(["a"])
            call = Call(take)
            call.wait_for_a_lock(observer, "waiting")
        call.result()


@pytest.mark.django_db(transaction=True)
def test_two_that_make_the_same_rows_keep_the_higher_versions(emptied: None) -> None:
    def store() -> int:
        with transaction.atomic(using="waiting"):
            return RowTable(Bare, "waiting").store(
                [Bare(aggregate_root_id=id, version=v) for id, v in (("b", 1), ("a", 3))]
            )

    with database_alias("waiting", OPTIONS={"application_name": "waiting"}), bare_session() as observer:
        with transaction.atomic():
            table(Bare).store([Bare(aggregate_root_id=id, version=2) for id in "ba"])
            call = Call(store)
            call.wait_for_a_lock(observer, "waiting")
        assert call.result() == 1
    assert table(Bare).versions(["a", "b"]) == {"a": 3, "b": 2}
