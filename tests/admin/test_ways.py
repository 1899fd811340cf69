"""No page is a dead end: names are links for users who may see their targets."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal

import pytest
from django.test import Client
from django.utils import timezone

from enode_django import execute_command
from enode_django.admin.operating import CONFIRMED
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.dead_letters import DeadLetter as Letter
from enode_django.eventstore.dead_letters import PostgresDeadLetters
from enode_django.models import DeadLetter, Job, OperatorAction, ParkedEvent, Rebuild
from enode_django.serialization.codec import encode_command
from enode_django.testing import inline
from sample_project.bank.domain import Deposit, OpenAccount
from tests.admin.test_topics import queue
from tests.admin.users import client_of

__all__ = ["queue"]

pytestmark = pytest.mark.django_db

ADMIN = "/admin/enode_django"
PARKED = f"{ADMIN}/parkedevent/"
SEES_ALL = ("view_eventstream", "view_subscriber", "view_topic", "view_payload", "view_rebuild", "view_job")


@pytest.fixture
def parked() -> Iterator[ParkedEvent]:
    now = timezone.now()
    with inline(followed_by=["bank.AccountSummaries"]):
        execute_command(OpenAccount("ada", owner="Ada"))
        execute_command(Deposit("ada", amount=Decimal("2.50"), id="the-deposit"))
        yield ParkedEvent.objects.create(
            **{"subscriber": "bank.AccountSummaries", "aggregate_root_type": "bank.BankAccount"},
            **{"aggregate_root_id": "ada", "version": 2, "command_id": "the-deposit", "error_type": "ValueError"},
            **{"error": "", "attempts": 5, "first_failed_at": now, "last_failed_at": now},
        )


def links(client: Client, path: str) -> set[str]:
    answer = client.get(path)
    assert answer.status_code == 200, path
    content = answer.content.decode().partition('<div id="content"')[2].replace("&amp;", "&")
    return set(re.findall(r'href="(/admin/enode_django/[^"]+)"', content))


def test_the_link_of_a_version_is_its_number(parked: ParkedEvent) -> None:
    page = client_of("view_parkedevent", *SEES_ALL).get(PARKED).content.decode()
    assert 'title="The causes and effects of version 2">2</a>' in page


def test_a_parked_event_leads_to_all_that_it_is_about(parked: ParkedEvent) -> None:
    found = links(client_of("view_parkedevent", *SEES_ALL), f"{PARKED}{parked.pk}/change/")
    wanted = {
        f"{ADMIN}/eventstream/aggregates/ada/",
        f"{ADMIN}/eventstream/aggregates/ada/?version=2#causation",
        f"{ADMIN}/eventstream/?q=the-deposit",
        f"{ADMIN}/subscriber/#subscriber-bank-accountsummaries",
    }
    assert wanted <= found
    assert not wanted & links(client_of("view_parkedevent"), f"{PARKED}{parked.pk}/change/")
    reader = client_of(*SEES_ALL)
    assert {reader.get(url).status_code for url in wanted} == {200}
    row = reader.get(f"{ADMIN}/subscriber/").content.decode()
    assert 'id="subscriber-bank-accountsummaries"' in row


def test_a_parked_event_is_retried_from_its_page(parked: ParkedEvent) -> None:
    client = client_of("change_parkedevent")
    page = client.get(f"{PARKED}{parked.pk}/change/").content.decode()
    (action,) = re.findall(r'<form method="post" action="([^"]+)" class="enode-settling">', page)
    data = {"action": "retry", "_selected_action": parked.pk, "reason": "mended"}
    assert client.post(action, data, follow=True).status_code == 200
    assert not ParkedEvent.objects.exists(), "the projection handles it"
    assert OperatorAction.objects.get().reason == "mended"
    viewer = client_of("view_parkedevent")
    again = ParkedEvent.objects.create(
        **{"subscriber": "bank.AccountSummaries", "aggregate_root_id": "x", "attempts": 1, "error": ""},
        **{"first_failed_at": timezone.now(), "last_failed_at": timezone.now()},
    )
    assert 'value="retry"' not in viewer.get(f"{PARKED}{again.pk}/change/").content.decode()


def test_skipping_is_confirmed_and_says_that_it_cannot_be_undone(parked: ParkedEvent) -> None:
    client = client_of("change_parkedevent")
    data = {"action": "skip", "_selected_action": parked.pk, "reason": "a duplicate"}
    said = client.post(PARKED, data)
    text = said.content.decode()
    assert "never handles the events of version 2 of ada" in text
    assert "This cannot be undone." in text
    assert 'value="a duplicate"' in text
    assert ParkedEvent.objects.exists(), "it was only said"
    assert not OperatorAction.objects.exists()
    client.post(PARKED, {**data, CONFIRMED: "Skip it"})
    assert not ParkedEvent.objects.exists()
    assert OperatorAction.objects.get().action == "skip"


def test_a_dead_letter_leads_to_its_aggregate_its_command_and_its_message(queue: MemoryTransport) -> None:
    body = encode_command(Deposit("ada", amount=Decimal(1), id="c-1"), b"")
    PostgresDeadLetters().keep([Letter("k", "c-1", "ada", "bank.Deposit", "orders", 0, 1, "KeyError", "", body, False)])
    client = client_of("view_deadletter", *SEES_ALL)
    found = links(client, f"{ADMIN}/deadletter/{DeadLetter.objects.get().pk}/change/")
    wanted = {
        f"{ADMIN}/eventstream/aggregates/ada/",
        f"{ADMIN}/eventstream/?q=c-1",
        f"{ADMIN}/topic/orders/messages/0/1/",
    }
    assert wanted <= found
    assert client.get(f"{ADMIN}/topic/orders/messages/0/1/").status_code == 200


def test_jobs_rebuilds_and_projections_lead_to_each_other() -> None:
    now = timezone.now()
    times = {"owner": uuid.uuid4(), "started_at": now, "lease_until": now + timedelta(hours=1)}
    job = Job.objects.create(kind="rebuild", name="bank.Ledger", **times)
    rebuild = Rebuild.objects.create(subscriber="bank.Ledger", generation=1, replaces=0, state="swapped")
    client = client_of(*SEES_ALL)
    assert f"{ADMIN}/rebuild/?q=bank.Ledger" in links(client, f"{ADMIN}/job/{job.pk}/change/")
    found = links(client, f"{ADMIN}/rebuild/{rebuild.pk}/change/")
    assert {f"{ADMIN}/job/?q=bank.Ledger", f"{ADMIN}/subscriber/#subscriber-bank-ledger"} <= found
    assert client.get(f"{ADMIN}/job/?q=bank.Ledger").context["cl"].result_count == 1
    assert client.get(f"{ADMIN}/rebuild/?q=bank.Ledger").context["cl"].result_count == 1


def test_a_subscriber_leads_to_its_consumer_group_and_back(queue: MemoryTransport) -> None:
    queue.create_topic("events", 1)
    queue.acquire("bank.Ledger", "events", 0, "host", 60)
    client = client_of(*SEES_ALL)
    assert f"{ADMIN}/topic/events/change/#group-bank-ledger" in links(client, f"{ADMIN}/subscriber/")
    assert f"{ADMIN}/subscriber/#subscriber-bank-ledger" in links(client, f"{ADMIN}/topic/events/change/")
    assert 'id="group-bank-ledger"' in client.get(f"{ADMIN}/topic/events/change/").content.decode()
    alone = client_of("view_subscriber")
    assert not {url for url in links(alone, f"{ADMIN}/subscriber/") if "/topic/" in url}
