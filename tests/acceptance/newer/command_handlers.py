from __future__ import annotations

from enode_django import CommandContext, command_handler
from sample_project.bank.domain import BankAccount, Deposit
from tests.acceptance.newer.commands import PayInterest


@command_handler
def pay_interest(command: PayInterest, context: CommandContext) -> None:
    context.get(BankAccount).deposit(Deposit(command.aggregate_root_id, amount=command.amount))
