"""The check of the read side finds each difference."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import pytest
from django.core.cache import cache
from django.db import connection

from enode_django import Command, send_commands
from enode_django.eventing.registry import subscribers
from enode_django.testing import inline
from sample_project.bank.domain import Deposit, OpenAccount, StartTransfer
from tests.acceptance.read_side import Reading


def transfer(id: str, source: str, target: str, amount: int) -> Command:
    return StartTransfer(id, source=source, target=target, amount=Decimal(amount))


HARM = {
    "UPDATE bank_accountsummary SET owner = 'else' WHERE aggregate_root_id = 'a0'": (
        "AccountSummary has 0 of ('a0', 2, 'somebody'",
        "AccountSummary has 1 of ('a0', 2, 'else'",
    ),
    "UPDATE bank_accountsummary SET version = 1 WHERE aggregate_root_id = 'a1'": (
        "bank.AccountSummaries has a1 at version 1, which is not in [2]",
    ),
    "UPDATE bank_accountsummary SET available = 1 WHERE aggregate_root_id = 'a2'": ("account a2 is shown with",),
    "DELETE FROM bank_ledgerentry WHERE account = 'a3'": (
        "LedgerEntry has 0 of ('a3', 2",
        "what the ledger has of account a3",
    ),
    "UPDATE bank_ledgerentry SET account = 'nobody' WHERE account = 'a4'": (
        "LedgerEntry has 1 of ('nobody', 2",
        "account nobody is shown, and not stored",
    ),
    "UPDATE enode_django_checkpoint SET version = 3 WHERE aggregate_root_id = 'a5' AND subscriber = 'bank.Ledger'": (
        "bank.Ledger has a5 at version 3, which is not in [2]",
    ),
    "DELETE FROM enode_django_checkpoint WHERE aggregate_root_id = 'a5' AND subscriber = 'bank.transfers'": (
        "bank.transfers has a5 at version 0, which is not in [2]",
    ),
    "INSERT INTO enode_django_checkpoint VALUES ('bank.Ledger', 'nobody', 1, 0)": ("of nothing that is stored",),
    # The expected effects of a process manager's commands:
    "DELETE FROM enode_django_eventstream WHERE command_type = 'bank.ConfirmDeposit' AND aggregate_root_id = 'a6'": (
        "account a6 has reservations: ['t0']",
        "transfer t0 is completed and has not moved just",
        "the balances add up to 90; 100 was paid in",
    ),
    "DELETE FROM enode_django_eventstream WHERE aggregate_root_id = 't1' AND version > 1": (
        "transfer t1 has not ended, it is started",
    ),
    "DELETE FROM enode_django_eventstream WHERE aggregate_root_id = 't2'": (
        "transfer t2 has moved money, and was never started",
    ),
}


@pytest.mark.django_db(transaction=True)
def test_each_problem_is_found(following: Sequence[str]) -> None:
    cache.clear()
    accounts = [f"a{number}" for number in range(10)]
    with inline(followed_by=[subscribers.get(name) for name in following]):
        send_commands([OpenAccount(account, owner="somebody") for account in accounts])
        send_commands([Deposit(account, amount=Decimal(10)) for account in accounts])
        send_commands([transfer("t0", "a7", "a6", 10), transfer("t1", "a7", "a8", 20), transfer("t2", "a8", "a9", 10)])
    reading = Reading()
    assert list(reading.problems([])) == []
    assert (reading.figures["accounts"], reading.figures["cached balances"]) == (10, 10)

    cache.set("bank.balance.a9", Decimal(1))
    for statement in HARM:
        with connection.cursor() as cursor:
            cursor.execute(statement)
    problems = list(Reading().problems([]))
    wanted = [text for texts in HARM.values() for text in texts]
    wanted.append("account a9 has 1 in the cache; stored is 20")
    assert [text for text in wanted if not any(text in problem for problem in problems)] == [], problems
