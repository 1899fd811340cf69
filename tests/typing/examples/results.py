"""`execute_command` and `try_command` return the type of result that the command names."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, assert_type

from enode_django import (
    Command,
    CommandResult,
    DomainException,
    WaitFor,
    aexecute_command,
    atry_command,
    execute_command,
    try_command,
)
from enode_django.exceptions import CommandFailed
from enode_django.serializers import etag_of


class Withdraw(Command[Decimal]):
    amount: Decimal


class Close(Command):
    reason: str = ""


class InsufficientFunds(DomainException):
    balance: Decimal


def withdraw(command: Withdraw) -> Decimal:
    try:
        result = execute_command(command, wait_for=WaitFor.HANDLED, timeout=5)
    except InsufficientFunds as refusal:
        return refusal.balance
    assert_type(result, CommandResult[Decimal])
    assert_type(result.raise_for_status().value, Decimal)
    return result.value


async def withdraw_later(command: Withdraw) -> None:
    assert_type((await aexecute_command(command)).value, Decimal)
    assert_type((await atry_command(command)).value, Decimal)


def close(command: Close) -> CommandResult:
    result = try_command(command)
    assert_type(result.value, Any)
    assert_type(result.error, DomainException | CommandFailed | None)
    return result


assert_type(try_command(Withdraw("ada", amount=Decimal(30))).value, Decimal)
plain: CommandResult = execute_command(Withdraw("ada", amount=Decimal(30)))
text: str = execute_command(Withdraw("ada", amount=Decimal(30))).value  # error
other: CommandResult[str] = try_command(Withdraw("ada", amount=Decimal(30)))  # error
execute_command("ada")  # error


def etag(command: Withdraw) -> str:
    return etag_of(execute_command(command).version)
