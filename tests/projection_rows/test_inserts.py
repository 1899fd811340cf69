"""New rows are inserted in arrays as ``bulk_create`` inserts them, or by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import Error, connection, models, transaction
from django.db.models.functions import Upper
from django.test.utils import CaptureQueriesContext, isolate_apps
from django.utils import timezone

from enode_django.eventing.read_models.row_inserts import RowInserts
from tests.integration.rowsapp.models import Dated, Defaulted, Kinds, Nobody, Plain, Region
from tests.projection_rows.rows import ALIAS, ODD, stored
from tests.projection_rows.test_values import PREPARED, REFUSED


def insert(rows: Sequence[models.Model]) -> bool:
    """Insert the rows. Return True if that was done in arrays: ``bulk_create`` uses Django's cursors."""
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        RowInserts(ALIAS).insert(rows)
    return not any("INSERT" in query["sql"] for query in queries)


def prepared(model: type[models.Model]) -> list[models.Model]:
    values = [
        {name: value} for name, given in PREPARED.items() for value in given if not isinstance(value, models.Value)
    ]
    return [model(aggregate_root_id=str(n), version=1, **given) for n, given in enumerate(values)]


@pytest.mark.django_db
@pytest.mark.parametrize("model", ODD)
def test_values_of_every_kind_are_inserted_as_bulk_create_inserts_them(model: type[Kinds]) -> None:
    model._base_manager.bulk_create(prepared(model))
    expected = stored(model)
    model._base_manager.all().delete()
    rows = prepared(model)
    assert insert(rows) is (model is Plain)
    assert stored(model) == expected
    assert {(row._state.adding, row._state.db) for row in rows} == {(False, ALIAS)}


@pytest.mark.django_db
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_bulk_create_refuses_is_refused_with_the_same_error(name: str) -> None:
    def error_of(write: Callable[[Sequence[models.Model]], object]) -> type[BaseException]:
        rows = [
            Plain(aggregate_root_id="a", version=1, **{name: REFUSED[name]}),
            Plain(aggregate_root_id="b", version=1),
        ]
        with pytest.raises((Error, ValueError, ValidationError)) as raised, transaction.atomic():
            write(rows)
        return raised.type

    assert error_of(insert) == error_of(Plain._base_manager.bulk_create)
    assert stored(Plain) == {}


@pytest.mark.django_db
def test_an_error_marks_the_transaction_even_if_it_is_caught() -> None:
    with transaction.atomic():
        with pytest.raises(Error):
            RowInserts(ALIAS).insert([Plain(aggregate_root_id="a", version=1, small=2**20)])
        assert connection.needs_rollback
        transaction.set_rollback(True)


@pytest.mark.django_db
def test_fields_that_are_set_when_a_row_is_made_are_set() -> None:
    row = Dated(aggregate_root_id="a", version=1)
    assert insert([row])
    assert Dated.objects.get() == row
    assert (row.created_at, row.created_on) == Dated.objects.values_list("created_at", "created_on").get()


@pytest.mark.django_db
def test_the_copy_of_a_stored_row_gets_dates_of_its_own() -> None:
    insert([Dated(aggregate_root_id="a", version=1)])
    first, copied = Dated.objects.get(), Dated.objects.get()
    copied.aggregate_root_id = "b"
    assert not insert([copied])
    assert Dated.objects.get(aggregate_root_id="b").created_at > first.created_at


@pytest.mark.django_db
@pytest.mark.parametrize(
    "make",
    [
        lambda: Defaulted(aggregate_root_id="a", name="ab", number=1, since=timezone.now()),
        lambda: Plain(aggregate_root_id="a", text=Upper(models.Value("ab"))),
        lambda: Plain(aggregate_root_id="a", region=Region.objects.get()),
        lambda: Plain(aggregate_root_id=None),
    ],
    ids=["generated", "expression", "related object", "key by default"],
)
def test_what_only_bulk_create_can_do_is_left_to_it(make: Callable[[], Any]) -> None:
    assert not insert([make()])


@pytest.mark.django_db
def test_an_unsaved_related_object_is_refused_as_bulk_create_refuses_it() -> None:
    with pytest.raises(ValueError, match="unsaved related object 'region'"):
        insert([Plain(aggregate_root_id="a", version=1, region=Region())])


@pytest.mark.django_db
@isolate_apps("tests.integration.rowsapp")
def test_models_that_save_in_their_own_way_are_left_to_bulk_create() -> None:
    class Whole(models.Model):
        class Meta:
            app_label = "rowsapp"

    class Derived(Whole):
        class Meta:
            app_label = "rowsapp"

    class Managed(models.Model):
        name = models.TextField()
        kept = Nobody()

        class Meta:
            app_label = "rowsapp"
            base_manager_name = "kept"

    class Ordered(models.Model):
        whole = models.ForeignKey(Whole, models.CASCADE)

        class Meta:
            app_label = "rowsapp"
            order_with_respect_to = "whole"

    class Counting(models.IntegerField):
        def pre_save(self, row: models.Model, add: bool) -> Any:
            return models.Value(1)

    class Counted(models.Model):
        number = Counting()

        class Meta:
            app_label = "rowsapp"

    with connection.schema_editor() as editor:
        for model in (Whole, Managed, Ordered, Counted):
            editor.create_model(model)
    whole = Whole.objects.create()
    assert not insert([Whole()])  # it has no column but its key
    assert not insert([Managed(name="a")])
    assert not insert([Ordered(whole_id=whole.pk, _order=0)])
    assert not insert([Counted()])
    for derived in (Derived(), Derived(whole_ptr_id=whole.pk)):
        with pytest.raises(ValueError, match="multi-table inherited"):
            insert([derived])


@pytest.mark.django_db
@isolate_apps("tests.integration.rowsapp")
def test_no_row_gets_the_key_of_another_if_a_trigger_drops_some() -> None:
    class Dropped(models.Model):
        name = models.TextField()

        class Meta:
            app_label = "rowsapp"

    with connection.schema_editor() as editor:
        editor.create_model(Dropped)
        editor.execute("""
            CREATE FUNCTION drop_b() RETURNS trigger LANGUAGE plpgsql
            AS $$ BEGIN RETURN CASE WHEN NEW.name <> 'b' THEN NEW END; END $$;
            CREATE TRIGGER drop_b BEFORE INSERT ON rowsapp_dropped FOR EACH ROW EXECUTE FUNCTION drop_b()
        """)
    rows = [Dropped(name=name) for name in "abc"]
    assert insert(rows)
    assert [row.pk for row in rows] == [None, None, None]
    assert list(Dropped.objects.order_by("id").values_list("name", flat=True)) == ["a", "c"]


@pytest.mark.django_db
@isolate_apps("tests.integration.rowsapp")
def test_automatic_keys_are_set_in_order_and_given_ones_are_kept() -> None:
    class Keyed(models.Model):
        name = models.TextField()

        class Meta:
            app_label = "rowsapp"

    with connection.schema_editor() as editor:
        editor.create_model(Keyed)
    rows = [Keyed(name=name) for name in "cab"]
    assert insert(rows)
    assert [row.pk for row in rows] == [Keyed.objects.get(name=name).pk for name in "cab"]
    assert not insert([Keyed(name="given", id=10**6), Keyed(name="drawn")])
    assert Keyed.objects.get(pk=10**6).name == "given"
