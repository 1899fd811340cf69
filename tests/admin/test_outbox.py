"""The outbox in the admin."""

from __future__ import annotations

import html
from collections.abc import Sequence
from decimal import Decimal

import pytest
from django.db import connections
from django.db.models.functions import Now
from django.test import Client

from enode_django.admin.operating import CONFIRMED
from enode_django.models import OperatorAction, OutboxCommand
from enode_django.operating import outbox
from enode_django.outbox import rows
from enode_django.serialization.codec import encode_command
from sample_project.bank.domain import Deposit
from tests.admin.people import HOSTILE, logged_in, without_times

pytestmark = pytest.mark.django_db
LIST = "/admin/enode_django/outboxcommand/"


def wait(id: str, error: str = "") -> OutboxCommand:
    body = encode_command(Deposit("ada", amount=Decimal("2.50"), id=id), b"")
    aside = {"rejected_at": Now(), "error": error} if error else {}
    return OutboxCommand.objects.create(aggregate_root_id="ada", command_id=id, body=body, **aside)


def act(client: Client, action: str, *rows: OutboxCommand, confirmed: bool = True, **more: str) -> str:
    chosen = {"action": action, "_selected_action": [row.pk for row in rows], **more}
    confirmation = {CONFIRMED: "yes"} if confirmed else {}
    return html.unescape(client.post(LIST, {**chosen, **confirmation}, follow=True).content.decode())


def actions() -> list[tuple[str, str, str]]:
    return list(OperatorAction.objects.order_by("pk").values_list("action", "object_id", "reason"))


def test_what_waits_is_listed_and_nobody_changes_it(client: Client) -> None:
    row, _ = wait("d1"), wait("d2", "MalformedMessage: no")
    page = logged_in(client, "view_outboxcommand").get(LIST).content.decode()
    assert "bank.Deposit d1 for ada" in page
    assert "bank.Deposit d2 for ada" in page
    assert 'name="action"' not in page
    shown = client.get(f"{LIST}{row.pk}/change/").content.decode()
    assert "2.50" not in without_times(shown)
    assert 'name="_save"' not in shown
    assert client.post(f"{LIST}{row.pk}/change/", {"command_id": "x"}).status_code == 403
    assert client.get(f"{LIST}?rejected_at__isempty=0").content.decode().count("for ada</a>") == 1


def test_an_error_is_for_those_who_may_view_payloads(client: Client) -> None:
    row = wait("d1", f"MalformedMessage: {HOSTILE}")
    page = f"{LIST}{row.pk}/change/"
    assert "alert(1)" not in logged_in(client, "view_outboxcommand").get(page).content.decode()
    client.logout()
    from django.contrib.auth.models import User

    User.objects.all().delete()
    shown = logged_in(client, "view_outboxcommand", "view_payload").get(page).content.decode()
    assert HOSTILE not in shown
    assert HOSTILE in html.unescape(shown)
    assert "2.50" in shown


def test_rejected_rows_are_given_to_the_relay_again(client: Client) -> None:
    waiting, rejected = wait("d1"), wait("d2", "MessageTooLarge: big")
    told = act(logged_in(client, "change_outboxcommand"), "retry", waiting, rejected, reason="the queue is larger")
    assert "1 of 1 commands were given to the relay" in told
    assert set(OutboxCommand.objects.values_list("command_id", "rejected_at", "error")) == {
        ("d1", None, ""),
        ("d2", None, ""),
    }
    assert actions() == [("retry", "d2", "the queue is larger")]


def test_discarding_is_confirmed_and_recorded(client: Client) -> None:
    waiting, kept = wait("d1"), wait("d2")
    told = act(logged_in(client, "change_outboxcommand"), "discard", waiting, confirmed=False)
    assert "The bank.Deposit d1 for ada is deleted, and never handled." in told
    assert OutboxCommand.objects.count() == 2
    assert "1 of 1 commands were discarded" in act(client, "discard", waiting)
    assert OutboxCommand.objects.get() == kept
    assert actions() == [("discard", "d1", "")]


def test_a_database_that_is_away_or_has_no_outbox_is_not_offered(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import OperationalError

    from enode_django import runtime
    from enode_django.admin.outbox import outboxes
    from enode_django.outbox import rows

    def has_table(alias: str) -> bool:
        if alias == "away":
            raise OperationalError("no")
        return alias == "second"

    monkeypatch.setattr(runtime, "outbox_databases", lambda: ["away", "default", "empty", "second"])
    monkeypatch.setattr(rows, "has_table", has_table)
    assert outboxes() == ["default", "second"]
    assert "second" not in connections


def test_a_row_that_was_sent_before_it_could_be_discarded_is_not_recorded_as_discarded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, waiting = wait("d1"), wait("d2")
    discard_in = outbox.discard_in

    def relayed_meanwhile(alias: str, pks: Sequence[int]) -> Sequence[int]:
        rows.delete(alias, [sent.pk])
        return discard_in(alias, pks)

    monkeypatch.setattr(outbox, "discard_in", relayed_meanwhile)
    told = act(logged_in(client, "change_outboxcommand"), "discard", sent, waiting)
    assert "1 of 2 commands were discarded" in told
    assert [(action, id) for action, id, _ in actions()] == [("discard", "d2")]
