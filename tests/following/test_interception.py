"""Middleware of subscribers, around handlers that write rows and send commands to a database and a bus."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from enode_django import execute_command
from enode_django.middleware import SubscriberContext
from enode_django.testing import inline
from sample_project.bank.domain import Deposit, OpenAccount, StartTransfer
from sample_project.bank.models import AccountSummary

pytestmark = pytest.mark.django_db

calls: list[tuple[str, str, bool]] = []


def noting(handle: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def call(event: Any, context: SubscriberContext) -> Any:
        calls.append((context.subscriber.name, type(event).__name__, connection.in_atomic_block))
        return handle(event, context)

    return call


def test_every_kind_of_subscriber_is_called_within_middleware() -> None:
    calls.clear()
    with override_settings(ENODE={"SUBSCRIBER_MIDDLEWARE": [f"{__name__}.noting"]}), inline():
        for id, owner in (("a", "Ada"), ("b", "Bob")):
            execute_command(OpenAccount(id, owner=owner))
        execute_command(Deposit("a", amount=Decimal(5)))
        execute_command(StartTransfer("t", source="a", target="b", amount=Decimal(1)))
    assert AccountSummary.objects.get(pk="a").balance == Decimal(4)
    assert AccountSummary.objects.get(pk="b").balance == Decimal(1)
    assert {("bank.AccountSummaries", "AccountOpened", True), ("bank.transfers", "TransferStarted", True)} <= set(calls)
    assert len(calls) > 10
