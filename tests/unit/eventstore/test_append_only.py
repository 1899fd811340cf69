"""Stored rows cannot be changed or deleted through the models, nor in the database if a project protects them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core import serializers
from django.core.management import call_command
from django.core.management.color import no_style
from django.db import IntegrityError, connection, models, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.test import override_settings

from enode_django.eventstore.base import Outcome
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.models import EventCorrection, EventStream, StoreGeneration
from enode_django.operations import ProtectHistory
from enode_django.testing.event_store_read_contract import refusal, stream

pytestmark = pytest.mark.django_db

WRITES: dict[str, Callable[[Any, Any], object]] = {
    "delete": lambda kept, row: kept.filter(pk=row.pk).delete(),
    "delete of all": lambda kept, row: kept.all().delete(),
    "delete by the manager": lambda kept, row: kept.delete(),
    "delete of an instance": lambda kept, row: row.delete(),
    "asynchronous delete": lambda kept, row: async_to_sync(kept.all().adelete)(),
    "update": lambda kept, row: kept.filter(pk=row.pk).update(pk=7),
    "asynchronous update": lambda kept, row: async_to_sync(kept.all().aupdate)(pk=7),
    "bulk update": lambda kept, row: kept.bulk_update([row], ["version"]),
    "save": lambda kept, row: row.save(),
    "update or create": lambda kept, row: kept.update_or_create({"version": 3}, pk=row.pk),
    "create": lambda kept, row: kept.create(),
    "get or create": lambda kept, row: kept.get_or_create(pk=-1),
    "bulk create": lambda kept, row: kept.bulk_create([row]),
    "save of a new one": lambda kept, row: type(row)().save(),
}


@pytest.fixture
def row() -> EventStream:
    PostgresEventStore().append([stream("a", 1), refusal("a", "refused")])
    return EventStream.objects.get(version=1)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_nothing_is_written_by_way_of_the_model(row: EventStream, write: Callable[[Any, Any], object]) -> None:
    before = list(EventStream.objects.order_by("pk").values_list())
    with pytest.raises(TypeError, match=r"event streams cannot be (added|changed|deleted) by Django: .*\.unprotected"):
        write(EventStream.objects, row)
    assert list(EventStream.objects.order_by("pk").values_list()) == before


@pytest.mark.parametrize("model", [EventCorrection, StoreGeneration])
def test_corrections_and_generations_stay_as_they_are_too(model: Any) -> None:
    for write in (model.objects.all().delete, lambda: model.objects.update(pk=1), model().save, model().delete):
        with pytest.raises(TypeError, match="by Django"):
            write()


def test_a_test_can_change_what_is_stored_by_the_manager_that_says_so(row: EventStream) -> None:
    assert EventStream.unprotected.filter(pk=row.pk).update(version=5) == 1
    EventStream.unprotected.bulk_create([EventStream(**stream("b", 1)._asdict())])
    assert EventStream.objects.count() == 3
    EventStream.unprotected.all().delete()
    assert not EventStream.objects.exists()


def test_other_code_reads_as_before(row: EventStream) -> None:
    assert EventStream._default_manager is EventStream.objects
    assert type(EventStream._base_manager) is models.Manager
    fresh = EventStream.objects.only("pk").get(pk=row.pk)
    fresh.refresh_from_db()
    assert (fresh.version, EventStream.objects.in_bulk([row.pk])) == (1, {row.pk: row})


def test_fixtures_are_dumped_and_loaded(row: EventStream) -> None:
    dumped = serializers.serialize("json", EventStream.objects.order_by("pk"))
    EventStream.unprotected.all().delete()
    for loaded in serializers.deserialize("json", dumped):
        loaded.save()
    assert [each.version for each in EventStream.objects.order_by("pk")] == [1, None]


@pytest.mark.parametrize("options", [[], ["--all"]], ids=["default managers", "base managers"])
def test_the_app_is_dumped_by_the_command_and_loaded(row: EventStream, options: list[str], tmp_path: Path) -> None:
    """Models without a table, such as topics, are passed over."""
    file = str(tmp_path / "app.json")
    call_command("dumpdata", "enode_django", *options, output=file)
    EventStream.unprotected.all().delete()
    call_command("loaddata", file, verbosity=0)
    assert [each.version for each in EventStream.objects.order_by("pk")] == [1, None]
    assert [each.outcome for each in PostgresEventStore().append([stream("a", 2)])] == [Outcome.STORED]


# -- in the database --------------------------------------------------------------------------------------------------


@cache
def project_state() -> ProjectState:
    return MigrationLoader(connection).project_state()


def protect(forwards: bool = True) -> None:
    state, operation = project_state(), ProtectHistory()
    with connection.schema_editor(atomic=False) as editor:
        (operation.database_forwards if forwards else operation.database_backwards)("shop", editor, state, state)


@pytest.fixture
def protected(row: EventStream) -> EventStream:
    protect()
    protect()  # a second project's migration, say
    return row


def refused(statement: str) -> bool:
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
    except IntegrityError as error:
        return "are neither changed nor deleted" in str(error)
    return False


def test_the_database_refuses_to_change_history_where_a_migration_says_so(protected: EventStream) -> None:
    PostgresEventStore().append([stream("b", 1)])
    assert PostgresEventStore().append([stream("b", 1)]) is not None
    table = EventStream._meta.db_table
    assert refused(f"UPDATE {table} SET events = ''")
    assert refused(f"DELETE FROM {table}")
    with pytest.raises(IntegrityError), transaction.atomic():
        EventStream.unprotected.all().delete()
    StoreGeneration.unprotected.bulk_create(
        [StoreGeneration(generation=7, after_sequence=0, cluster="c", begun_at=datetime.now(UTC))]
    )
    assert refused(f"DELETE FROM {StoreGeneration._meta.db_table}")
    assert EventStream.objects.count() == 3


def test_refusals_are_pruned_all_the_same_and_tables_are_emptied(protected: EventStream) -> None:
    assert not refused(f"DELETE FROM {EventStream._meta.db_table} WHERE version IS NULL")
    assert refused(f"UPDATE {EventStream._meta.db_table} SET version = NULL")
    connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), [EventStream._meta.db_table]))
    assert not EventStream.objects.exists()


def test_the_protection_can_be_taken_back(protected: EventStream) -> None:
    protect(forwards=False)
    assert not refused(f"DELETE FROM {EventStream._meta.db_table}")


@override_settings(
    DATABASE_ROUTERS=["enode_django.routers.EventStoreRouter"], ENODE={"EVENT_STORE": {"DATABASES": ["elsewhere"]}}
)
def test_a_database_without_the_streams_is_left_alone(row: EventStream) -> None:
    protect()
    assert not refused(f"DELETE FROM {EventStream._meta.db_table}")
