"""Several command and event mailboxes in each worker: every promise holds with them as it does with one."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from enode_django import CommandStatus
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.statements import TABLE
from enode_django.ids import new_id
from enode_django.serialization.codec import encode_stream
from sample_project.bank.domain import Deposit, Deposited, OpenAccount
from tests.acceptance.stack import SLOW_REDIS_STREAMS, Stack
from tests.acceptance.test_services_lost import END_WORKERS_SESSIONS
from tests.acceptance.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

SEVERAL = {"COMMANDS": {"MAILBOXES": 3, "EVENT_MAILBOXES": 2}}
ACCOUNTS = 12
BEHIND = 5
AMOUNT = Decimal(5)


def test_mailboxes_beside_one_another_keep_every_promise_through_conflicts_and_faults(stack: Stack, seed: int) -> None:
    """Accounts of all mailboxes are changed behind the caches' backs, again and again; a worker is killed and sessions
    are ended meanwhile, while steps of the write path take their time. No lease runs out, however slow the machine is:
    who gets a queue finds in the store what would be a conflict."""
    report = stack.directory / "report.json"
    processors = stack.start_ready(
        2, "--report", str(report), transport=SLOW_REDIS_STREAMS, WORKERS={"LEASE": PATIENCE}, **SEVERAL
    )
    accounts = [new_id() for _ in range(ACCOUNTS)]
    for account in accounts:
        stack.client.execute(OpenAccount(account, owner="somebody"))
    with stack.load(seed) as load:
        _change_behind_the_caches(stack, accounts)
        wait_until(lambda: _conflicts(report) >= ACCOUNTS, "the workers have reported a conflict of each account")
        victim, pid = random.Random(seed).choice(sorted(processors.living_workers().items()))
        os.kill(pid, signal.SIGKILL)
        processors.wait_for(f"worker {victim} died: killed by SIGKILL; starting another")
        _change_behind_the_caches(stack, accounts)
        stack.query(END_WORKERS_SESSIONS)
        _change_behind_the_caches(stack, accounts)
        load.wait_for_rounds(20)
    stack.check()


def _change_behind_the_caches(stack: Stack, accounts: Sequence[str]) -> None:
    """Store a deposit to each account as another worker would, without telling anybody. Then send the deposit, with
    more behind it, to the worker that has the account in its cache."""
    for account in accounts:
        deposit = Deposit(account, amount=AMOUNT)
        stored = _store_as_another(stack, deposit)
        behind = [Deposit(account, amount=AMOUNT) for _ in range(BEHIND)]
        stack.client.send([deposit, *behind])
        answer = stack.client.execute(deposit)
        assert answer is not None
        assert (answer.status, answer.version, answer.value) == (CommandStatus.SUCCESS, stored, "by another")
        last = stack.client.execute(Deposit(account, amount=AMOUNT))
        assert last is not None
        assert (last.status, last.version) == (CommandStatus.SUCCESS, stored + BEHIND + 1)


def _store_as_another(stack: Stack, deposit: Deposit) -> int:
    """Returns the version. The result is another one than the handler's, so that the row is not taken for its own."""
    version = len(stack.query(f"SELECT FROM {TABLE} WHERE aggregate_root_id = %s", deposit.aggregate_root_id))
    event = Deposited(amount=deposit.amount, balance=version * AMOUNT)
    row = StreamRecord(
        deposit.aggregate_root_id,
        version + 1,
        deposit.id,
        "bank.BankAccount",
        "bank.Deposit",
        datetime.now(UTC),
        encode_stream([event], "by another"),
        b"",
    )
    marks = ", ".join(["%s"] * len(row))
    stack.query(f"INSERT INTO {TABLE} ({', '.join(row._fields)}) VALUES ({marks}) RETURNING version", *row)
    return version + 1


def _conflicts(report: Path) -> int:
    found: int = json.loads(report.read_text())["conflicts"]
    return found
