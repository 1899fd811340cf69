from __future__ import annotations

import os
import time
from pathlib import Path

from enode_django import CommandContext, command_handler
from sample_project.bank.domain import BankAccount, Deposit, Deposited
from tests.acceptance.faulty.commands import (
    DepositIfFileExists,
    DepositUnchecked,
    DepositWhenFileExists,
    EndProcess,
    NeverReturn,
)


@command_handler
def end_process(command: EndProcess, context: CommandContext) -> None:
    os._exit(command.status)


@command_handler
def never_return(command: NeverReturn, context: CommandContext) -> None:
    while True:
        time.sleep(1)


@command_handler
def deposit_if_file_exists(command: DepositIfFileExists, context: CommandContext) -> None:
    if Path(command.path).exists():
        context.get(BankAccount).deposit(Deposit(command.aggregate_root_id, amount=command.amount))
    elif command.otherwise_raise:
        raise FileNotFoundError(f"there is nothing at {command.path!r}")


@command_handler
def deposit_unchecked(command: DepositUnchecked, context: CommandContext) -> None:
    account = context.get(BankAccount)
    account.apply(Deposited(amount=command.amount, balance=account.balance + command.amount))


@command_handler
def deposit_when_file_exists(command: DepositWhenFileExists, context: CommandContext) -> None:
    Path(f"{command.path}.begun").touch()
    while not Path(command.path).exists():
        time.sleep(0.01)
    context.get(BankAccount).deposit(Deposit(command.aggregate_root_id, amount=command.amount))
