from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from django.test import Client

if TYPE_CHECKING:  # pytest loads this file before the apps
    from enode_django.models import EventStream


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a page of streams search to the end, however slow the machine is."""
    from enode_django.admin import stream_list

    monkeypatch.setattr(stream_list, "PATIENCE", 60.0)


@pytest.fixture
def streams(db: None) -> Sequence[EventStream]:
    """An account with a script for an owner, a deposit and a refused withdrawal; and another account."""
    from enode_django import execute_command, metadata, try_command
    from enode_django.models import EventStream
    from enode_django.testing import inline
    from sample_project.bank.domain import Deposit, OpenAccount, Withdraw
    from tests.admin.people import HOSTILE

    with inline(followed_by=["bank.AccountSummaries"]), metadata(user_id="teller-7"):
        execute_command(OpenAccount("a", owner=HOSTILE))
        execute_command(Deposit("a", amount=Decimal("2.50"), id="deposit-1"))
        try_command(Withdraw("a", amount=Decimal(9)))
        execute_command(OpenAccount("b", owner="Ada"))
    return list(EventStream.objects.order_by("sequence"))


@pytest.fixture
def viewer(client: Client, db: None) -> Client:
    """Return a client that may view event streams, but not their payloads."""
    from tests.admin.people import logged_in

    return logged_in(client, "view_eventstream")


@pytest.fixture
def reader(client: Client, db: None) -> Client:
    """Return a client that may view event streams and their payloads."""
    from tests.admin.people import logged_in

    return logged_in(client, "view_eventstream", "view_payload")
