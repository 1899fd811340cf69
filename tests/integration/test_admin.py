"""The event browser of the admin."""

from __future__ import annotations

from decimal import Decimal

import pytest
from django.contrib.auth.models import User
from django.test import Client

from enode_django import execute_command
from enode_django.models import EventStream
from enode_django.testing import inline
from sample_project.bank.domain import Deposit, OpenAccount, Withdraw

pytestmark = pytest.mark.django_db

LIST = "/admin/enode_django/eventstream/"


@pytest.fixture
def streams() -> list[EventStream]:
    with inline():
        execute_command(OpenAccount(aggregate_root_id="a", owner="<script>alert(1)</script>"))
        execute_command(Deposit(aggregate_root_id="a", amount=Decimal("2.50"), id="deposit-1"))
        execute_command(Withdraw(aggregate_root_id="a", amount=Decimal(9)))
        execute_command(OpenAccount(aggregate_root_id="b", owner="Ada"))
    return list(EventStream.objects.order_by("sequence"))


def test_streams_are_found_by_aggregate_and_by_command(admin_client: Client, streams: list[EventStream]) -> None:
    assert admin_client.get(LIST).context["cl"].result_count == 4
    assert admin_client.get(LIST, {"q": "a"}).context["cl"].result_count == 3
    assert admin_client.get(LIST, {"q": "deposit-1"}).context["cl"].result_count == 1
    assert admin_client.get(LIST, {"q": "' OR 1=1 --"}).context["cl"].result_count == 0


def test_a_stream_shows_its_events_and_a_refusal_its_reason(admin_client: Client, streams: list[EventStream]) -> None:
    pages = [admin_client.get(f"{LIST}{stream.pk}/change/").content.decode() for stream in streams]
    assert "bank.AccountOpened" in pages[0]
    assert "<script>alert(1)</script>" not in pages[0]
    assert "2.50" in pages[1]
    assert "bank.InsufficientFunds" in pages[2]
    assert "the balance is too low" in pages[2]


def test_nobody_adds_changes_or_deletes(admin_client: Client, streams: list[EventStream]) -> None:
    page = f"{LIST}{streams[0].pk}/"
    assert admin_client.get(f"{LIST}add/").status_code == 403
    assert admin_client.post(f"{page}change/", {"version": 7}).status_code == 403
    assert admin_client.post(f"{page}delete/", {"post": "yes"}).status_code == 403
    admin_client.post(LIST, {"action": "delete_selected", "_selected_action": [streams[0].pk], "post": "yes"})
    assert EventStream.objects.count() == 4


def test_the_browser_needs_the_permission_to_view(client: Client, streams: list[EventStream]) -> None:
    client.force_login(User.objects.create_user("clerk", is_staff=True))
    assert client.get(LIST).status_code == 403
