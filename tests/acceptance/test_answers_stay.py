"""A command that left no row in the store gets the same answer again after the processors were stopped or killed."""

from __future__ import annotations

import signal
from decimal import Decimal
from pathlib import Path

import pytest

from enode_django import Command, CommandResult, CommandStatus
from enode_django.ids import new_id
from sample_project.bank.domain import Deposit, OpenAccount
from tests.acceptance.faulty.commands import DepositIfFileExists
from tests.acceptance.stack import Stack

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]


def execute(stack: Stack, command: Command) -> CommandResult:
    answer = stack.client.execute(command)
    assert answer is not None
    return answer


def test_commands_that_left_no_row_are_answered_alike_after_a_restart(stack: Stack, tmp_path: Path) -> None:
    account, later, path = new_id(), new_id(), tmp_path / "there"
    commands = [
        Deposit(later, amount=Decimal(7)),
        DepositIfFileExists(account, path=str(path), amount=Decimal(7), otherwise_raise=True),
        DepositIfFileExists(account, path=str(path), amount=Decimal(7), otherwise_raise=False),
    ]
    first = stack.start_ready()
    execute(stack, OpenAccount(account, owner="somebody")).raise_for_status()
    answers = [execute(stack, command) for command in commands]
    assert [(answer.status, answer.error_type) for answer in answers] == [
        (CommandStatus.FAILED, "AggregateNotFound"),
        (CommandStatus.FAILED, "FileNotFoundError"),
        (CommandStatus.NOTHING_CHANGED, ""),
    ]
    execute(stack, OpenAccount(later, owner="somebody")).raise_for_status()
    path.touch()  # from now on each of them would succeed
    first.signal(signal.SIGTERM)
    assert first.wait_end() == 0

    second = stack.start_ready()
    assert [execute(stack, command) for command in commands] == answers
    second.signal_group(signal.SIGKILL)
    second.wait_gone()
    stack.start_ready()
    assert [execute(stack, command) for command in commands] == answers
    news = [command.__class__(**{**vars(command), "id": new_id()}) for command in commands]
    assert [execute(stack, command).status for command in news] == [CommandStatus.SUCCESS] * 3
    stack.check(loaded=False)
    assert {command.id for command in commands}.isdisjoint(record.command_id for record in stack.stored())
