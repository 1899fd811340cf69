"""The snapshot job in Spark's own processes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings
from pyspark.sql import SparkSession

from enode_django.batch import KINDS
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import ConfigurationError, JobCancelled
from enode_django.jobs.running import running_job
from enode_django.models import Snapshot
from enode_django.spark import progress
from enode_django.spark.archive import export_events
from enode_django.spark.snapshot_job import build_snapshots
from tests.integration.running import other_session
from tests.jobs.test_stopping import cancel_when, is_somebody_waiting
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
        call_command("enode", "buildsnapshots", verbosity=0)
    found = rows()
    Snapshot.objects.all().delete()
    return found


def staging_tables() -> int:
    with connection.cursor() as cursor:
        cursor.execute(r"SELECT count(*) FROM pg_class WHERE relname LIKE 'enode\_staging%'")
        return int(cursor.fetchone()[0])


def test_it_makes_what_buildsnapshots_makes(spark: SparkSession, store: PostgresEventStore, tmp_path: Path) -> None:
    """The job reads the store, or an archive of most of it."""
    store.append([one for n in range(10) for one in account(f"due{n:02}", range(1, 101))])
    store.append([*account("young", range(1, 100)), *account("bad", range(1, 150)), poison("bad", 150)])
    export_events(spark, str(tmp_path), Told())
    store.append([*account("due00", range(101, 131)), *account("later", range(1, 201)), *account("young", [100])])
    expected = made_in_one_thread()
    assert len(expected) == 12

    told = Told()
    figures = build_snapshots(spark, None, told)
    assert rows() == expected
    assert (figures["made"], figures["failed"]) == ({ACCOUNT: 12}, 1)
    ((name, id, reason),) = figures["failures"]
    assert (name, id) == (ACCOUNT, "bad")
    assert reason.startswith("MalformedMessage: ")
    assert told.stages[0] == "making"
    assert staging_tables() == 0

    out, err = io.StringIO(), io.StringIO()
    with pytest.raises(SystemExit):
        call_command("enode", "buildsnapshots", "--spark", "--type", ACCOUNT, stdout=out, stderr=err, no_color=True)
    assert out.getvalue().splitlines()[-1] == "0 snapshots made, 1 aggregates failed", "nothing is due any more"
    assert err.getvalue() == f"{ACCOUNT} 'bad': {reason}\n"

    Snapshot.objects.all().delete()
    figures = build_snapshots(spark, None, Told(), archive=str(tmp_path))
    assert rows() == expected
    assert (figures["made"], figures["failed"]) == ({ACCOUNT: 12}, 1)


def test_switched_off_it_says_so(spark: SparkSession) -> None:
    with (
        override_settings(ENODE={"SNAPSHOTS": {"ENABLED": False}}),
        pytest.raises(ConfigurationError, match="switched off"),
    ):
        build_snapshots(spark, None, Told())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--spark", "--dry-run"], "leave out --spark"),
        (["--spark", "--verify", "3"], "leave out --spark"),
        (["--master", "local"], "need --spark"),
        (["--archive", "somewhere"], "need --spark"),
        (["--spark", "--type", "no.Such"], "no AggregateRoot is named"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        call_command("enode", "buildsnapshots", *arguments)


def test_a_report_that_raises_ends_the_job_and_leaves_nothing(
    spark: SparkSession, store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of a job that is to stop raises like this."""
    store.append(account("a", range(1, 101)))
    monkeypatch.setattr(progress, "TELL_EVERY", 0.01)

    def stop(stage: str, /, **figures: object) -> None:
        if stage != "making":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        build_snapshots(spark, None, stop)
    assert (rows(), staging_tables()) == ([], 0)


def test_a_job_that_waits_to_publish_is_cancelled_and_the_session_is_left_alone(
    spark: SparkSession, store: PostgresEventStore
) -> None:
    store.append(account("a", range(1, 101)))
    with other_session() as session, session.transaction():
        session.execute("LOCK TABLE enode_django_snapshot IN SHARE ROW EXCLUSIVE MODE")
        cancelling = cancel_when(lambda: is_somebody_waiting(session))
        with pytest.raises(JobCancelled), running_job("snapshots", "*", lease=3600) as job:
            KINDS["snapshots"](job, type=None)
        cancelling.join(60)
    assert (rows(), staging_tables()) == ([], 0)
    assert spark.range(3).count() == 3


def test_without_an_archive_the_command_says_so(spark: SparkSession, store: PostgresEventStore, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="there is no archive in"):
        call_command("enode", "buildsnapshots", "--spark", "--archive", str(tmp_path))


def test_a_job_that_fails_says_why_and_leaves_nothing(spark: SparkSession, store: PostgresEventStore) -> None:
    store.append(account("a", range(1, 101)))
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE enode_django_snapshot ADD CONSTRAINT tests_refuse CHECK (version < 50)")
    try:
        with pytest.raises(CommandError, match="tests_refuse"):
            call_command("enode", "buildsnapshots", "--spark", stdout=io.StringIO())
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE enode_django_snapshot DROP CONSTRAINT tests_refuse")
    assert (rows(), staging_tables()) == ([], 0)
