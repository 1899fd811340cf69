"""An action does what its confirmation page has named, whatever happens while somebody reads that page."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from enode_django.admin.operating import CONFIRMED
from enode_django.eventstore.dead_letters import DeadLetter as Letter
from enode_django.eventstore.dead_letters import PostgresDeadLetters
from enode_django.models import DeadLetter, ScheduledCommand
from tests.admin.users import client_of

pytestmark = pytest.mark.django_db

LETTERS, SCHEDULED = "/admin/enode_django/deadletter/", "/admin/enode_django/scheduledcommand/"


def keep(*ids: str) -> None:
    PostgresDeadLetters().keep(
        [Letter(id, id, "ada", "bank.Deposit", "commands", 0, 0, "KeyError", "", b"", False) for id in ids]
    )


def asked(client: Client, url: str, **chosen: Any) -> dict[str, list[str]]:
    """Return the hidden fields of the confirmation page."""
    page = client.post(url, chosen).content.decode()
    fields: dict[str, list[str]] = {CONFIRMED: ["yes"]}
    for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page):
        fields.setdefault(name, []).append(html.unescape(value))
    return fields


def left() -> list[str]:
    return list(DeadLetter.objects.order_by("pk").values_list("command_id", flat=True))


def test_all_letters_are_those_of_which_there_were_some_when_it_was_asked() -> None:
    keep("a", "b")
    client = client_of("change_deadletter")
    fields = asked(client, LETTERS, action="discard", select_across="1", _selected_action=[1])
    keep("c")
    client.post(LETTERS, fields)
    assert left() == ["c"]


def test_letters_that_nobody_named_are_discarded_with_those_that_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enode_django.admin.settling.MOST_NAMED", 1)
    keep("a", "b", "c")
    client = client_of("change_deadletter")
    client.post(LETTERS, asked(client, LETTERS, action="discard", select_across="1", _selected_action=[1]))
    assert left() == []


def test_a_deadline_that_was_set_anew_meanwhile_stays() -> None:
    deadline = ScheduledCommand.objects.create(
        **{"aggregate_root_id": "ada", "body": b"", "command_id": "first", "due_at": datetime(2999, 1, 1, tzinfo=UTC)},
        **{"subscriber": "bank.transfers", "scope": "t1", "name": "confirmed"},
    )
    client = client_of("change_scheduledcommand")
    fields = asked(client, SCHEDULED, action="cancel", _selected_action=[deadline.pk])
    ScheduledCommand.objects.update(command_id="second", due_at=datetime(2999, 2, 1, tzinfo=UTC))
    page = client.post(SCHEDULED, fields, follow=True).content.decode()
    assert "1 of them changed after you were asked, and stay as they are" in page
    assert "were cancelled" not in page
    assert ScheduledCommand.objects.get().command_id == "second"
    client.post(SCHEDULED, asked(client, SCHEDULED, action="cancel", _selected_action=[deadline.pk]))
    assert not ScheduledCommand.objects.exists()


@pytest.mark.parametrize("seen", ["", "x", "[]", "[1]", "[1, 2]", '["x", {}]', '[9, {"x": 1}]', "[0, {}]", "[" * 9_999])
def test_what_a_page_never_said_confirms_no_row_that_it_did_not_show(seen: str) -> None:
    keep("a")
    (letter,) = DeadLetter.objects.all()
    chosen = {"action": "discard", "_selected_action": [letter.pk], CONFIRMED: "yes"}
    client_of("change_deadletter").post(LETTERS, {**chosen, "seen": seen})
    assert left() == ["a"]


@pytest.mark.parametrize("key", ["x", "", "9" * 5_000, "1e3"])
def test_what_no_row_can_have_as_its_key_is_a_bad_request(key: str) -> None:
    keep("a")
    client = client_of("change_deadletter")
    assert client.post(LETTERS, {"action": "discard", "_selected_action": key}).status_code == 400
    assert left() == ["a"]
