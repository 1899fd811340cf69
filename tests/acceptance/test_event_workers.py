from __future__ import annotations

import json
import os
import signal
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from enode_django.ids import new_id
from sample_project.bank.domain import Deposit, OpenAccount
from tests.acceptance.processors import Processors, stop
from tests.acceptance.stack import EVENTS, QUEUES, Stack
from tests.acceptance.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.acceptance

LEDGER = "bank.Ledger"
ACCOUNTS = 5


def released(stack: Stack, group: str) -> bool:
    leases = [stack.transport.acquire(group, EVENTS, queue, "test", 1) for queue in range(QUEUES)]
    stack.transport.release(group, EVENTS, "test", {queue: lease.epoch for queue, lease in enumerate(leases)})
    return all(lease.previous_owner is None for lease in leases)


def open_accounts(stack: Stack) -> None:
    for _ in range(ACCOUNTS):
        account = new_id()
        stack.client.execute(OpenAccount(account, owner="somebody"))
        stack.client.execute(Deposit(account, amount=Decimal(5)))


def test_event_workers_drain_end_with_their_supervisor_and_are_succeeded(stack: Stack, tmp_path: Path) -> None:
    commands = stack.start_ready()
    report = tmp_path / "report.json"
    first = stack.start(2, "--report", str(report), role="event")
    stack.wait_subscribed()
    open_accounts(stack)
    stack.wait_followed()
    first.signal(signal.SIGTERM)
    assert first.wait_end() == 0
    first.wait_gone()
    assert "Traceback" not in first.log
    assert all(released(stack, name) for name in stack.subscribers)
    assert "subscribers: bank.AccountSummaries" in first.log
    check_figures(json.loads(report.read_text()))

    open_accounts(stack)
    second = stack.start(role="event")
    stack.wait_followed()
    second.signal(signal.SIGKILL)
    second.wait_gone()

    open_accounts(stack)
    third = stack.start(
        2, role="event", COMMANDS={"TIME_LIMIT": PATIENCE}
    )  # one will stand still, and is not to be killed
    stack.wait_followed()
    let_one_stand_still(stack, third)
    assert list(third.living_event_workers()) == list(third.event_workers()), "nobody died"
    assert not third.workers(), "no worker for commands"
    assert not commands.event_workers()
    stack.check(loaded=False)
    stack.check_read_side()


def check_figures(figures: dict[str, Any]) -> None:
    assert figures["subscribers"][LEDGER]["handled"] >= 2 * ACCOUNTS
    assert figures["handled"] == sum(one["handled"] for one in figures["subscribers"].values())
    assert (figures["parked"], figures["event_workers"], figures["workers"]) == (0, 0, 0)


def let_one_stand_still(stack: Stack, events: Processors) -> None:
    """Its queues go to the other one, which ends its sessions."""
    wait_until(lambda: len(events.living_event_workers()) == 2, "two event workers")
    for name in events.living_event_workers():
        events.wait_for(rf"INFO {name} .*acquired events/[\d, ]+ for {LEDGER}")
    name, pid = next(iter(events.living_event_workers().items()))
    stop(pid)
    open_accounts(stack)
    events.wait_for(rf"{LEDGER} took events/[\d, ]+ from {name}, ending \d+ of its sessions")
    stack.wait_followed()
    os.kill(pid, signal.SIGCONT)
    open_accounts(stack)
    stack.wait_followed()
