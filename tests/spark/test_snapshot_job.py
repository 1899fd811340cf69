"""The snapshot job in Spark's own processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import override_settings
from pyspark.sql import SparkSession

from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import ConfigurationError
from enode_django.models import Snapshot
from enode_django.spark.archive import export_events
from enode_django.spark.snapshot_job import build_snapshots
from tests.spark.accounts import ACCOUNT, account, poison

pytestmark = pytest.mark.django_db(transaction=True)

Rows = list[tuple[object, ...]]


@pytest.fixture
def store(transactional_db: None) -> PostgresEventStore:
    return PostgresEventStore()


class Told:
    def __init__(self) -> None:
        self.stages: list[str] = []

    def __call__(self, stage: str, /, **figures: object) -> None:
        self.stages.append(stage)


def rows() -> Rows:
    fields = ("aggregate_root_id", "aggregate_root_type", "version", "fingerprint", "payload")
    return [tuple(map(bytes_of, row)) for row in Snapshot.objects.order_by("aggregate_root_id").values_list(*fields)]


def bytes_of(value: object) -> object:
    return bytes(value) if isinstance(value, memoryview) else value


def made_in_one_thread() -> Rows:
    Snapshot.objects.all().delete()
    with pytest.raises(SystemExit):
        call_command("buildsnapshots", verbosity=0)
    found = rows()
    Snapshot.objects.all().delete()
    return found


def staging_tables() -> int:
    with connection.cursor() as cursor:
        cursor.execute(r"SELECT count(*) FROM pg_class WHERE relname LIKE 'enode\_staging%'")
        return int(cursor.fetchone()[0])


def test_it_makes_what_buildsnapshots_makes(spark: SparkSession, store: PostgresEventStore, tmp_path: Path) -> None:
    """From the store, and from an archive of most of it."""
    store.append([one for n in range(40) for one in account(f"due{n:02}", range(1, 101))])
    store.append([*account("young", range(1, 100)), *account("bad", range(1, 150)), poison("bad", 150)])
    export_events(spark, str(tmp_path), Told())
    store.append([*account("due00", range(101, 131)), *account("later", range(1, 201)), *account("young", [100])])
    expected = made_in_one_thread()
    assert len(expected) == 42

    told = Told()
    figures = build_snapshots(spark, None, told)
    assert rows() == expected
    assert (figures["made"], figures["failed"]) == ({ACCOUNT: 42}, 1)
    ((name, id, reason),) = figures["failures"]
    assert (name, id) == (ACCOUNT, "bad")
    assert reason.startswith("MalformedMessage: ")
    assert told.stages == ["making"]
    assert staging_tables() == 0

    assert build_snapshots(spark, [ACCOUNT], Told())["made"] == {}, "nothing is due any more"

    Snapshot.objects.all().delete()
    figures = build_snapshots(spark, None, Told(), archive=str(tmp_path))
    assert rows() == expected
    assert (figures["made"], figures["failed"]) == ({ACCOUNT: 42}, 1)


def test_switched_off_it_says_so(spark: SparkSession) -> None:
    with (
        override_settings(ENODE={"SNAPSHOTS": {"ENABLED": False}}),
        pytest.raises(ConfigurationError, match="switched off"),
    ):
        build_snapshots(spark, None, Told())
