"""An event that no subscriber's column can hold is corrected while command and event workers run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from enode_django import CommandStatus, WaitFor, execute_command
from enode_django.ids import new_id
from sample_project.bank.domain import CloseAccount, Deposit, OpenAccount
from tests.acceptance.faulty.commands import DepositUnchecked
from tests.acceptance.stack import Stack
from tests.acceptance.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

TOO_MUCH = Decimal(10**18)
"""A balance has 18 digits before its point in the read models."""


def parked(stack: Stack) -> list[tuple[str, int]]:
    """Return the subscriber and the version of each parked event."""
    return stack.query("SELECT subscriber, version FROM enode_django_parkedevent ORDER BY subscriber")  # type: ignore[return-value]


def summary(stack: Stack, account: str) -> list[tuple[Any, ...]]:
    columns = "version, balance, available"
    return stack.query(f"SELECT {columns} FROM bank_accountsummary WHERE aggregate_root_id = %s", account)


def booked(stack: Stack, account: str) -> list[tuple[Any, ...]]:
    columns = "version, amount, balance"
    return stack.query(f"SELECT {columns} FROM bank_ledgerentry WHERE account = %s ORDER BY version", account)


def balance_in_worker(stack: Stack, account: str) -> Decimal:
    """Return the balance that the command worker refuses to close the account with: that changes nothing."""
    answer = stack.client.execute(CloseAccount(account))
    assert answer is not None
    assert answer.error_type == "bank.AccountNotEmpty"
    return Decimal(answer.error_fields["balance"])


def correct_deposit(stack: Stack, account: str, amount: str) -> str:
    """Correct the event that the account is parked at, as an operator does; return what the command says."""
    shown = json.loads(stack.python("manage.py", "enode", "parked", "show", account))
    (event,) = shown["events"]
    event["fields"].update(amount=amount, balance=amount)
    why = ("--reason", "typed sixteen noughts too many")
    return stack.python("manage.py", "enode", "parked", "edit", account, "--file", "-", *why, given=json.dumps(shown))


def test_running_workers_go_on_with_the_corrected_event(stack: Stack, following: Sequence[str]) -> None:
    stack.start_ready(role="command")
    stack.start(role="event", WORKERS={"ATTEMPTS": 2, "RETRY_DELAY": 0.05})
    account = new_id()
    stack.client.execute(OpenAccount(account, owner="Ada"))
    stack.client.execute(DepositUnchecked(account, amount=TOO_MUCH))
    poisoned = [("bank.AccountSummaries", 2), ("bank.Ledger", 2)]
    wait_until(lambda: parked(stack) == poisoned, "both projections have parked the deposit")
    assert balance_in_worker(stack, account) == TOO_MUCH

    assert f"version 2 of {account} is read as corrected" in correct_deposit(stack, account, "100")
    wait_until(lambda: summary(stack, account) == [(2, 100, 100)], "the summary shows the corrected deposit")
    wait_until(lambda: balance_in_worker(stack, account) == 100, "the command worker has the corrected balance")

    deposit = Deposit(account, amount=Decimal(5))
    answer = execute_command(deposit, wait_for=WaitFor.HANDLED, timeout=PATIENCE)
    assert (answer.status, answer.value, answer.parked) == (CommandStatus.SUCCESS, Decimal(105), ())
    assert summary(stack, account) == [(3, 105, 105)]
    assert booked(stack, account) == [(2, 100, 100), (3, 5, 105)]
    assert parked(stack) == []
