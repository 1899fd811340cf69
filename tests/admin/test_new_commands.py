"""A new command answers a parked event."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

import pytest
from django.contrib.admin.models import LogEntry
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from enode_django import execute_command, try_command
from enode_django.admin.new_commands import NewCommand
from enode_django.admin.operating import CONFIRMED
from enode_django.bus.command_bus import QueueCommandBus
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.models import EventStream, OperatorAction, ParkedEvent
from enode_django.runtime import use_bus
from enode_django.serialization.codec import decode_metadata
from enode_django.testing import inline
from sample_project.bank.domain import Deposit, OpenAccount, Withdraw
from tests.admin.users import client_of

pytestmark = pytest.mark.django_db

SCRIPT = "<script>alert(1)</script>"


def park(command_id: str, version: int | None, aggregate: str = "ada") -> ParkedEvent:
    now = timezone.now()
    return ParkedEvent.objects.create(
        **{"subscriber": "bank.Ledger", "aggregate_root_type": "bank.BankAccount", "aggregate_root_id": aggregate},
        **{"version": version, "command_id": command_id, "error_type": "ValueError", "error": SCRIPT, "attempts": 5},
        **{"first_failed_at": now, "last_failed_at": now},
    )


@pytest.fixture
def parked() -> Iterator[ParkedEvent]:
    """A deposit; commands are executed at once."""
    with inline(followed_by=[]):
        execute_command(OpenAccount("ada", owner=SCRIPT))
        execute_command(Deposit("ada", amount=Decimal("2.50"), id="the-deposit"))
        yield park("the-deposit", 2)


def page_of(parked: ParkedEvent, type: str = "") -> str:
    return f"/admin/enode_django/parkedevent/{parked.pk}/command/{f'?type={type}' if type else ''}"


def hidden(response: HttpResponse) -> str:
    """The token that makes the command's id."""
    form = response.context["form"]  # type: ignore[attr-defined]
    return str(form["command_id"].value())


def test_the_type_of_the_parked_stream_is_suggested_and_its_fields_are_filled_in(parked: ParkedEvent) -> None:
    client = client_of("change_parkedevent", "view_payload")
    assert page_of(parked) in client.get(f"/admin/enode_django/parkedevent/{parked.pk}/change/").content.decode()
    chosen = client.get(page_of(parked)).content.decode()
    assert '<option value="bank.Deposit" selected>' in chosen
    assert "bank.Withdraw" in chosen
    form = client.get(page_of(parked, "bank.Deposit")).context["form"]
    assert (form["amount"].value(), form["aggregate_root_id"].value()) == (Decimal("2.50"), "ada")
    assert form["amount"].field.widget.input_type == "number"


def test_a_command_is_sent_once_with_the_parked_event_as_its_cause(parked: ParkedEvent) -> None:
    client = client_of("change_parkedevent")
    url = page_of(parked, "bank.Withdraw")
    values = {"aggregate_root_id": "ada", "amount": "1.25", "command_id": hidden(client.get(url))}
    said = client.post(url, values).content.decode()
    assert "bank.Withdraw is sent to ada" in said
    assert "amount: 1.25" in said
    assert EventStream.objects.count() == 2, "it was only said"
    for _ in range(2):
        assert client.post(url, {**values, CONFIRMED: "yes"}).status_code == 302
    (stored,) = EventStream.objects.filter(command_type="bank.Withdraw")
    about = decode_metadata(bytes(stored.metadata))
    assert (about.causation_id, about.correlation_id) == ("ada/2/0", "the-deposit")
    assert about.user is not None
    assert ParkedEvent.objects.filter(pk=parked.pk).exists(), "it stays parked until it is retried or skipped"
    logged = LogEntry.objects.latest("pk")
    assert logged.object_id == str(parked.pk)
    assert logged.get_change_message() == (
        f"sent bank.Withdraw to ada as command {stored.command_id}; it was stored as version 3"
    )


def send(client: Client, parked: ParkedEvent, kind: str, **values: str) -> tuple[str, str]:
    """Send a command; returns the level and the text of the message about it."""
    url = page_of(parked, kind)
    token = hidden(client.get(url))
    done = client.post(url, {"aggregate_root_id": "ada", "command_id": token, CONFIRMED: "yes", **values}, follow=True)
    (message,) = done.context["messages"]
    return message.level_tag, str(message)


def test_the_outcome_of_a_command_is_said_with_a_link_to_it(parked: ParkedEvent) -> None:
    client = client_of("change_parkedevent")
    level, said = send(client, parked, "bank.Withdraw", amount="1.25")
    assert level == "success"
    assert "it was stored as version 3" in said
    assert 'href="/admin/enode_django/eventstream/aggregates/ada/?version=3#causation"' in said
    level, said = send(client, parked, "bank.Withdraw", amount="99")
    assert level == "warning"
    assert "it was refused: bank.InsufficientFunds: the balance is too low" in said
    assert re.search(r'href="/admin/enode_django/eventstream/aggregates/ada/\?command=[^"]+#causation"', said)
    level, said = send(client, parked, "bank.Deposit", amount="1", aggregate_root_id="nobody")
    assert level == "error"
    assert "it failed: AggregateNotFound" in said
    details = [row.details for row in OperatorAction.objects.order_by("pk")]
    assert [text.rpartition("; ")[2] for text in details] == [
        "it was stored as version 3",
        "it was refused: bank.InsufficientFunds",  # the message may quote payload
        "it failed: AggregateNotFound",
    ]


