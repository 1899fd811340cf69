from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection
from django.db.models.functions import Now

from enode_django.models import ProcessorReport
from enode_django.processors.supervisor_reports import ReportWriter
from enode_django.processors.watch import Watch
from tests.integration.running import wait_for

pytestmark = pytest.mark.django_db(transaction=True)
RARELY = 3_600.0


def old_report(age: timedelta) -> ProcessorReport:
    report = ProcessorReport(supervisor="old", host="h", pid=1, started_at=Now(), reported_at=Now() - age, figures={})
    report.save()
    return report


def test_reports_are_written_and_the_last_one_says_so() -> None:
    figures: dict[str, Any] = {"finished": 1}
    writer = ReportWriter("enode-a", lambda: figures, interval=RARELY, retention=60.0)
    wait_for(ProcessorReport.objects.exists)
    figures = {"finished": 2, "subscribers": {"a": {"handled": 3}}}
    writer.stop()
    first, last = ProcessorReport.objects.order_by("reported_at")
    assert [first.figures, last.figures] == [{"finished": 1}, figures]
    assert [first.ended, last.ended] == [False, True]
    assert first.supervisor == last.supervisor == "enode-a"
    assert timedelta(0) <= first.reported_at - first.started_at < timedelta(seconds=20)
    assert abs(last.started_at - first.started_at) < timedelta(seconds=20), "a slow connection may lie between"


def test_a_host_whose_name_is_not_utf_8_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "h\udcff")
    ReportWriter("enode-a", lambda: {"finished": 1}, interval=RARELY, retention=60.0).stop()
    assert {report.host for report in ProcessorReport.objects.all()} == {r"h\xff"}


def test_reports_older_than_the_retention_are_deleted() -> None:
    old_report(timedelta(seconds=61))
    kept = old_report(timedelta(seconds=30))
    ReportWriter("enode-a", lambda: {"finished": 1}, interval=RARELY, retention=60.0).stop()
    assert set(ProcessorReport.objects.exclude(supervisor="enode-a")) == {kept}
    assert ProcessorReport.objects.filter(supervisor="enode-a").exists()


def test_nothing_is_written_before_there_are_figures() -> None:
    ReportWriter("enode-a", dict, interval=RARELY, retention=60.0).stop()
    assert not ProcessorReport.objects.exists()


def test_old_reports_are_found_by_an_index() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        cursor.execute("EXPLAIN SELECT FROM enode_django_processorreport WHERE reported_at < now()")
        plan = "\n".join(line for (line,) in cursor.fetchall())
        cursor.execute("RESET enable_seqscan")
    assert "enode_processor_reported_at" in plan


class Database:
    """A database that answers each query as a test says."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def ask(self) -> int:
        self.asked += 1
        self.may_answer.wait(60)
        if self.error is not None:
            raise self.error
        return self.asked


@pytest.fixture
def database() -> Iterator[Database]:
    database = Database()
    yield database
    database.may_answer.set()


def test_a_failure_is_logged_once_and_so_is_that_it_works_again(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.error = DatabaseError("it is away")
    with caplog.at_level(logging.INFO, "enode_django.supervisor"):
        watch = Watch("store-watch", database.ask, 0.001)
        wait_for(lambda: database.asked >= 5)
        assert not watch.has_answered(within=60.0)
        assert watch.answer is None
        database.error = None
        wait_for(lambda: watch.has_answered(within=60.0))
        assert watch.stop(60.0)
    told = [record.message for record in caplog.records]
    assert told == ["store-watch: it is away; trying again every 0.001 s", "store-watch: works again"]


def test_an_answer_vanishes_while_none_follows(database: Database) -> None:
    """The alerts rely on it: a figure of a database that hangs must not stay as it was."""
    asked = iter([lambda: "well"])
    watch = Watch("store-watch", lambda: next(asked, database.ask)(), 0.2)
    database.may_answer.clear()
    wait_for(lambda: watch.answer == "well")
    wait_for(lambda: database.asked)
    wait_for(lambda: watch.answer is None)
    database.may_answer.set()
    assert watch.stop(60.0)


def test_who_watches_is_not_held_up_by_what_does_not_answer(database: Database) -> None:
    database.may_answer.clear()
    watch = Watch("store-watch", database.ask, RARELY)
    wait_for(lambda: database.asked)
    assert not watch.stop(timeout=0.05)
    assert not watch.has_answered(within=60.0)
    database.may_answer.set()
    assert watch.stop(60.0)
