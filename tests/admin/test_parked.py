"""Parked events in the admin: what is confirmed is what is skipped."""

from __future__ import annotations

import html
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.text import capfirst

from enode_django.admin.operating import CONFIRMED
from enode_django.admin.settling import GONE
from enode_django.models import HandledRefusal, OperatorAction, ParkedEvent
from tests.admin.users import client_of

pytestmark = pytest.mark.django_db

LIST = "/admin/enode_django/parkedevent/"


def park(command_id: str, version: int | None = None, *, attempts: int = 5) -> ParkedEvent:
    now = timezone.now()
    return ParkedEvent.objects.create(
        **{"subscriber": "bank.AccountSummaries", "aggregate_root_type": "bank.BankAccount", "version": version},
        **{"aggregate_root_id": "ada", "command_id": command_id, "error_type": "", "error": "", "attempts": attempts},
        **{"first_failed_at": now, "last_failed_at": now},
    )


@pytest.fixture
def client() -> Client:
    return client_of("change_parkedevent")


def skip(client: Client, *chosen: ParkedEvent, **more: Any) -> str:
    given = {"action": "skip", "_selected_action": [row.pk for row in chosen], **more}
    return html.unescape(client.post(LIST, given, follow=True).content.decode())


def left() -> set[str]:
    return set(ParkedEvent.objects.values_list("command_id", flat=True))


def test_skipping_what_waits_skips_nothing_of_what_it_waits_behind(client: Client) -> None:
    park("failed", 1)
    waits = park("refused", attempts=0)
    said = "The refusal of command refused of ada waits behind what bank.AccountSummaries failed at: it is not skipped."
    assert said in skip(client, waits)
    assert "has parked 'ada' at version 1, not at what command 'refused' has caused" in skip(
        client, waits, **{CONFIRMED: "yes"}
    )
    assert left() == {"failed", "refused"}
    assert not HandledRefusal.objects.exists()
    assert not OperatorAction.objects.exists()


def test_chosen_together_with_what_waits_behind_it_the_failed_event_is_skipped_and_named(client: Client) -> None:
    waits, failed = park("refused", attempts=0), park("failed", 1)
    assert "ada goes on" in skip(client, failed, waits, **{CONFIRMED: "yes"})
    assert not left()
    (action,) = OperatorAction.objects.all()
    assert action.details == "bank.AccountSummaries: ada goes on; skipped: the events of version 1"


def test_a_confirmation_does_not_skip_what_failed_after_it_was_shown(client: Client) -> None:
    shown = park("failed", 1)
    assert "never handles the events of version 1" in skip(client, shown)
    ParkedEvent.objects.all().delete()
    park("failed-next", 2)
    assert capfirst(GONE) in skip(client, shown, **{CONFIRMED: "yes"})
    assert left() == {"failed-next"}