def test_the_form_names_the_command_and_what_stays(parked: ParkedEvent) -> None:
    client = client_of("change_parkedevent")
    url = page_of(parked, "bank.Withdraw")
    assert "<h1>Send a new command: bank.Withdraw</h1>" in client.get(url).content.decode()
    values = {"aggregate_root_id": "ada", "command_id": hidden(client.get(url)), "amount": "1"}
    assert "The parked event that it answers stays." in client.post(url, values).content.decode()


def test_an_answer_that_does_not_come_is_not_waited_for(parked: ParkedEvent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NewCommand, "timeout", 0.05)
    queue = MemoryTransport()
    with use_bus(QueueCommandBus(queue, Producer(queue, queues=1), "commands")):
        level, said = send(client_of("change_parkedevent"), parked, "bank.Deposit", amount="1")
    assert level == "warning"
    assert "there was no answer within 0.05 s" in said
    assert 'href="/admin/enode_django/eventstream/aggregates/ada/"' in said


def test_a_refusal_that_is_parked_can_be_answered_too(parked: ParkedEvent) -> None:
    try_command(Withdraw("ada", amount=Decimal(99), id="too-much"))
    refused = park("too-much", None)
    url = page_of(refused, "bank.Deposit")
    client = client_of("change_parkedevent")
    token = hidden(client.get(url))
    client.post(url, {"aggregate_root_id": "ada", "amount": "99", "command_id": token, CONFIRMED: "yes"})
    stored = EventStream.objects.latest("sequence")
    assert decode_metadata(bytes(stored.metadata)).causation_id == "ada/refused/too-much"


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"amount": "much"}, "Enter a number"),
        ({"amount": "1", "aggregate_root_id": ""}, "This field is required"),
        ({"amount": "1", "command_id": "forged"}, "out of date"),
        ({"amount": "1", "aggregate_root_id": "x" * 300}, "255"),
        ({"amount": "1", "aggregate_root_id": "\0"}, "Null characters are not allowed"),
    ],
)
def test_what_the_command_does_not_take_is_said_and_nothing_is_sent(
    parked: ParkedEvent, values: dict[str, str], error: str
) -> None:
    client = client_of("change_parkedevent")
    data = {"aggregate_root_id": "ada", CONFIRMED: "yes", **values}
    response = client.post(page_of(parked, "bank.Deposit"), data)
    assert response.status_code == 200
    assert error in response.content.decode()
    assert EventStream.objects.count() == 2
    assert not LogEntry.objects.exists()


def test_what_is_not_there_is_not_found(parked: ParkedEvent) -> None:
    client = client_of("change_parkedevent")
    for kind in ("bank.Nothing", "bank.BankAccount", "enode.Command", "'", "%00", "%3Cscript%3E"):
        assert client.get(page_of(parked, kind)).status_code == 404
    assert client.get("/admin/enode_django/parkedevent/999999/command/").status_code == 404
    assert client.get("/admin/enode_django/parkedevent/x/command/").status_code == 404
    parked.command_id = "never-stored"
    parked.save()
    assert client.get(page_of(parked)).status_code == 200, "there is just nothing to suggest"


def test_it_needs_the_permission_and_a_token(parked: ParkedEvent, client: Client) -> None:
    url = page_of(parked, "bank.Deposit")
    data = {"aggregate_root_id": "ada", "amount": "1", CONFIRMED: "yes"}
    viewer, forger = client_of("view_parkedevent", "view_payload"), client_of("change_parkedevent", checks=True)
    assert viewer.get(url).status_code == viewer.post(url, data).status_code == 403
    assert "/command/" not in viewer.get(f"/admin/enode_django/parkedevent/{parked.pk}/change/").content.decode()
    assert forger.post(url, data).status_code == 403
    assert client.post(url, data).status_code == 302, "to the login"
    assert EventStream.objects.count() == 2


def test_what_the_error_says_is_for_who_may_read_events(parked: ParkedEvent) -> None:
    """The error may quote events."""
    page, listed = f"/admin/enode_django/parkedevent/{parked.pk}/change/", "/admin/enode_django/parkedevent/"
    blind, reader = client_of("view_parkedevent"), client_of("view_parkedevent", "view_payload")
    assert "alert(1)" in reader.get(page).content.decode()
    shown = blind.get(page).content.decode()
    assert "ValueError" in shown
    assert "alert(1)" not in shown
    for lookup in ("error__contains=script", "error__regex=^.s", "id__in=1", "subscriber=%00", "error_type=%00"):
        assert blind.get(f"{listed}?{lookup}").status_code == 400, lookup
    assert blind.get(f"{listed}?subscriber=bank.Ledger&error_type=ValueError").context["cl"].result_count == 1


def test_retrying_and_skipping_need_a_token(parked: ParkedEvent) -> None:
    for action in ("retry", "skip"):
        chosen = {"action": action, "_selected_action": [parked.pk]}
        forger = client_of("change_parkedevent", checks=True)
        assert forger.post("/admin/enode_django/parkedevent/", chosen).status_code == 403
    assert ParkedEvent.objects.get() == parked


def test_fields_are_filled_in_only_for_who_may_read_events_and_stay_text(parked: ParkedEvent) -> None:
    opened = EventStream.objects.earliest("sequence")
    first = park(opened.command_id, 1)
    blind, reader = client_of("change_parkedevent"), client_of("change_parkedevent", "view_payload")
    assert blind.get(page_of(first, "bank.OpenAccount")).context["form"]["owner"].value() is None
    response = reader.get(page_of(first, "bank.OpenAccount"))
    assert response.context["form"]["owner"].value() == SCRIPT
    said = reader.post(page_of(first, "bank.OpenAccount"), {"aggregate_root_id": SCRIPT, "owner": SCRIPT})
    for page in (response, said, reader.get(page_of(first))):
        assert SCRIPT not in page.content.decode()
