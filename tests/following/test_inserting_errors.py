"""An error of a row that waits fails its own aggregate, and no other rows are lost."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from enode_django.eventing.pending import PendingAggregate
from enode_django.eventing.read_models.row_inserts import RowInserts
from enode_django.eventing.read_models.waiting_inserts import insert, inserts_wait
from enode_django.eventing.registry import subscribers
from enode_django.runtime import make_processor
from tests.following.domain import Added
from tests.following.harness import Harness
from tests.following.inserting import Run, a_line, accounts, waits
from tests.following.lines import Line, Lines, Named


def test_only_the_aggregate_that_breaks_a_constraint_fails_with_its_own_error(run: Run) -> None:
    Line.objects.create(account="b")
    failed = run(a_line)
    assert list(failed) == ["b"]
    assert "following_line_version" in failed["b"]
    assert "in a_line" in failed["b"], "it is not its own traceback"
    assert accounts() == ["a", "b", "c"]
    assert len(set(Line.objects.values_list("pk", flat=True))) == 3


def test_the_others_of_the_batch_go_on_in_the_same_call(harness: Harness, run: Run) -> None:
    Line.objects.create(account="b")
    works = []
    for id in ("a", "b", "c"):
        works.append(PendingAggregate(id, "following.Counter"))
        for record in harness.stored(id, Added(amount=5)):
            works[-1].add(record)
    subscriber: Any = subscribers.instance(Lines)
    subscriber.script = a_line
    processor = make_processor(subscriber, harness.store, lambda commands: None)
    progress = processor.apply(works, 10, even_parked=False)
    assert {id: one.version for id, one in progress.items()} == {"a": 1, "b": 0, "c": 1}
    assert [id for id, one in progress.items() if one.failure] == ["b"]


def test_a_value_that_does_not_fit_fails_its_own_aggregate(run: Run) -> None:
    failed = run(lambda event: a_line(event, note="x" * (21 if event.aggregate_root_id == "b" else 20)))
    assert list(failed) == ["b"]
    assert accounts() == ["a", "c"]


def test_a_null_that_is_refused_fails_its_own_aggregate(run: Run) -> None:
    assert list(run(lambda event: a_line(event, note=None if event.aggregate_root_id == "b" else ""))) == ["b"]
    assert accounts() == ["a", "c"]


def swallow(event: Added) -> None:
    with suppress(IntegrityError):
        a_line(event)


def test_an_error_that_a_handler_swallows_is_no_success(run: Run) -> None:
    Line.objects.create(account="b")
    assert list(run(swallow)) == ["b"]
    assert accounts() == ["a", "b", "c"]


def test_a_swallowed_error_of_a_later_statement_loses_no_rows(run: Run) -> None:
    Line.objects.create(account="b")

    def swallow_of_query(event: Added) -> None:
        a_line(event)
        with suppress(IntegrityError):
            Named.objects.count()

    assert list(run(swallow_of_query, "a", "b", "c", "d")) == ["b"]
    assert accounts() == ["a", "b", "c", "d"]


def test_a_late_error_that_is_swallowed_in_an_inner_block_loses_no_rows(run: Run) -> None:
    Line.objects.create(account="b")

    def swallow_late(event: Added) -> None:
        with transaction.atomic():
            a_line(event)
            with suppress(IntegrityError):
                Named.objects.count()

    assert list(run(swallow_late)) == ["b"]
    assert accounts() == ["a", "b", "c"]


def test_in_a_broken_transaction_nothing_is_sent_and_nothing_taken(harness: Harness, line_tables: None) -> None:
    with transaction.atomic():
        with suppress(TransactionManagementError), inserts_wait(RowInserts("default")):
            insert(Named(name="n"), "default")
            transaction.set_rollback(True)
            with pytest.raises(TransactionManagementError):
                Named.objects.count()
            with pytest.raises(TransactionManagementError):
                insert(Named(name="m"), "default")
            assert waits()
        transaction.set_rollback(True)


def test_a_handler_may_catch_the_error_of_an_inner_block(run: Run) -> None:
    Line.objects.create(account="b", note="first")

    def once(event: Added) -> None:
        Named.objects.create(name=event.aggregate_root_id)
        try:
            with transaction.atomic():
                a_line(event, note="second")
        except IntegrityError:
            Named.objects.create(name=f"not {event.aggregate_root_id}")

    assert run(once) == {}
    assert accounts() == ["a", "b", "c"]
    assert Line.objects.get(account="b").note == "first"
    assert {named.name for named in Named.objects.all()} == {"a", "b", "c", "not b"}


def test_an_inner_block_that_is_rolled_back_takes_only_its_own_rows_along(run: Run) -> None:
    def half(event: Added) -> None:
        a_line(event)
        with suppress(LookupError), transaction.atomic():
            a_line(event, version=2)
            raise LookupError
        a_line(event, version=3)
        point = transaction.savepoint()
        a_line(event, version=4)
        transaction.savepoint_rollback(point)

    assert run(half) == {}
    assert [line.version for line in Line.objects.order_by("account", "version")] == [1, 3] * 3


def test_a_handler_that_breaks_the_transaction_fails(run: Run) -> None:
    def broken(event: Added) -> None:
        a_line(event)
        if event.aggregate_root_id == "b":
            with suppress(LookupError), transaction.atomic(savepoint=False):
                raise LookupError

    assert list(run(broken)) == ["b"]
    assert accounts() == ["a", "c"]


def test_a_handler_that_raises_after_others_created_rows(run: Run) -> None:
    def fail(event: Added) -> None:
        a_line(event)
        if event.aggregate_root_id == "c":
            raise LookupError("told to fail")

    assert list(run(fail)) == ["c"]
    assert accounts() == ["a", "b"]


def test_a_single_stream_is_handled_without_a_savepoint(run: Run) -> None:
    def create(event: Added) -> None:
        Line.objects.create(account=event.aggregate_root_id)

    with CaptureQueriesContext(connection) as queries:
        assert run(create, "a") == {}
    assert any("following_line" in query["sql"] for query in queries)
    assert not [query["sql"] for query in queries if "SAVEPOINT" in query["sql"]]


def test_the_handler_of_a_single_stream_that_fails_is_called_once(run: Run) -> None:
    called: list[str] = []

    def fail(event: Added) -> None:
        a_line(event)
        called.append(event.aggregate_root_id)
        raise LookupError("no such thing")

    failed = run(fail, "a")
    assert "no such thing" in failed["a"]
    assert (called, accounts()) == (["a"], [])


@pytest.mark.parametrize("swallows", [False, True])
def test_a_single_stream_fails_with_the_error_of_its_own_row(run: Run, swallows: bool) -> None:
    """An insert that has waited fails at a later statement, whose error the handler may swallow."""
    Line.objects.create(account="b")

    def script(event: Added) -> None:
        a_line(event)
        with suppress(IntegrityError) if swallows else nullcontext():
            Named.objects.count()

    failed = run(script, "b")
    assert "following_line_version" in failed["b"]
    assert "in a_line" in failed["b"], "it is not its own traceback"
