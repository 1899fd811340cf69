"""The status and the gauges report the outbox."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from enode_django.checks.settings import check_settings
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.models import OutboxCommand
from enode_django.monitoring import Health, gather
from enode_django.monitoring.gauges import Gauges
from enode_django.monitoring.work import ask_outbox
from enode_django.runtime import outbox_databases

pytestmark = pytest.mark.django_db


def wait(seconds: float = 0.0, **fields: Any) -> None:
    at = Now() - timedelta(seconds=seconds)
    OutboxCommand.objects.create(aggregate_root_id="a", command_id="c", body=b"", written_at=at, **fields)


@pytest.mark.django_db(transaction=True)
def test_the_status_has_the_outbox_of_each_database() -> None:
    wait(1)
    part = gather(["outbox"], timeout=60).part("outbox")
    assert [(row.database, row.waiting, row.rejected) for row in part.rows] == [("default", 1, 0)]
    assert part.health is Health.OK


def test_what_waits_for_long_or_is_rejected_is_a_problem() -> None:
    wait(100), wait(500, rejected_at=Now()), wait(50)
    finding = ask_outbox("default")
    ((_, waiting, oldest, seconds, rejected),) = finding.rows
    assert (waiting, rejected) == (2, 1)
    assert 100 <= seconds < 400
    assert oldest == min(OutboxCommand.objects.filter(rejected_at=None).values_list("written_at", flat=True))
    first, second = finding.problems
    assert first.reason.startswith("1 commands in the outbox of 'default' are rejected")
    assert second.reason.startswith("2 commands wait in the outbox of 'default', the first for 1")
    assert {first.health, second.health} == {Health.DEGRADED}


def test_the_gauges_say_0_of_an_empty_outbox() -> None:
    names = ("outbox_commands", "outbox_age", "outbox_rejected")
    figures = Gauges(MemoryTransport(), [])()
    assert [figures[name] for name in names] == [{"default": 0}, {"default": 0.0}, {"default": 0}]
    wait(100), wait(500, rejected_at=Now())
    figures = Gauges(MemoryTransport(), [])()
    assert figures["outbox_commands"] == figures["outbox_rejected"] == {"default": 1}
    assert figures["outbox_age"]["default"] >= 100


def test_the_settings_may_name_the_databases(settings: Any) -> None:
    assert outbox_databases() == ["default"]
    settings.ENODE = {**settings.ENODE, "OUTBOX": {"DATABASES": ["other"]}}
    assert outbox_databases() == ["other"]
    settings.ENODE = {**settings.ENODE, "OUTBOX": {}, "EVENT_STORE": {"DATABASES": ["default"]}}
    settings.DATABASE_ROUTERS = [NoTables()]
    assert outbox_databases() == []


def test_a_database_that_is_none_of_ours_is_an_error(settings: Any) -> None:
    settings.ENODE = {**settings.ENODE, "OUTBOX": {"DATABASES": ["default", "nowhere"]}}
    (found,) = [message for message in check_settings(None) if message.id == "enode_django.E063"]
    assert "'nowhere'" in found.msg


class NoTables:
    def allow_migrate(self, db: str, app_label: str, **hints: object) -> bool:
        return False
