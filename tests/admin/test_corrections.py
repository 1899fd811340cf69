"""Corrections of parked events in the admin, and their display in the event browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from enode_django import execute_command
from enode_django.admin.operating import CONFIRMED
from enode_django.models import EventCorrection, EventStream, ParkedEvent
from enode_django.runtime import make_store
from enode_django.serialization.codec import read_stored
from enode_django.testing import inline
from sample_project.bank.domain import Deposit, OpenAccount
from tests.admin.people import HOSTILE
from tests.admin.test_new_commands import park
from tests.admin.users import client_of

pytestmark = pytest.mark.django_db

MAY = ("view_parkedevent", "add_eventcorrection", "view_payload", "view_eventstream")


@pytest.fixture
def parked() -> Iterator[ParkedEvent]:
    with inline(followed_by=[]):
        execute_command(OpenAccount("ada", owner="Ada"))
        execute_command(Deposit("ada", amount=Decimal("2.50"), id="the-deposit"))
        yield park("the-deposit", 2)


def page_of(parked: ParkedEvent, page: str = "correct") -> str:
    return f"/admin/enode_django/parkedevent/{parked.pk}/{page}/"


def deposited(amount: Any) -> list[dict[str, Any]]:
    fields = {"amount": amount, "balance": "2.50"}
    return [{"type": "bank.Deposited", "schema_version": 1, "fields": fields}]


def form_of(amount: Any = "2.00", **changes: Any) -> dict[str, Any]:
    return {"events": json.dumps(deposited(amount)), "reason": f"it was less {HOSTILE}", "last": "0", **changes}


def test_the_form_shows_the_events_and_corrects_them(parked: ParkedEvent) -> None:
    client = client_of(*MAY)
    assert page_of(parked) in client.get(page_of(parked, "change")).content.decode()
    form = client.get(page_of(parked)).context["form"]
    assert json.loads(form["events"].value()) == deposited("2.50")
    said = client.post(page_of(parked), form_of()).content.decode()
    assert "The event stays as it was stored" in said
    assert "tries it again now" in said
    assert not EventCorrection.objects.exists(), "it was only said"
    before = list(EventStream.objects.order_by("pk").values_list())
    response = client.post(page_of(parked), form_of(**{CONFIRMED: "yes"}))
    assert response.status_code == 302
    (made,) = EventCorrection.objects.all()
    assert (made.aggregate_root_id, made.version, made.corrected_by) == ("ada", 2, response.wsgi_request.user.username)
    assert list(EventStream.objects.order_by("pk").values_list()) == before
    (_, record) = make_store().load("ada")
    assert read_stored(record.events).events[0].fields["amount"] == Decimal("2.00")  # type: ignore[union-attr]
    logged = LogEntry.objects.latest("pk")
    assert logged.object_id == str(parked.pk)
    assert logged.get_change_message().startswith(f"corrected version 2 of ada by correction {made.pk}: bank.Ledger")
    assert not ParkedEvent.objects.exists(), "the ledger goes on"


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"events": "{"}, "this is not JSON"),
        ({"events": json.dumps(deposited("much"))}, "0.fields.amount"),
        (
            {"events": json.dumps([{**deposited("1")[0], "type": "bank.Withdrawn"}])},
            "is a bank.Deposited, and stays one",
        ),
        ({"events": json.dumps([{**deposited("1")[0], "fields": {"sum": 1}}])}, "there is no such field"),
        ({"events": json.dumps(deposited("2.50"))}, "nothing is corrected"),
        ({"reason": ""}, "This field is required"),
        ({"last": "7"}, "was corrected meanwhile"),
        ({"last": "x"}, "Enter a whole number"),
        ({"original": "on"}, "has no correction that counts"),
    ],
)
def test_what_is_no_correction_is_said_and_nothing_is_kept(
    parked: ParkedEvent, values: dict[str, str], error: str
) -> None:
    client = client_of(*MAY)
    for confirmed in ({}, {CONFIRMED: "yes"}):
        response = client.post(page_of(parked), form_of(**values, **confirmed))
        assert response.status_code == 200
        assert error in (response.content.decode() + str(response.context["form"].errors))
    assert not EventCorrection.objects.exists()
    assert not LogEntry.objects.exists()


def test_it_needs_its_own_permissions_and_a_token(parked: ParkedEvent, client: Client) -> None:
    url, confirmed = page_of(parked), form_of(**{CONFIRMED: "yes"})
    for missing in MAY[:3]:
        other = client_of(*({*MAY, "change_deadletter"} - {missing}))
        assert other.get(url).status_code == other.post(url, confirmed).status_code == 403
    settles = client_of("change_parkedevent", "view_payload")
    assert settles.post(url, confirmed).status_code == 403
    assert url not in settles.get(page_of(parked, "change")).content.decode()
    assert client_of(*MAY, checks=True).post(url, confirmed).status_code == 403
    assert client.post(url, confirmed).status_code == 302, "to the login"
    assert not EventCorrection.objects.exists()


def test_what_is_not_there_is_not_found(parked: ParkedEvent) -> None:
    client = client_of(*MAY)
    assert client.get("/admin/enode_django/parkedevent/999999/correct/").status_code == 404
    refused = park("refused", None)
    assert client.get(page_of(refused)).status_code == 404
    assert page_of(refused) not in client.get(page_of(refused, "change")).content.decode()
    assert client.get(page_of(park("gone", 9, "nobody"))).status_code == 404


def test_the_event_browser_shows_who_corrected_what_beside_the_original(parked: ParkedEvent) -> None:
    client = client_of(*MAY)
    client.post(page_of(parked), form_of(**{CONFIRMED: "yes"}))
    number = EventCorrection.objects.get().pk
    stream = EventStream.objects.get(version=2)
    url = f"/admin/enode_django/eventstream/{stream.pk}/change/"
    page = client.get(url)
    assert next(line.text for line in page.context["contents"].events[0].lines) == "2.00"
    assert next(line.text for line in page.context["original"].events[0].lines) == "2.50"
    text = page.content.decode()
    assert f"Correction {number}" in text
    assert "it was less &lt;script&gt;" in text
    assert HOSTILE not in text
    again = park("the-deposit", 2)
    client.post(page_of(again), form_of(original="on", events="{", last=str(number), **{CONFIRMED: "yes"}))
    page = client.get(url)
    assert next(line.text for line in page.context["contents"].events[0].lines) == "2.50"
    assert "the original counts again" in page.content.decode()
    assert "it was less" not in client_of("view_eventstream").get(url).content.decode()
