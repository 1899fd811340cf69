"""A command whose handler waits for something, as one that asks another service does."""

from __future__ import annotations

import time
from decimal import Decimal

from enode_django import Command, CommandContext, command_handler
from sample_project.bank.domain import BankAccount

WAIT = 0.001
"""Seconds."""


class SlowDeposit(Command):
    amount: Decimal


@command_handler(SlowDeposit)
def deposit_slowly(command: SlowDeposit, context: CommandContext) -> None:
    time.sleep(WAIT)
    context.get(BankAccount).deposit(command.amount)
