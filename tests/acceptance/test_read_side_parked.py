"""Handlers of every subscriber that fail for one account in fifty."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from decimal import Decimal

import pytest

from enode_django import Command, CommandStatus, WaitFor, execute_command
from enode_django.ids import new_id
from sample_project.bank.domain import Deposit, OpenAccount, StartTransfer, Withdraw
from tests.acceptance.hindered.hindrances import is_unlucky
from tests.acceptance.processors import Processors
from tests.acceptance.stack import HINDERED, Stack
from tests.acceptance.waiting import PATIENCE

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

ACCOUNTS = [f"account-{number:04}" for number in (*range(50), *range(1000, 1050))]
UNLUCKY_ACCOUNTS = list(filter(is_unlucky, ACCOUNTS))
PARKING = ("bank.AccountSummaries", "bank.Ledger", "bank.balance_cache", "bank.transfers")


def start_event_workers(stack: Stack) -> Processors:
    return stack.start(role="event", apps=HINDERED, WORKERS={"ATTEMPTS": 3, "RETRY_DELAY": 0.05})


def transfers() -> Sequence[Command]:
    """Return transfers from unlucky accounts, to them, and between others. A third of the transfers is refused. Their
    ids end as those of unlucky accounts do."""
    return [
        StartTransfer(f"{new_id()[:-3]}007", source=source, target=target, amount=Decimal(amount))
        for unlucky in UNLUCKY_ACCOUNTS
        for source, target in [(unlucky, ACCOUNTS[0]), (ACCOUNTS[1], unlucky), (ACCOUNTS[2], ACCOUNTS[3])]
        for amount in (1, 2, 10_000)
    ]


def list_parked(stack: Stack) -> list[tuple[str, str, int, str]]:
    """Subscriber, aggregate root id, attempts and error of each; no attempts: it waits behind what failed."""
    columns = "subscriber, aggregate_root_id, attempts, error"
    return stack.query(f"SELECT {columns} FROM enode_django_parkedevent ORDER BY subscriber, aggregate_root_id, id")


def test_what_fails_is_parked_until_it_is_retried_and_all_else_goes_on(stack: Stack, following: Sequence[str]) -> None:
    stack.start_ready(role="command")
    first = start_event_workers(stack)
    stack.client.send([OpenAccount(account, owner="somebody") for account in ACCOUNTS])
    stack.client.send([Deposit(account, amount=Decimal(100)) for account in ACCOUNTS])
    stack.wait_followed()
    (stack.directory / "failing").touch()
    stack.client.send([Deposit(account, amount=Decimal(5)) for account in ACCOUNTS])
    stack.client.send(transfers())
    stack.client.send([Withdraw(account, amount=Decimal(1)) for account in ACCOUNTS[:20]])
    stack.wait_followed()
    parked = list_parked(stack)
    failed = [row for row in parked if row[2]]
    assert [row[:3] for row in failed] == [(name, account, 3) for name in PARKING for account in UNLUCKY_ACCOUNTS]
    assert all("BadLuck" in error and "Traceback" in error for *_, error in failed)
    assert {name for name, _, attempts, _ in parked if not attempts} == {"bank.transfers"}, "refusals wait"
    figures = stack.check_read_side("--parked")
    assert (figures["accounts"], figures["parked"]) == (len(ACCOUNTS), 8)
    assert figures["transfers started"] > 0

    first.signal(signal.SIGTERM)
    assert first.wait_end() == 0
    start_event_workers(stack)
    later = Deposit(UNLUCKY_ACCOUNTS[0], amount=Decimal(5))
    answer = execute_command(later, wait_for=WaitFor.HANDLED, timeout=PATIENCE)
    stack.journal.note_answer(later, answer)
    assert (answer.status, answer.parked) == (CommandStatus.SUCCESS, PARKING[:3])
    assert list_parked(stack) == parked, "a restart keeps what is parked, and does not try it again"
    source, target = UNLUCKY_ACCOUNTS[0], ACCOUNTS[0]
    refused = StartTransfer(new_id(), source=source, target=target, amount=Decimal(10_000))
    stack.client.send([refused])
    stack.wait_followed()
    assert len(list_parked(stack)) == len(parked) + 1, "its refusal waits behind what failed"

    (stack.directory / "failing").unlink()
    assert "8 go on, 0 parked" in stack.python("manage.py", "enode", "parked", "retry", "--all", apps=HINDERED)
    stack.wait_followed()
    assert list_parked(stack) == []
    figures = stack.check_read_side()
    assert (figures["parked"], figures["transfers completed"], figures["transfers cancelled"]) == (0, 12, 7)
    stack.check(loaded=False)
