"""Rows that handlers create one by one are inserted together, and nobody can tell but by the clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, connection, connections, models, transaction
from django.db.models import F, Value
from django.db.models.functions import Now, Upper
from django.db.models.signals import post_save, pre_save
from django.db.transaction import TransactionManagementError
from pytest_django import DjangoDbBlocker

from enode_django.databases import StatementsWait, execute
from enode_django.eventing import deferring
from enode_django.eventing.deferring import ROWS_MAX, DeferredInserts, is_hook_known
from enode_django.eventing.registry import subscribers
from enode_django.eventing.rows import RowTable
from enode_django.eventing.work import Work
from enode_django.runtime import make_applier
from tests.following import lines
from tests.following.domain import Added, CounterRow
from tests.following.harness import Harness
from tests.following.lines import WAITING, Colour, Line, Lines, LinesAtOnce, Named, Part, Shelf
from tests.integration.store_sessions import database_alias

Script = Callable[[Added], object]
Run = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def line_tables(following_tables: None, django_db_blocker: DjangoDbBlocker) -> None:
    with django_db_blocker.unblock(), connection.schema_editor() as editor:
        for model in WAITING:
            editor.create_model(model)


@pytest.fixture
def run(harness: Harness, line_tables: None) -> Iterator[Run]:
    """Let one handler see an event of each of these aggregates, in one batch; returns what failed, by aggregate."""
    for model in reversed(WAITING):
        model._base_manager.all().delete()

    def run(script: Script, *ids: str, projection: type[Lines] = Lines) -> dict[str, str]:
        subscriber: Any = subscribers.instance(projection)
        subscriber.script = script
        ids = ids or ("a", "b", "c")
        follower = harness.follower(subscriber, attempts=1)
        harness.deliver(follower, [record for id in ids for record in harness.stored(id, Added(amount=5))])
        failed = {parked.aggregate_root_id: parked.error for parked in harness.parked(subscriber.name)}
        for id in ids:
            assert harness.checkpoint(subscriber.name, id) == (0 if id in failed else 1)
        return failed

    yield run
    for model in reversed(WAITING):
        model._base_manager.all().delete()


def statements(model: type[models.Model]) -> int:
    """How many statements have inserted the rows that there are."""
    table = model._meta.db_table
    (row,) = execute("default", f"SELECT count(DISTINCT (xmin::text, cmin::text)) FROM {table}", ()).fetchall()
    return int(row[0])


def a_line(event: Added, **values: Any) -> Line:
    return Line.objects.create(account=event.aggregate_root_id, **values)


def accounts() -> list[str]:
    return list(Line.objects.order_by("account", "version").values_list("account", flat=True))


def test_what_handlers_create_one_by_one_is_inserted_in_one_statement(run: Run) -> None:
    made: list[Line] = []
    assert run(lambda event: made.append(a_line(event, amount=event.amount))) == {}
    assert accounts() == ["a", "b", "c"]
    assert statements(Line) == 1
    keys = [line.pk for line in made]
    assert keys == sorted(set(keys)) == [line.pk for line in Line.objects.order_by("account")]
    assert not any(line._state.adding for line in made)
    after = Line.objects.create(account="later")
    assert after.pk > keys[-1]


def test_a_projection_can_have_each_row_inserted_at_once(run: Run) -> None:
    assert run(a_line, projection=LinesAtOnce) == {}
    assert accounts() == ["a", "b", "c"]
    assert statements(Line) == 3


def test_a_batch_of_one_aggregate_inserts_at_once(run: Run) -> None:
    def two(event: Added) -> None:
        a_line(event)
        a_line(event, version=2)

    assert run(two, "a") == {}
    assert statements(Line) == 2


def test_rows_are_sent_before_there_are_too_many(run: Run) -> None:
    def many(event: Added) -> None:
        for version in range(ROWS_MAX):
            a_line(event, version=version)

    assert run(many, "a", "b") == {}
    assert Line.objects.count() == 2 * ROWS_MAX
    assert statements(Line) == 2


# -- looking at what waits ----------------------------------------------------------------------------------------


def by_raw_sql(line: Line) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM following_line WHERE id = %s", [line.pk])
        return int(cursor.fetchone()[0])


def by_many_statements(line: Line) -> int:
    with connection.cursor() as cursor:
        cursor.executemany("UPDATE following_line SET note = %s WHERE id = %s", [("x", line.pk)])
        return int(cursor.rowcount)


def by_saving_again(line: Line) -> int:
    line.note = "changed"
    line.save(force_update=True)
    return 1


def by_refreshing(line: Line) -> int:
    line.refresh_from_db()
    return 1


def by_getting_or_creating(line: Line) -> int:
    found, created = Line.objects.get_or_create(account=line.account)
    return int(found == line and not created)


def by_a_lost_update_or_create(line: Line) -> int:
    return int(not Line.objects.update_or_create(account=line.account, defaults={"note": "again"})[1])


def by_creating_in_bulk(line: Line) -> int:
    return (
        len(Line.objects.bulk_create([Line(account=line.account)], ignore_conflicts=True)) * Line.objects.count() and 1
    )


@pytest.mark.parametrize(
    "look",
    [
        lambda line: Line.objects.filter(account=line.account).count(),
        lambda line: Line.objects.filter(pk=line.pk).update(note="x"),
        lambda line: sum(1 for _ in Line.objects.filter(pk=line.pk).iterator()),
        lambda line: execute("default", "SELECT 1 FROM following_line WHERE id = %s", (line.pk,)).rowcount,
        by_raw_sql,
        by_many_statements,
        by_saving_again,
        by_refreshing,
        by_getting_or_creating,
        by_a_lost_update_or_create,
        by_creating_in_bulk,
    ],
)
def test_a_handler_finds_what_it_has_just_created(run: Run, look: Callable[[Line], int]) -> None:
    found: list[int] = []
    assert run(lambda event: found.append(look(a_line(event)))) == {}
    assert found == [1, 1, 1]
    assert accounts() == ["a", "b", "c"]


def test_a_handler_deletes_what_it_has_just_created(run: Run) -> None:
    assert run(lambda event: a_line(event).delete()) == {}
    assert accounts() == []


def test_rows_of_a_model_projection_are_read_behind_what_waits(harness: Harness, line_tables: None) -> None:
    with transaction.atomic():
        with DeferredInserts([Named], "default").wait():
            Named.objects.create(name="n")
            assert waits()
            RowTable(CounterRow, "default").versions(["n"])
            assert not waits()
        transaction.set_rollback(True)


def test_receivers_of_signals_find_the_row_and_can_change_it_before(run: Run) -> None:
    found: list[str] = []

    def before(instance: Line, **_: Any) -> None:
        instance.note = "set by a receiver"

    def after(instance: Line, created: bool, **_: Any) -> None:
        assert created
        found.extend(Line.objects.filter(pk=instance.pk).values_list("note", flat=True))

    pre_save.connect(before, sender=Line)
    post_save.connect(after, sender=Line)
    try:
        assert run(a_line) == {}
    finally:
        pre_save.disconnect(before, sender=Line)
        post_save.disconnect(after, sender=Line)
    assert found == ["set by a receiver"] * 3


# -- errors -------------------------------------------------------------------------------------------------------


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
        works.append(Work(id, "following.Counter"))
        for record in harness.stored(id, Added(amount=5)):
            works[-1].add(record)
    subscriber: Any = subscribers.instance(Lines)
    subscriber.script = a_line
    progress = make_applier(subscriber, harness.store, lambda commands: None).apply(works, 10)
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
    inserts = DeferredInserts([Named], "default")
    with transaction.atomic():
        with suppress(TransactionManagementError), inserts.wait():
            Named.objects.create(name="n")
            transaction.set_rollback(True)
            with pytest.raises(TransactionManagementError):
                Named.objects.count()
            with pytest.raises(TransactionManagementError):
                Named.objects.create(name="m")
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


# -- values -------------------------------------------------------------------------------------------------------

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "values",
    [
        {"amount": Decimal("1.005")},
        {"amount": 3, "note": Colour.RED},
        {"amount": "2.5", "note": 5},
        {"amount": 1.5, "version": True},
        {"data": {"a": [1, None]}, "booked_at": NOON},
        {"data": Value(None, models.JSONField())},
        {"data": "text", "booked_at": "2026-03-29 12:00:00+02:00"},
        {"id": 10**9},
        {"id": str(10**9)},
        {"note": Upper(Value("x"))},
        {"booked_at": Now() - Now() + Value(NOON)},
    ],
)
def test_rows_are_what_each_alone_would_be(run: Run, values: dict[str, Any]) -> None:
    def create(event: Added) -> None:
        if event.aggregate_root_id == "b":
            made.append(a_line(event, **values))
        else:
            a_line(event)

    stored, made = [], list[Line]()
    for projection in (Lines, LinesAtOnce):
        assert run(create, projection=projection) == {}
        row = Line.objects.filter(account="b").values().get()
        assert made[-1].pk == row["id"]
        del row["made_at"]
        stored.append(row if "id" in values else {**row, "id": None})
        Line.objects.all().delete()
    assert stored[0] == stored[1]


def test_an_expression_that_cannot_be_inserted_is_the_handlers_error(run: Run) -> None:
    failed = run(lambda event: a_line(event, note=F("account") if event.aggregate_root_id == "b" else ""))
    assert list(failed) == ["b"]
    assert "F() expressions" in failed["b"]
    assert accounts() == ["a", "c"]


def test_what_a_handler_changes_after_creating_a_row_is_not_stored(run: Run) -> None:
    def change(event: Added) -> None:
        data = {"list": [1]}
        line = a_line(event, data=data)
        data["list"].append(2)
        line.note = "not saved"

    assert run(change) == {}
    assert statements(Line) == 1
    assert {(str(line.data), line.note) for line in Line.objects.all()} == {("{'list': [1]}", "")}


def test_keys_may_be_natural_or_made_by_default_and_rows_refer_to_each_other(run: Run) -> None:
    def family(event: Added) -> None:
        line = a_line(event)
        shelf, _ = Shelf.objects.get_or_create(number=1)
        whole = Part.objects.create(line=line, shelf=shelf)
        Part.objects.create(line=line, whole=whole)
        Named(name=event.aggregate_root_id, number=line.pk).save(force_insert=True)

    assert run(family) == {}
    assert {part.whole.line.account for part in Part.objects.exclude(whole=None) if part.whole} == {"a", "b", "c"}
    assert {named.name: named.number for named in Named.objects.all()} == {
        line.account: line.pk for line in Line.objects.all()
    }
    assert Part.objects.filter(shelf=1).count() == 3


def test_choices_and_keys_of_several_types_wait(run: Run) -> None:
    Shelf.objects.create(number=1)
    first = Line.objects.create(account="first")

    def create(event: Added) -> None:
        a_line(event, note=Colour.RED if event.aggregate_root_id == "b" else "blue")
        Part.objects.create(line=first, shelf_id=1 if event.aggregate_root_id == "b" else None)

    assert run(create) == {}
    assert statements(Line) == 2, "one of them is the first line"
    assert statements(Part) == 1


# -- what does not wait -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", lines.NOT_WAITING)
def test_these_models_are_inserted_at_once(model: type[models.Model]) -> None:
    assert not DeferredInserts([model], "default").tables


def test_these_models_wait_however_often_they_are_listed() -> None:
    for _ in range(2):
        assert list(DeferredInserts(WAITING, "default").tables) == list(WAITING)


def test_the_installed_django_inserts_in_the_way_that_is_hooked_into() -> None:
    assert is_hook_known()


def test_with_another_django_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferring, "DO_INSERT", lambda self, manager, using, fields, returning: None)
    assert not DeferredInserts(WAITING, "default").tables


def test_a_table_with_a_trigger_is_inserted_into_row_by_row(run: Run) -> None:
    execute(
        "default", "CREATE FUNCTION following_touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'", ()
    )
    execute("default", "CREATE TRIGGER touch BEFORE INSERT ON following_line EXECUTE FUNCTION following_touch()", ())
    try:
        assert run(a_line) == {}
        assert statements(Line) == 3
    finally:
        execute("default", "DROP FUNCTION following_touch CASCADE", ())


def test_a_table_without_a_sequence_of_its_own_is_inserted_into_row_by_row(run: Run) -> None:
    execute("default", "CREATE SEQUENCE following_foreign", ())
    execute("default", "ALTER TABLE following_line ALTER id DROP IDENTITY", ())
    execute("default", "ALTER TABLE following_line ALTER id SET DEFAULT nextval('following_foreign')", ())
    try:
        assert run(a_line) == {}
        assert statements(Line) == 3
        assert sorted(Line.objects.values_list("pk", flat=True)) == [1, 2, 3]
    finally:
        Line.objects.all().delete()
        execute("default", "ALTER TABLE following_line ALTER id DROP DEFAULT", ())
        execute("default", "ALTER TABLE following_line ALTER id ADD GENERATED BY DEFAULT AS IDENTITY", ())
        execute("default", "DROP SEQUENCE following_foreign", ())


def test_a_user_who_may_not_draw_ids_inserts_at_once(harness: Harness, line_tables: None) -> None:
    with transaction.atomic():
        execute("default", "CREATE ROLE following_guest", ())
        execute("default", "GRANT SELECT, INSERT ON following_line TO following_guest", ())
        execute("default", "SET LOCAL ROLE following_guest", ())
        with DeferredInserts([Line], "default").wait():
            made = [Line.objects.create(account="a", version=version) for version in range(3)]
            assert [line.pk for line in made] == [made[0].pk + version for version in range(3)]
        assert statements(Line) == 3
        transaction.set_rollback(True)


def waits(alias: str = "default") -> bool:
    """Whether there is a row that the database has not been sent."""
    (known,) = connections[alias].connection.execute("SELECT count(*) FROM following_named").fetchone()
    return bool(known == 0)


def test_only_inserts_of_the_projections_database_wait(harness: Harness, line_tables: None) -> None:
    with database_alias("second") as second, transaction.atomic(using=second):
        inserts = DeferredInserts([Named], second)
        with transaction.atomic(), inserts.wait():
            Named.objects.create(name="elsewhere")
            assert not waits()
            Named.objects.using(second).create(name="here")
            assert waits(second)
            assert Named.objects.using(second).count() == 1
            transaction.set_rollback(True)
        transaction.set_rollback(True, using=second)


def test_other_threads_insert_at_once(harness: Harness, line_tables: None) -> None:
    def elsewhere() -> None:
        Named.objects.create(name="elsewhere")
        connection.close()

    with transaction.atomic(), DeferredInserts([Named], "default").wait():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(60)
        assert not waits()
    Named.objects.all().delete()


def test_fixtures_are_inserted_at_once(harness: Harness, line_tables: None) -> None:
    with transaction.atomic():
        with DeferredInserts([Named], "default").wait():
            Named(name="raw").save_base(raw=True, force_insert=True)
            assert not waits()
        transaction.set_rollback(True)


def test_after_the_block_nothing_waits_whatever_a_handler_left_behind(harness: Harness, line_tables: None) -> None:
    left = connection.execute_wrapper(lambda execute, *rest: execute(*rest))
    with transaction.atomic():
        with DeferredInserts([Named], "default").wait():
            left.__enter__()
            Named.objects.create(name="in")
        assert not any(isinstance(wrapper, StatementsWait) for wrapper in connection.execute_wrappers)
        left.__exit__(None, None, None)
        assert not waits()
        transaction.set_rollback(True)


def test_a_row_that_is_saved_again_without_its_key_is_another_one(run: Run) -> None:
    def twice(event: Added) -> None:
        line = a_line(event)
        line.pk, line.version = None, 2
        line.save()

    assert run(twice) == {}
    assert Line.objects.values_list("pk", flat=True).distinct().count() == 6
    assert statements(Line) == 1
