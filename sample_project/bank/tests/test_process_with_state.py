"""A process manager with a state over the bank's events: every third deposit of an account is rewarded, once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from django.test import TestCase

from enode_django import Command, ProcessManager, ends, execute_command, handles, starts
from enode_django.models import ProcessState
from enode_django.testing import given, inline
from sample_project.bank.domain import AccountClosed, AccountOpened, BankAccount, Deposit, Deposited, OpenAccount


@dataclass
class Savings:
    owner: str = ""
    deposits: int = 0
    is_rewarded: bool = False


class Rewards(ProcessManager):
    name = "bank.rewards"
    abstract = True  # it runs only in the tests that name it
    start = "beginning"
    state = Savings

    @starts
    def opened(self, savings: Savings, event: AccountOpened) -> None:
        savings.owner = event.owner

    @handles
    def deposited(self, savings: Savings, event: Deposited) -> Iterator[Command]:
        savings.deposits += 1
        if savings.deposits == 3 and not savings.is_rewarded:
            savings.is_rewarded = True
            yield Deposit(event.aggregate_root_id, amount=Decimal(1))

    @ends
    def closed(self, savings: Savings, event: AccountClosed) -> None: ...


FIVE = Deposited(amount=Decimal(5), balance=Decimal(5))


class ProcessesWithState(TestCase):
    def test_the_third_deposit_is_rewarded(self) -> None:
        rewards = given(Rewards, "ada", AccountOpened(owner="Ada"), FIVE, FIVE)
        rewards.when(FIVE).then(Deposit("ada", amount=Decimal(1)))
        rewards.then_state(Savings(owner="Ada", deposits=3, is_rewarded=True))
        rewards.when(FIVE).then_nothing()
        rewards.when(AccountClosed()).then_ended()

    def test_the_reward_is_paid(self) -> None:
        with inline(followed_by=[Rewards]):
            execute_command(OpenAccount("ada", owner="Ada"))
            for _ in range(4):
                execute_command(Deposit("ada", amount=Decimal(5)))
        assert BankAccount.load("ada").balance == 21
        assert ProcessState.objects.get(subscriber="bank.rewards").version == 6
