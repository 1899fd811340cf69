"""A command whose handler waits, like one that calls another service."""

from __future__ import annotations

import time

from enode_django import CommandContext, command_handler
from sample_project.bank.domain import BankAccount, Deposit

WAIT = 0.001
"""Seconds."""


class SlowDeposit(Deposit):
    pass


@command_handler
def deposit_slowly(command: SlowDeposit, context: CommandContext) -> None:
    time.sleep(WAIT)
    context.get(BankAccount).deposit(command)
