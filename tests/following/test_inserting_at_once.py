"""Inserted rows wait in the connection of one batch only."""

from __future__ import annotations

import threading

from django.db import connection, transaction

from enode_django.databases import StatementsWait
from enode_django.eventing.read_models.row_inserts import RowInserts
from enode_django.eventing.read_models.waiting_inserts import insert, inserts_wait
from tests.following.harness import Harness
from tests.following.inserting import waits
from tests.following.lines import Named
from tests.integration.store_sessions import database_alias


def test_only_inserts_of_the_projections_database_wait(harness: Harness, line_tables: None) -> None:
    with database_alias("second") as second, transaction.atomic(using=second):
        with transaction.atomic(), inserts_wait(RowInserts(second)):
            insert(Named(name="elsewhere"), "default")
            assert not waits()
            insert(Named(name="here"), second)
            assert waits(second)
            assert Named.objects.using(second).count() == 1
            transaction.set_rollback(True)
        transaction.set_rollback(True, using=second)


def test_other_threads_insert_at_once(harness: Harness, line_tables: None) -> None:
    def elsewhere() -> None:
        insert(Named(name="elsewhere"), "default")
        connection.close()

    with transaction.atomic(), inserts_wait(RowInserts("default")):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(60)
        assert not waits()
    Named.objects.all().delete()


def test_after_an_inner_block_rows_of_the_outer_one_wait_again(harness: Harness, line_tables: None) -> None:
    with transaction.atomic():
        with inserts_wait(RowInserts("default")):
            with inserts_wait(RowInserts("default")):
                insert(Named(name="inner"), "default")
            insert(Named(name="outer"), "default")
            assert connection.connection.execute("SELECT name FROM following_named").fetchall() == [("inner",)]
        assert Named.objects.count() == 2
        transaction.set_rollback(True)


def test_after_the_block_nothing_waits_whatever_a_handler_left_behind(harness: Harness, line_tables: None) -> None:
    left = connection.execute_wrapper(lambda execute, *rest: execute(*rest))
    with transaction.atomic():
        with inserts_wait(RowInserts("default")):
            left.__enter__()
            insert(Named(name="in"), "default")
        assert not any(isinstance(wrapper, StatementsWait) for wrapper in connection.execute_wrappers)
        left.__exit__(None, None, None)
        assert not waits()
        transaction.set_rollback(True)
