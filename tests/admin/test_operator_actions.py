"""The audit trail: who did what, when and why, in the admin and by management commands."""

from __future__ import annotations

import uuid
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
from django.contrib import admin
from django.core.management import CommandError, call_command
from django.db import DatabaseError
from django.utils import timezone

from enode_django.admin.operating import CONFIRMED
from enode_django.equeue.retrying import Failed, Message, encode_failed
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.dead_letters import DeadLetter as DeadLetterRow
from enode_django.eventstore.dead_letters import PostgresDeadLetters
from enode_django.management import subcommands
from enode_django.management.auditing import operator
from enode_django.management.commands.rebuildprojection import Command as RebuildCommand
from enode_django.models import DeadLetter, Job, OperatorAction, ParkedEvent
from enode_django.operating import actions
from enode_django.operating.actions import Done, record, recorded
from tests.admin.test_topics import operate, queue
from tests.admin.users import client_of

__all__ = ["queue"]

pytestmark = pytest.mark.django_db

LIST = "/admin/enode_django/operatoraction/"
PARKED = "/admin/enode_django/parkedevent/"
READ_ONLY = {
    "buildsnapshots": "snapshots are derived, and its job has a row",
    "eventschemas": "it writes a file of the project",
    "rehearse": "it replays",
    "status": "it asks",
    "parked list": "it asks",
    "parked show": "it asks",
    "jobs list": "it asks",
    "jobs show": "it asks",
    **dict.fromkeys(("queue topics", "queue producers", "queue groups", "queue offsets", "queue peek"), "it asks"),
    **dict.fromkeys(("queue tail", "queue dead-letters", "queue broker", "queue check"), "it asks"),
}


def rows(**values: Any) -> list[tuple[str, ...]]:
    found = OperatorAction.objects.filter(**values).order_by("pk")
    return list(found.values_list("operator", "source", "action", "object_id", "reason"))


def park(aggregate: str) -> ParkedEvent:
    now = timezone.now()
    return ParkedEvent.objects.create(
        subscriber="bank.AccountSummaries",
        aggregate_root_type="bank.BankAccount",
        aggregate_root_id=aggregate,
        version=1,
        command_id="c",
        error_type="ValueError",
        error="",
        attempts=5,
        first_failed_at=now,
        last_failed_at=now,
    )


def name_of(client: Any) -> str:
    return str(client.get("/admin/").context["user"].get_username())


def test_retrying_and_skipping_in_the_admin_is_kept_with_the_reason_and_seen_when_the_row_is_gone() -> None:
    parked = park("ada")
    client = client_of("change_parkedevent")
    data = {"action": "skip", "_selected_action": [parked.pk], "reason": "known to be a duplicate", CONFIRMED: "yes"}
    client.post(PARKED, data)
    assert rows() == [(name_of(client), "admin", "skip", "ada", "known to be a duplicate")]
    assert not ParkedEvent.objects.exists()
    page = client.get(f"{PARKED}{parked.pk}/history/").content.decode()
    assert "known to be a duplicate" in page
    assert "bank.AccountSummaries: ada goes on" in page
    assert "<h1>Operator actions: event of ada that bank.AccountSummaries had parked</h1>" in page
    again = park("ada")
    assert "known to be a duplicate" in client.get(f"{PARKED}{again.pk}/history/").content.decode(), (
        "the same aggregate"
    )
    assert "known to be" not in client.get(f"{PARKED}{park('bob').pk}/history/").content.decode()


def test_an_action_of_the_queue_pages_is_kept_with_the_reason_of_the_page_that_confirms_it(
    queue: MemoryTransport,
) -> None:
    client = client_of("view_topic", "change_topic")
    said = operate(client, "orders", "add-queues", {"queues": "4", "unordered": "on", "reason": "Black Friday"})
    assert 'name="reason"' in said
    assert rows() == [(name_of(client), "admin", "add-queues", "orders", "Black Friday")]
    history = client.get("/admin/enode_django/topic/orders/history/").content.decode()
    assert "topic orders has 4 queues now" in history
    assert "/topic/orders/history/" in client.get("/admin/enode_django/topic/orders/change/").content.decode()


