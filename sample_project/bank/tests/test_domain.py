"""The account's rules, without a database."""

from __future__ import annotations

from decimal import Decimal

from django.test import SimpleTestCase

from enode_django import VersionMismatch
from enode_django.testing import given
from sample_project.bank.domain import (
    AccountClosed,
    AccountIsClosed,
    AccountNotEmpty,
    AccountOpened,
    BankAccount,
    CloseAccount,
    Deposit,
    Deposited,
    InsufficientFunds,
    InvalidAmount,
    OpenAccount,
    Withdraw,
    Withdrawn,
)

OPENED = AccountOpened(owner="Ada")
FIVE = Deposited(amount=Decimal(5), balance=Decimal(5))


class AccountRules(SimpleTestCase):
    def test_an_account_is_opened_once(self) -> None:
        given(BankAccount, "a").when(OpenAccount("a", owner="Ada")).then(OPENED)
        given(BankAccount, "a", OPENED).when(OpenAccount("a", owner="Bob")).then_failed("AggregateAlreadyExists")

    def test_who_saw_another_balance_withdraws_nothing(self) -> None:
        account = given(BankAccount, "a", OPENED, FIVE)
        withdraw = Withdraw("a", amount=Decimal(5))
        account.when(withdraw, expected_version=1).then_refused(VersionMismatch, expected_version=1)
        again = Withdraw("a", amount=Decimal(5))
        account.when(again, expected_version=2).then(Withdrawn(amount=Decimal(5), balance=Decimal(0)))

    def test_a_deposit_raises_the_balance(self) -> None:
        given(BankAccount, "a", OPENED, FIVE).when(Deposit("a", amount=Decimal("2.50"))).then(
            Deposited(amount=Decimal("2.50"), balance=Decimal("7.50")), result=Decimal("7.50")
        )

    def test_amounts_are_positive(self) -> None:
        account = given(BankAccount, "a", OPENED, FIVE)
        account.when(Deposit("a", amount=Decimal(0))).then_refused(InvalidAmount, amount=Decimal(0))
        account.when(Withdraw("a", amount=Decimal(-1))).then_refused(InvalidAmount)

    def test_amounts_are_whole_cents_and_not_endless(self) -> None:
        account = given(BankAccount, "a", OPENED)
        for amount in (
            Decimal("0.001"),
            Decimal("1.999"),
            Decimal(10**12) + 1,
            Decimal("1E+999999"),
            Decimal("Infinity"),
        ):
            account.when(Deposit("a", amount=amount)).then_refused(InvalidAmount, amount=amount)
        account.when(Deposit("a", amount=Decimal("0.010"))).then(
            Deposited(amount=Decimal("0.01"), balance=Decimal("0.01"))
        )

    def test_an_overdraft_is_refused_and_changes_nothing(self) -> None:
        account = given(BankAccount, "a", OPENED, FIVE)
        account.when(Withdraw("a", amount=Decimal(6))).then_refused(
            InsufficientFunds, balance=Decimal(5), amount=Decimal(6)
        )
        account.when(Withdraw("a", amount=Decimal(5))).then(Withdrawn(amount=Decimal(5), balance=Decimal(0)))

    def test_a_deposit_may_expect_the_account_as_it_was_seen(self) -> None:
        deposit = Deposit("a", amount=Decimal(5))
        account = given(BankAccount, "a", OPENED, FIVE)
        account.when(deposit, expected_version=1).then_refused(VersionMismatch, expected_version=1, version=2)
        again = Deposit("a", amount=Decimal(5))
        account.when(again, expected_version=2).then(Deposited(amount=Decimal(5), balance=Decimal(10)))

    def test_only_an_empty_account_is_closed_and_closing_again_changes_nothing(self) -> None:
        given(BankAccount, "a", OPENED, FIVE).when(CloseAccount("a")).then_refused(AccountNotEmpty)
        account = given(BankAccount, "a", OPENED)
        account.when(CloseAccount("a")).then(AccountClosed())
        account.when(CloseAccount("a")).then_nothing()
        account.when(Deposit("a", amount=Decimal(1))).then_refused(AccountIsClosed)
