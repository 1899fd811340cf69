"""Waiting until events are handled, whoever is slow or dies meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest

from enode_django import Command, CommandResult, CommandStatus, WaitFor, execute_command
from enode_django.exceptions import CommandTimeout
from enode_django.ids import new_id
from sample_project.bank.domain import Deposit, OpenAccount
from tests.acceptance.processors import Processors
from tests.acceptance.stack import HINDERED, SUBSCRIBERS, Stack
from tests.acceptance.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

LEDGER, SUMMARIES = "bank.Ledger", "bank.AccountSummaries"


def open_account(stack: Stack) -> str:
    account = new_id()
    handled(stack, OpenAccount(aggregate_root_id=account, owner="somebody"), 20)
    return account


def handled(stack: Stack, command: Command, timeout: float, wait_for: WaitFor = WaitFor.HANDLED) -> CommandResult:
    stack.journal.note_sent([command])
    answer = execute_command(command, wait_for=wait_for, timeout=timeout)
    stack.journal.note_answer(command, answer)
    return answer


def missing(stack: Stack, command: Command) -> tuple[str, ...]:
    """Who has not handled it half a second after it was sent once more."""
    with pytest.raises(CommandTimeout) as caught:
        handled(stack, command, 0.5)
    return caught.value.missing


def kill_event_worker(events: Processors) -> None:
    (pid,) = events.following_event_workers().values()
    os.kill(pid, signal.SIGKILL)


def others_are_through(stack: Stack) -> bool:
    return stack.is_quiet() and all(stack.is_through(name) for name in SUBSCRIBERS if name != LEDGER)


def booked(stack: Stack, account: str) -> list[Decimal]:
    return [row[0] for row in stack.query("SELECT amount FROM bank_ledgerentry WHERE account = %s", account)]


def test_who_waits_until_all_is_handled_is_answered_though_the_event_worker_dies(
    stack: Stack, following: Sequence[str]
) -> None:
    stack.start_ready(1, role="command")
    events = stack.start(1, role="event", apps=HINDERED)
    account = open_account(stack)
    hold, held = stack.directory / f"holding-{LEDGER}", stack.directory / f"held-{LEDGER}"
    hold.touch()
    with ThreadPoolExecutor() as executor:
        waiting = executor.submit(handled, stack, Deposit(aggregate_root_id=account, amount=Decimal(5)), 30)
        wait_until(held.exists, f"{LEDGER} is in the middle of it")
        wait_until(lambda: others_are_through(stack), "the others are done with all there is")
        kill_event_worker(events)
        assert not waiting.done()
        hold.unlink()
        answer = waiting.result(30)
    assert (answer.status, answer.parked) == (CommandStatus.SUCCESS, ())
    assert booked(stack, account) == [5]

    hold.touch()
    again = Deposit(aggregate_root_id=account, amount=Decimal(7))
    wait_until(lambda: missing(stack, again) == (LEDGER,), f"only {LEDGER} is missing")
    kill_event_worker(events)
    hold.unlink()
    assert handled(stack, again, 20).status is CommandStatus.SUCCESS
    assert sorted(booked(stack, account)) == [5, 7]
    stack.wait_followed()
    stack.check_read_side()
    stack.check(loaded=False)


def test_a_slow_subscriber_delays_no_other(stack: Stack, following: Sequence[str]) -> None:
    stack.start_ready(1, role="command")
    stack.start(2, role="event", apps=HINDERED)
    accounts = [open_account(stack) for _ in range(8)]
    hold, held = stack.directory / f"holding-{LEDGER}", stack.directory / f"held-{LEDGER}"
    hold.touch()
    stack.client.send([Deposit(aggregate_root_id=account, amount=Decimal(5)) for account in accounts * 50])
    wait_until(held.exists, f"{LEDGER} is in the middle of it")
    wait_until(lambda: others_are_through(stack), "the others are done with all there is")
    deposit = Deposit(aggregate_root_id=accounts[0], amount=Decimal(5))
    assert handled(stack, deposit, 20, WaitFor.subscriber(SUMMARIES)).version == 52
    assert not stack.is_through(LEDGER)
    assert not stack.query("SELECT * FROM bank_ledgerentry")
    hold.unlink()
    stack.wait_followed()
    assert len(stack.query("SELECT * FROM bank_ledgerentry")) == 401
    stack.check_read_side()
    stack.check(loaded=False)