def test_cancelling_and_deleting_jobs_is_kept() -> None:
    now = timezone.now()
    times = {"owner": uuid.uuid4(), "started_at": now, "lease_until": now + timedelta(hours=1)}
    running = Job.objects.create(kind="rebuild", name="a", **times)
    ended = Job.objects.create(kind="rebuild", name="b", state="failed", finished_at=now, **times)
    client = client_of("change_job", "delete_job")
    url = "/admin/enode_django/job/"
    client.post(url, {"action": "cancel", "_selected_action": [running.pk], "reason": "too slow"})
    client.post(f"{url}{ended.pk}/delete/", {"post": "yes", "reason": ""})
    who = name_of(client)
    assert rows() == [
        (who, "admin", "cancel", str(running.pk), "too slow"),
        (who, "admin", "delete", str(ended.pk), ""),
    ]
    page = client.get(f"{url}{ended.pk}/history/").content.decode()
    assert "delete" in page
    assert f"<h1>Operator actions: job {ended.pk}</h1>" in page


def test_only_a_list_with_a_filter_says_that_nothing_matches() -> None:
    client = client_of("view_operatoraction", "view_deadletter")
    page = client.get(LIST).content.decode()
    assert "No operator has done anything yet" in page
    assert "Show all" not in page
    record("ada", OperatorAction.Source.ADMIN, Done("cancel", "enode_django.job", "a"))
    assert "Show all" not in client.get(LIST).content.decode()
    for query in ("?q=nobody", "?action=retry"):
        page = client.get(LIST + query).content.decode()
        assert "Nothing matches the search and the filters." in page
        assert page.count("Show all") == 2


def test_an_empty_value_has_a_name_in_a_filter() -> None:
    letters = "/admin/enode_django/deadletter/"
    PostgresDeadLetters().keep([DeadLetterRow("", "", "", "", "commands", 0, 0, "KeyError", "", b"x", False)])
    PostgresDeadLetters().keep([DeadLetterRow("a", "a", "a", "b.C", "commands", 0, 1, "KeyError", "", b"", False)])
    client = client_of("view_deadletter")
    assert '<a href="?command_type=">none</a>' in client.get(letters).content.decode()
    found = client.get(letters, {"command_type": ""}).context["cl"]
    assert [one.command_type for one in found.result_list] == [""]
    assert ">none (1)</a>" in client.get(letters, {"_facets": "True"}).content.decode()


def test_fields_are_described_for_who_does_not_know_the_tables() -> None:
    record("ada", OperatorAction.Source.ADMIN, Done("cancel", "enode_django.job", "a", row="7"))
    action = OperatorAction.objects.get()
    assert (
        "Primary key of the object"
        in client_of("view_operatoraction").get(f"{LIST}{action.pk}/change/").content.decode()
    )
    now = timezone.now()
    job = Job.objects.create(kind="snapshots", name="*", owner=uuid.uuid4(), started_at=now, lease_until=now)
    page = client_of("view_job").get(f"/admin/enode_django/job/{job.pk}/change/").content.decode()
    assert "Another run that takes the job over writes its own id." in page
    assert "Of this run alone" not in page


def test_the_history_of_an_object_is_for_who_may_view_it() -> None:
    parked = park("ada")
    assert client_of("view_job").get(f"{PARKED}{parked.pk}/history/").status_code == 403
    assert client_of("view_parkedevent").get(f"{PARKED}{parked.pk}/history/").status_code == 200


@pytest.mark.parametrize("page", ["parkedevent/%00/", "job/%00/", "topic/a%00b/"])
def test_no_object_has_a_history_whose_key_no_row_can_have(page: str) -> None:
    client = client_of("view_parkedevent", "view_job", "view_topic")
    assert client.get(f"/admin/enode_django/{page}history/").status_code == 404


@pytest.mark.parametrize("lookup", ["regex=(", "year__gt=99999", "contains=9", "regex=%00"])
def test_times_of_actions_are_asked_for_by_the_drill_down_only(lookup: str) -> None:
    assert client_of("view_operatoraction").get(f"{LIST}?happened_at__{lookup}").status_code == 400


@pytest.mark.parametrize("year", ["0", "-1", "9999", "99999", "9" * 20, "(", "9" * 5_000])
def test_a_year_that_no_calendar_has_leads_back_to_the_list(year: str) -> None:
    answer = client_of("view_operatoraction").get(LIST, {"happened_at__year": year})
    assert (answer.status_code, answer.headers.get("Location")) == (302, f"{LIST}?e=1")


