"""Scheduled commands that the code cannot read are reported before they are due, without their values."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connection

from enode_django import Command, send_command
from enode_django.checks.scheduling import check_scheduled
from enode_django.databases import separate_connection
from enode_django.models import ScheduledCommand
from enode_django.monitoring import Health
from enode_django.monitoring.work import ask_outbox
from enode_django.scheduling import unreadable
from enode_django.scheduling.unreadable import unreadable_in
from enode_django.serialization.plain import pack
from enode_django.serialization.upcasting import Fields, upcasters
from tests.outbox.harness import Harness
from tests.races.counting import Add

SECRET = "ada@example.org"
FIRST = datetime(2030, 1, 1, tzinfo=UTC)


class RemindGuest(Command):
    """Version 1 had ``address``, version 2 has ``guest``."""

    type_name = "unreadable.RemindGuest"
    schema_version = 2
    guest: int


def schedule(name: str, version: int = 1, days: int = 0, **fields: Any) -> None:
    """Write what an earlier deployment has scheduled, due some days after `FIRST`."""
    body = pack((1, name, "c", "a", fields, b"", "", version))
    ScheduledCommand.objects.create(
        aggregate_root_id="a", command_id="c", body=body, due_at=FIRST + timedelta(days=days)
    )


@pytest.fixture
def broken_upcaster() -> Iterator[None]:
    def guest_of(fields: Fields) -> Fields:
        raise ValueError(fields["address"])

    upcasters.add(RemindGuest, 1, guest_of)
    yield
    upcasters.remove(RemindGuest, 1)


def said() -> list[str]:
    """Return the texts of the check."""
    messages = check_scheduled(None, databases=["default"])
    assert {message.id for message in messages} <= {"enode_django.W179"}
    return [f"{message.msg} {message.hint}" for message in messages]


def test_what_can_be_read_is_not_reported(harness: Harness) -> None:
    send_command(Add("a", amount=1), after=timedelta(days=90))
    schedule("unreadable.RemindGuest", 2, guest=7)
    assert said() == []
    assert ask_outbox("default").problems == []


def test_a_command_whose_class_was_renamed_is_counted_with_its_first_due_time(harness: Harness) -> None:
    for days in (5, 3, 4):
        schedule("shop.Remind", 2, days, address=SECRET)
    schedule("shop.Remind", 1, 9, address=SECRET)
    newer, older = said()
    assert "cannot read 3 scheduled commands 'shop.Remind' of schema version 2" in newer
    assert "the first due at 2030-01-04 00:00 UTC, among the 1,000 in the database 'default' that are due next" in newer
    assert "add 'shop.Remind' to the aliases" in newer
    assert "1 scheduled commands 'shop.Remind' of schema version 1" in older


def test_the_status_says_the_same(harness: Harness) -> None:
    schedule("shop.Remind", address=SECRET)
    (problem,) = ask_outbox("default").problems
    assert problem.health is Health.DEGRADED
    assert problem.reason.startswith("1 scheduled commands 'shop.Remind' of schema version 1, the first due at 2030-01")
    assert "add 'shop.Remind' to the aliases" in problem.reason
    assert SECRET not in problem.reason


@pytest.mark.parametrize(
    ("version", "fields", "what_to_do"),
    [
        (1, {"address": SECRET}, "their fields do not fit RemindGuest; write an upcaster, @upcasts(RemindGuest,"),
        (2, {"guest": SECRET}, "schema_version to 3 and write an upcaster, @upcasts(RemindGuest, from_version=2)"),
        (2, {SECRET: 1, "guest": 1}, "their fields do not fit RemindGuest; raise schema_version to 3"),
        (3, {"address": SECRET}, "deploy newer code, which knows this version; that of RemindGuest is 2 here"),
        (0, {"address": SECRET}, "correct the upcasters of RemindGuest: one fails, or there is no such version"),
    ],
)
def test_the_way_out_is_named_and_no_value(
    harness: Harness, version: int, fields: dict[str, Any], what_to_do: str
) -> None:
    schedule("unreadable.RemindGuest", version, **fields)
    (text,) = said()
    assert what_to_do.casefold() in text.casefold()
    assert SECRET not in text


def test_an_upcaster_that_fails_is_named_without_what_it_says(harness: Harness, broken_upcaster: None) -> None:
    schedule("unreadable.RemindGuest", address=SECRET)
    (text,) = said()
    assert "Correct the upcasters of RemindGuest" in text
    assert SECRET not in text


def test_a_body_that_is_no_command_is_reported(harness: Harness) -> None:
    ScheduledCommand.objects.create(aggregate_root_id="a", command_id="c", body=SECRET.encode(), due_at=FIRST)
    (text,) = said()
    assert "1 scheduled commands of no type" in text
    assert "Cancel them in the admin" in text
    assert SECRET not in text


def test_no_more_is_read_than_what_is_due_next(harness: Harness) -> None:
    rows = [
        ScheduledCommand(aggregate_root_id="a", command_id="c", body=b"", due_at=FIRST)
        for _ in range(unreadable.LOOKED_AT)
    ]
    ScheduledCommand.objects.bulk_create(rows)
    schedule("shop.Remind", days=1)
    (found,) = unreadable_in("default")
    assert (found.type_name, found.commands) == ("", 1_000)


def test_large_commands_are_not_all_read(harness: Harness) -> None:
    for days in range(3):
        schedule("shop.Remind", days=days, text="x" * (unreadable.MOST_BYTES // 2 + 1))
    (found,) = unreadable_in("default")
    assert found.commands == 2


def test_a_database_without_the_table_says_nothing(harness: Harness) -> None:
    schedule("shop.Remind")
    try:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE enode_django_scheduledcommand RENAME TO elsewhere")
        assert said() == []
        assert ask_outbox("default").problems == []
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO enode_django_scheduledcommand")
    assert len(said()) == 1


def test_only_the_databases_are_checked_that_are_asked_for_and_relayed(harness: Harness, settings: Any) -> None:
    schedule("shop.Remind")
    assert check_scheduled(None) == check_scheduled(None, databases=[]) == []
    settings.ENODE = {**settings.ENODE, "OUTBOX": {"DATABASES": []}}
    assert said() == []


def test_each_relayed_database_is_checked(harness: Harness, settings: Any) -> None:
    schedule("shop.Remind")
    with separate_connection("default") as other:
        settings.ENODE = {**settings.ENODE, "OUTBOX": {"DATABASES": ["default", other]}}
        messages = check_scheduled(None, databases=["default", other])
    first, second = (message.msg for message in messages)
    assert "in the database 'default'" in first
    assert f"in the database {other!r}" in second


def test_manage_py_check_warns_with_the_database_and_not_without(harness: Harness) -> None:
    schedule("shop.Remind")
    assert "enode_django.W179" in [message.id for message in run_checks(databases=["default"])]
    assert "enode_django.W179" not in [message.id for message in run_checks()]
