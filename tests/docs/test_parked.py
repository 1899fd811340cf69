"""The page on poison events shows the output of ``manage.py enode parked``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection

from tests.docs.blocks import Block, blocks, commands
from tests.docs.pages import DOCS
from tests.docs.test_quickstart import matches

DIGITS, TOO_FEW = 20, 8
TOO_MUCH = Decimal(10) ** 6
"""Too large for a column of eight digits with two decimal places."""


@pytest.fixture
def parked_accounts(transactional_db: None) -> Iterator[None]:
    from enode_django import send_commands
    from enode_django.eventing.registry import subscribers
    from enode_django.testing import inline
    from sample_project.bank.domain import Deposit, OpenAccount, Withdraw
    from sample_project.bank.projections import Ledger
    from tests.following.harness import Harness

    harness = Harness()
    set_precision(TOO_FEW)
    subscription = harness.subscription(subscribers.instance(Ledger), attempts=5)
    for account in ("ada", "bob"):
        with inline(followed_by=[]):
            send_commands(
                [
                    OpenAccount(aggregate_root_id=account, owner=account),
                    Deposit(aggregate_root_id=account, amount=TOO_MUCH),
                    Withdraw(aggregate_root_id=account, amount=Decimal(1)),
                ]
            )
        subscription.follow(harness.store.load(account))
    for _ in range(4):
        harness.clock.now += 100
        subscription.retry_due()
    yield
    set_precision(DIGITS)


def set_precision(digits: int) -> None:
    with connection.cursor() as cursor:
        for column in ("amount", "balance"):
            cursor.execute(f"ALTER TABLE bank_ledgerentry ALTER COLUMN {column} TYPE numeric({digits}, 2)")


def run(block: Block, capsys: pytest.CaptureFixture[str]) -> int:
    """Compare the output with the block. Return the exit status."""
    (command,) = commands(block)
    words = shlex.split(command.line)
    assert words[:4] == ["python", "manage.py", "enode", "parked"]
    status = 0
    try:
        call_command(*words[2:])
    except SystemExit as end:
        status = int(str(end.code))
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(command.output), printed
    assert [line for line, expected in zip(printed, command.output, strict=True) if not matches(expected, line)] == []
    return status


def test_what_the_page_shows_of_parked_is_what_it_prints(
    parked_accounts: None, capsys: pytest.CaptureFixture[str]
) -> None:
    from sample_project.bank.models import LedgerEntry

    console = [block for block in blocks(DOCS / "howto" / "poison-events.md") if block.language == "console"]
    look, retry_in_vain, retry, skip, _, _ = console
    assert run(look, capsys) == 0
    assert run(retry_in_vain, capsys) == 1
    assert run(skip, capsys) == 0  # before the migration, which would let it be handled
    set_precision(DIGITS)
    assert run(retry, capsys) == 0
    found: object = list(LedgerEntry.objects.order_by("account", "version").values_list("account", "version"))
    assert found == [("ada", 2), ("ada", 3), ("bob", 3)]


def test_what_the_page_shows_is_corrected_as_it_says(
    parked_accounts: None, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sample_project.bank.models import LedgerEntry

    console = [block for block in blocks(DOCS / "howto" / "poison-events.md") if block.language == "console"]
    show, edit = console[-2:]
    assert run(show, capsys) == 0
    (command,) = commands(show)
    given = json.loads("\n".join(command.output))
    given["events"][0]["fields"] = {"amount": "1000", "balance": "1000"}
    (tmp_path / "ada.json").write_text(json.dumps(given))
    monkeypatch.chdir(tmp_path)
    assert run(edit, capsys) == 0
    found: object = list(LedgerEntry.objects.filter(account="ada", version=2).values_list("amount", flat=True))
    assert found == [1000]