@pytest.mark.parametrize("lookup", ["kind__regex=(", "kind__contains=a", "kind=%00", "kind__in=a,%00"])
def test_a_filter_asks_what_its_links_ask_and_nothing_else(lookup: str) -> None:
    client = client_of("view_job")
    assert client.get(f"/admin/enode_django/job/?{lookup}").status_code == 400
    assert client.get("/admin/enode_django/job/?kind=a&state__exact=failed").status_code == 200


def test_the_list_is_read_only_and_has_filters() -> None:
    record("ann", OperatorAction.Source.COMMAND, Done("skip", "enode_django.parkedevent", "ada", reason="why"))
    record("bob", OperatorAction.Source.ADMIN, Done("requeue", "enode_django.deadletter", "bob", details="sent again"))
    client = client_of("view_operatoraction")
    assert client.get(LIST).context["cl"].result_count == 2
    for query in ({"action": "skip"}, {"source": "command"}, {"object_type": "enode_django.parkedevent"}, {"q": "ada"}):
        (found,) = client.get(LIST, query).context["cl"].result_list
        assert found.operator == "ann"
    assert client.get(LIST, {"happened_at__year": "1999"}).context["cl"].result_count == 0
    pk = OperatorAction.objects.get(operator="bob").pk
    assert "sent again" in client.get(f"{LIST}{pk}/change/").content.decode()
    for page in ("add/", f"{pk}/delete/"):
        assert client.post(f"{LIST}{page}", {"post": "yes"}).status_code == 403
    assert client_of("view_job").get(LIST).status_code == 403


def run(*arguments: str) -> None:
    with suppress(SystemExit):
        call_command("enode", *arguments)


def test_commands_keep_who_ran_them_and_why(queue: MemoryTransport) -> None:
    park("ada")
    run("parked", "skip", "--subscriber", "bank.AccountSummaries", "ada", "--reason", "a duplicate")
    run("queue", "pause", "billing", "--reason", "maintenance")
    run("queue", "set-offset", "billing", "orders", "first", "--yes")
    failed = Failed(Message("orders", 0, 0, b"", 3), "", 1e9, 0.0)
    queue.send("dead.billing", {0: [encode_failed(failed)]})
    run("queue", "discard", "billing", "2", "--yes", "--reason", "tested")
    assert [(source, action, id, reason) for _, source, action, id, reason in rows()] == [
        ("command", "skip", "ada", "a duplicate"),
        ("command", "pause", "billing", "maintenance"),
        ("command", "set-offset", "billing", ""),
        ("command", "discard", "billing", "tested"),
    ]
    assert {who for who, *_ in rows()} == {operator()}
    assert "@" in operator()
    details = OperatorAction.objects.get(action="set-offset").details
    assert "topic orders" in details or "topics" in details
    run("queue", "groups")
    assert OperatorAction.objects.count() == 4, "asking is not an action"


def test_a_command_that_fails_is_kept_with_its_error(queue: MemoryTransport) -> None:
    with pytest.raises(CommandError):
        call_command("enode", "queue", "delete-topic", "unknown", "--yes")
    (row,) = OperatorAction.objects.all()
    assert (row.action, row.object_id) == ("delete-topic", "unknown")
    assert "ended by UnknownTopic" in row.details


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_happened_before_an_error_is_kept(error: type[BaseException]) -> None:
    def half() -> None:
        with recorded("ann", OperatorAction.Source.ADMIN, Done("a", "t", "1")) as said:
            said.append("half of it")
            raise error("no")

    with pytest.raises(error, match="no"):
        half()
    assert OperatorAction.objects.get().details == f"half of it; ended by {error.__name__}"


def test_an_action_that_cannot_be_stored_is_logged_and_its_request_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(OperatorAction._meta, "db_table", "no_such_table")
    record("ann", OperatorAction.Source.ADMIN, Done("skip", "t", "ada", reason="because"))
    (error,) = [line for line in caplog.records if line.levelname == "ERROR"]
    for said in ("no_such_table", "ada", "because", "ann"):
        assert said in error.getMessage()
    monkeypatch.undo()
    with suppress(DatabaseError):
        assert OperatorAction.objects.count() == 0, "the transaction of the test is still good"
        return
    pytest.fail("the error has ended the transaction")


