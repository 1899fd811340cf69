"""Waiting until events are handled, although some processes are slow or die meanwhile."""

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
from tests.acceptance.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

LEDGER, SUMMARIES = "bank.Ledger", "bank.AccountSummaries"


def open_account(stack: Stack) -> str:
    account = new_id()
    handled(stack, OpenAccount(account, owner="somebody"))
    return account


def handled(stack: Stack, command: Command, timeout: float = PATIENCE, by: WaitFor = WaitFor.HANDLED) -> CommandResult:
    stack.journal.note_sent([command])
    answer = execute_command(command, wait_for=by, timeout=timeout)
    stack.journal.note_answer(command, answer)
    return answer


def missing(stack: Stack, command: Command) -> tuple[str, ...]:
    """Send the command once more. Return the subscribers that have not handled it half a second later."""
    with pytest.raises(CommandTimeout) as caught:
        handled(stack, command, 0.5)
    return caught.value.missing


def kill_event_worker(events: Processors) -> None:
    wait_until(events.following_event_workers, "an event worker that follows")
    (pid,) = events.following_event_workers().values()
    os.kill(pid, signal.SIGKILL)


def others_are_through(stack: Stack) -> bool:
    return stack.is_quiet() and all(stack.is_through(name) for name in SUBSCRIBERS if name != LEDGER)


def booked(stack: Stack, account: str) -> list[Decimal]:
    return [row[0] for row in stack.query("SELECT amount FROM bank_ledgerentry WHERE account = %s", account)]


def test_who_waits_until_all_is_handled_is_answered_though_one_is_slow_and_the_event_worker_dies(
    stack: Stack, following: Sequence[str]
) -> None:
    stack.start_ready(role="command")
    events = stack.start(
        role="event", apps=HINDERED, COMMANDS={"TIME_LIMIT": PATIENCE}
    )  # a handler may be held this long
    account = open_account(stack)
    hold, held = stack.directory / f"holding-{LEDGER}", stack.directory / f"held-{LEDGER}"
    hold.touch()
    with ThreadPoolExecutor() as executor:
        waiting = executor.submit(handled, stack, Deposit(account, amount=Decimal(5)))
        wait_until(held.exists, f"{LEDGER} is in the middle of it")
        wait_until(lambda: others_are_through(stack), "the others are done with all there is")
        deposit = Deposit(account, amount=Decimal(6))
        assert handled(stack, deposit, by=WaitFor.subscriber(SUMMARIES)).version == 3
        assert not stack.is_through(LEDGER)
        assert booked(stack, account) == []
        kill_event_worker(events)
        assert not waiting.done()
        hold.unlink()
        answer = waiting.result(PATIENCE)
    assert (answer.status, answer.parked) == (CommandStatus.SUCCESS, ())
    assert handled(stack, deposit).status is CommandStatus.SUCCESS
    assert sorted(booked(stack, account)) == [5, 6]

    hold.touch()
    again = Deposit(account, amount=Decimal(7))
    wait_until(lambda: missing(stack, again) == (LEDGER,), f"only {LEDGER} is missing")
    kill_event_worker(events)
    hold.unlink()
    assert handled(stack, again).status is CommandStatus.SUCCESS
    assert sorted(booked(stack, account)) == [5, 6, 7]
    stack.wait_followed()
    stack.check_read_side()
    stack.check(loaded=False)
