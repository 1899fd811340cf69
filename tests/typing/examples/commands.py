"""The target comes first, fields follow by keyword; a command may name the type of its result."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, TypeVar, assert_type

from enode_django import Command

Result = TypeVar("Result")


class Withdraw(Command[Decimal]):
    amount: Decimal


class Close(Command):
    reason: str = ""


def value_of(command: Command[Result]) -> Result:
    raise NotImplementedError


def id_of(command: Command, kind: type[Command]) -> str:
    return command.id


Withdraw("ada", amount=Decimal(30))
Withdraw(aggregate_root_id="ada", amount=Decimal(30), id="withdraw/1")
Close("ada")
id_of(Withdraw("ada", amount=Decimal(30)), Withdraw)
assert_type(value_of(Withdraw("ada", amount=Decimal(30))), Decimal)
assert_type(value_of(Close("ada")), Any)

Withdraw("ada", Decimal(30))  # error
Withdraw(amount=Decimal(30))  # error
Withdraw(7, amount=Decimal(30))  # error
Withdraw("ada", amount="30")  # error
Close("ada", "no reason")  # error
