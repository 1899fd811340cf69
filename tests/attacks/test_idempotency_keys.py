"""Idempotency keys that are chosen to take the id of another sender's command, or of a process manager's future one."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from rest_framework import serializers

from enode_django import execute_command
from enode_django.bus.derived_ids import derived_id
from enode_django.ids import id_of_key
from enode_django.models import EventStream
from enode_django.serializers import CommandSerializer
from enode_django.testing import inline
from sample_project.bank.domain import Deposit, OpenAccount, Withdraw
from sample_project.bank.models import AccountSummary
from tests.api.calls import Caller, logged_in, problem

pytestmark = pytest.mark.django_db

WAIT = "?wait=executed"


@pytest.fixture(autouse=True)
def accounts() -> Iterator[None]:
    """Give Ada 100, and Bob nothing. Inside, commands are executed at once, and the process manager follows."""
    with inline():
        for id in ("ada", "bob"):
            execute_command(OpenAccount(id, owner=id))
        execute_command(Deposit("ada", amount=Decimal(100)))
        yield


@pytest.fixture
def teller() -> Caller:
    return logged_in("send_command", name="teller")


def balances() -> list[Decimal]:
    return [AccountSummary.objects.get(pk=id).balance for id in ("ada", "bob")]


def ids_of_the_deposit(transfer: str) -> list[str]:
    """Return every id that the process manager may give the confirmation of a transfer's deposit. An attacker who knows
    the algorithm can compute these before the transfer is started."""
    causes = [f"{transfer}/{version}/{index}" for version in range(1, 6) for index in range(2)]
    return [derived_id(cause, "bank.transfers", "bank.ConfirmDeposit", "bob", 1) for cause in causes]


def test_a_key_cannot_take_the_id_of_a_process_managers_command(teller: Caller) -> None:
    for id in ids_of_the_deposit("t"):
        problem(teller.send("bank.Withdraw", "bob", {"amount": "1"}, key=id, query=WAIT), 409)
    started = teller.send("bank.StartTransfer", "t", {"source": "ada", "target": "bob", "amount": "30"}, query=WAIT)
    assert started.status_code == 200
    assert balances() == [Decimal(70), Decimal(30)]
    assert EventStream.objects.filter(command_id__in=ids_of_the_deposit("t")).count() == 1


def test_the_bytes_of_an_id_say_that_a_key_has_made_it() -> None:
    """Ids of keys have the UUID version 8, those of process managers 5, and new ids 7."""
    of_keys = [id_of_key(user, key) for user in ("", "1", "11") for key in ("k", "1k", *ids_of_the_deposit("t"))]
    assert {UUID(id).version for id in of_keys} == {8}
    assert {UUID(id).version for id in ids_of_the_deposit("t")} == {5}
    assert len(set(of_keys)) == len(of_keys)  # user "1" with key "k" is not user "" with key "1k"


def test_an_id_among_the_data_of_a_serializer_is_a_key(teller: Caller) -> None:
    class WithId(CommandSerializer):
        id = serializers.CharField()

        class Meta:
            command = Withdraw

    def id_for(user: Any) -> str:
        request = type("Request", (), {"user": user})()
        serializer = WithId(data={"id": "k", "amount": "1"}, context={"request": request} if user else {})
        serializer.is_valid(raise_exception=True)
        return serializer.command(aggregate_root_id="ada").id

    assert id_for(teller.user) == id_of_key(teller.key, "k")
    assert id_for(None) == id_of_key("", "k")


def test_the_parts_of_a_transfer_are_not_the_command_of_who_has_started_it(teller: Caller) -> None:
    """The outcomes of these commands reveal the balances of others."""
    teller.send("bank.StartTransfer", "t", {"source": "bob", "target": "ada", "amount": "5"}, key="own", query=WAIT)
    refused = EventStream.objects.get(aggregate_root_id="bob", version=None)
    assert problem(teller.get(f"commands/{refused.command_id}/"), 404)
    assert teller.get("commands/own/").json()["status"] == "success"
    auditor = logged_in("view_eventstream", name="auditor")
    seen = auditor.get(f"commands/{refused.command_id}/").json()
    assert (seen["status"], "problem" in seen) == ("refused", False)
    may_see_all = logged_in("view_eventstream", "view_payload", name="inspector")
    assert may_see_all.get(f"commands/{refused.command_id}/").json()["problem"]["balance"] == "0"