# -- none is forgotten -------------------------------------------------------------------------------------------------


def parsers(parser: ArgumentParser, name: str) -> Iterator[tuple[str, ArgumentParser]]:
    nested = [action for action in parser._actions if isinstance(action, _SubParsersAction)]
    if not nested:
        yield name, parser
    for action in nested:
        for choice, inner in action.choices.items():
            yield from parsers(inner, f"{name} {choice}")


def all_parsers() -> dict[str, ArgumentParser]:
    found = {}
    for module in iter_modules(subcommands.__path__):
        command = import_module(f"{subcommands.__name__}.{module.name}").Command()
        found |= dict(parsers(command.create_parser("manage.py", module.name), module.name))
    return found | dict(parsers(RebuildCommand().create_parser("manage.py", "rebuildprojection"), "rebuildprojection"))


def test_every_command_that_changes_something_takes_a_reason() -> None:
    takes = {name: "--reason" in parser._option_string_actions for name, parser in all_parsers().items()}
    assert {name for name, with_reason in takes.items() if not with_reason} == set(READ_ONLY)


def test_every_admin_class_with_actions_or_deletions_keeps_them() -> None:
    from enode_django.admin.auditing import Audited

    ours = [one for model, one in admin.site._registry.items() if model._meta.app_label == "enode_django"]
    changing = {
        type(one).__name__
        for one in ours
        if one.actions or type(one).has_delete_permission is not _never_deletes() or hasattr(one, "operation_page")
    }
    assert {"ParkedEventAdmin", "DeadLetterAdmin", "JobAdmin", "TopicAdmin", "ErasedEventAdmin"} <= changing
    assert {type(one).__name__ for one in ours if isinstance(one, Audited)} >= changing


def _never_deletes() -> Any:
    from enode_django.admin.showing import ReadOnly

    return ReadOnly.has_delete_permission


def test_reasons_and_objects_are_cut_to_their_columns() -> None:
    record("a" * 400, OperatorAction.Source.ADMIN, Done("skip", "t", "x" * 900, reason="y" * 9_000))
    row = OperatorAction.objects.get()
    assert (len(row.operator), len(row.object_id), len(row.reason)) == (300, 500, actions.LONGEST_REASON)


def test_what_a_terminal_of_another_encoding_hands_over_is_kept() -> None:
    record("j\udcf6rg", OperatorAction.Source.COMMAND, Done("skip", "t", "ada", details="a\0b", reason="f\udcfcr Ada"))
    row = OperatorAction.objects.get()
    assert (row.operator, row.details, row.reason) == (r"j\udcf6rg", r"a\0b", r"f\udcfcr Ada")


def test_dead_letters_are_known_by_their_command() -> None:
    letter = DeadLetter.objects.create(
        **{"key": "k", "command_id": "c-1", "aggregate_root_id": "ada", "command_type": "t", "topic": "commands"},
        **{"queue": 0, "message_offset": 0, "error_type": "KeyError", "error": "", "body": b"", "attempts": 1},
        **{"is_answered": False, "first_failed_at": timezone.now(), "last_failed_at": timezone.now()},
    )
    client = client_of("change_deadletter")
    url = "/admin/enode_django/deadletter/"
    client.post(url, {"action": "discard", "_selected_action": [letter.pk], "reason": "obsolete", CONFIRMED: "yes"})
    assert rows() == [(name_of(client), "admin", "discard", "c-1", "obsolete")]
    assert "<h1>Operator actions: dead letter c-1</h1>" in client.get(f"{url}{letter.pk}/history/").content.decode()


def test_the_history_of_what_is_gone_names_it_as_far_as_its_actions_do() -> None:
    client = client_of("view_parkedevent")
    assert "Operator actions: parked event 7<" in client.get(f"{PARKED}7/history/").content.decode()
    sent = Done(
        "new command", "enode_django.parkedevent", "ada", details="sent bank.Deposit to ada as command 1", row="7"
    )
    record("ann", OperatorAction.Source.ADMIN, sent)
    assert "Operator actions: parked event of ada<" in client.get(f"{PARKED}7/history/").content.decode()
