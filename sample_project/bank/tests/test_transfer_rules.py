"""The rules of accounts, transfers and their process manager, each tested alone."""

from __future__ import annotations

from decimal import Decimal

from django.test import SimpleTestCase

from enode_django import CommandCrashed
from enode_django.testing import given
from sample_project.bank.domain import (
    AccountClosed,
    AccountIsClosed,
    AccountOpened,
    BankAccount,
    CancelReservation,
    CancelTransfer,
    CloseAccount,
    ConfirmDeposit,
    ConfirmWithdrawal,
    DepositConfirmed,
    Deposited,
    DepositReserved,
    InsufficientFunds,
    InvalidAmount,
    MoneyTransfer,
    MovementNoted,
    NoteMoved,
    NoteReserved,
    NothingReserved,
    ReservationCancelled,
    ReservationNoted,
    ReserveDeposit,
    ReserveWithdrawal,
    SameAccount,
    Side,
    StartTransfer,
    TransferCancelled,
    TransferCompleted,
    TransferConfirmed,
    TransferIsConfirmed,
    TransferStarted,
    TransfersUnderWay,
    UnknownAccount,
    Withdraw,
    WithdrawalConfirmed,
    WithdrawalReserved,
)
from sample_project.bank.process_managers import TransferProcess

OPENED = AccountOpened(owner="Ada")
FIVE = Deposited(amount=Decimal(5), balance=Decimal(5))
STARTED = TransferStarted(source="a", target="b", amount=Decimal(3))
BOTH = [ReservationNoted(side=Side.SOURCE), ReservationNoted(side=Side.TARGET)]


class AnAccountInATransfer(SimpleTestCase):
    def test_what_is_reserved_cannot_be_spent_twice(self) -> None:
        account = given(BankAccount, "a", OPENED, FIVE)
        account.when(ReserveWithdrawal("a", transfer="t", amount=Decimal(3))).then(
            WithdrawalReserved(transfer="t", amount=Decimal(3))
        )
        account.when(ReserveWithdrawal("a", transfer="u", amount=Decimal(3))).then_refused(
            InsufficientFunds, transfer="u", balance=Decimal(5), reserved=Decimal(3)
        )
        account.when(Withdraw("a", amount=Decimal(3))).then_refused(InsufficientFunds, transfer=None)

    def test_confirming_moves_what_was_reserved_once(self) -> None:
        account = given(BankAccount, "a", OPENED, FIVE, WithdrawalReserved(transfer="t", amount=Decimal(3)))
        account.when(ConfirmWithdrawal("a", transfer="t")).then(
            WithdrawalConfirmed(transfer="t", amount=Decimal(3), balance=Decimal(2))
        )
        account.when(ConfirmWithdrawal("a", transfer="t")).then_refused(NothingReserved, transfer="t")
        account = given(BankAccount, "b", OPENED, FIVE, DepositReserved(transfer="t", amount=Decimal(3)))
        account.when(ConfirmDeposit("b", transfer="t")).then(
            DepositConfirmed(transfer="t", amount=Decimal(3), balance=Decimal(8))
        )

    def test_a_cancelled_reservation_can_be_spent_again(self) -> None:
        account = given(BankAccount, "a", OPENED, FIVE, WithdrawalReserved(transfer="t", amount=Decimal(5)))
        account.when(CancelReservation("a", transfer="t")).then(ReservationCancelled(transfer="t", released=Decimal(5)))
        account.when(CancelReservation("a", transfer="t")).then_nothing()
        account.when(ReserveWithdrawal("a", transfer="u", amount=Decimal(5))).then(
            WithdrawalReserved(transfer="u", amount=Decimal(5))
        )

    def test_a_cancelled_deposit_releases_nothing(self) -> None:
        account = given(BankAccount, "b", OPENED, DepositReserved(transfer="t", amount=Decimal(5)))
        account.when(CancelReservation("b", transfer="t")).then(ReservationCancelled(transfer="t", released=Decimal(0)))

    def test_an_account_stays_open_as_long_as_something_is_reserved(self) -> None:
        account = given(BankAccount, "b", OPENED, DepositReserved(transfer="t", amount=Decimal(5)))
        account.when(CloseAccount("b")).then_refused(TransfersUnderWay, transfers=["t"])

    def test_refusals_name_the_transfer(self) -> None:
        closed = given(BankAccount, "a", OPENED, AccountClosed())
        for reserve in (ReserveWithdrawal, ReserveDeposit):
            command = reserve("a", transfer="t", amount=Decimal(1))
            closed.when(command).then_refused(AccountIsClosed, transfer="t")
            command = reserve("x", transfer="t", amount=Decimal(1))
            given(BankAccount, "x").when(command).then_refused(UnknownAccount, transfer="t")
            given(MoneyTransfer, "x", STARTED).when(command).then_refused(UnknownAccount, transfer="t")
            command = reserve("b", transfer="t", amount=Decimal(-1))
            given(BankAccount, "b", OPENED).when(command).then_refused(InvalidAmount, transfer="t")

    def test_there_is_nothing_to_cancel_where_there_is_no_account(self) -> None:
        cancel = CancelReservation("x", transfer="t")
        given(BankAccount, "x").when(cancel).then_nothing()
        given(MoneyTransfer, "x", STARTED).when(cancel).then_nothing()


class ATransfer(SimpleTestCase):
    def test_it_is_confirmed_when_both_sides_have_reserved_in_any_order(self) -> None:
        for first, second in ((Side.SOURCE, Side.TARGET), (Side.TARGET, Side.SOURCE)):
            transfer = given(MoneyTransfer, "t", STARTED)
            transfer.when(NoteReserved("t", side=first)).then(ReservationNoted(side=first))
            transfer.when(NoteReserved("t", side=first)).then_nothing()
            transfer.when(NoteReserved("t", side=second)).then(
                ReservationNoted(side=second), TransferConfirmed(source="a", target="b")
            )

    def test_it_is_completed_when_both_sides_have_moved(self) -> None:
        transfer = given(MoneyTransfer, "t", STARTED, *BOTH, TransferConfirmed(source="a", target="b"))
        transfer.when(NoteMoved("t", side=Side.TARGET)).then(MovementNoted(side=Side.TARGET))
        transfer.when(NoteMoved("t", side=Side.TARGET)).then_nothing()
        transfer.when(NoteMoved("t", side=Side.SOURCE)).then(MovementNoted(side=Side.SOURCE), TransferCompleted())

    def test_nothing_revives_a_cancelled_one(self) -> None:
        transfer = given(MoneyTransfer, "t", STARTED, BOTH[0])
        transfer.when(CancelTransfer("t", reason="no")).then(TransferCancelled(source="a", target="b", reason="no"))
        transfer.when(CancelTransfer("t", reason="no, again")).then_nothing()
        transfer.when(NoteReserved("t", side=Side.TARGET)).then_nothing()
        transfer.when(NoteMoved("t", side=Side.TARGET)).then_nothing()

    def test_a_confirmed_one_cannot_be_cancelled(self) -> None:
        transfer = given(MoneyTransfer, "t", STARTED, *BOTH, TransferConfirmed(source="a", target="b"))
        transfer.when(CancelTransfer("t", reason="late")).then_refused(TransferIsConfirmed)

    def test_one_that_cannot_work_is_not_started(self) -> None:
        def start(source: str, target: str, amount: Decimal = Decimal(1)) -> StartTransfer:
            return StartTransfer("t", source=source, target=target, amount=amount)

        transfer = given(MoneyTransfer, "t")
        transfer.when(start("a", "a")).then_refused(SameAccount, account="a")
        transfer.when(start("a", "b", Decimal(0))).then_refused(InvalidAmount, transfer=None)
        transfer.when(start("a", "")).then_failed("InvalidId")
        transfer.when(start("a" * 256, "b")).then_failed("InvalidId")
        transfer.when(start("a", "b")).then(TransferStarted(source="a", target="b", amount=Decimal(1)))


class TheProcess(SimpleTestCase):
    def test_both_sides_reserve_before_the_money_moves(self) -> None:
        process = given(TransferProcess, "t").when(STARTED)
        process.then(
            ReserveWithdrawal("a", transfer="t", amount=Decimal(3)),
            ReserveDeposit("b", transfer="t", amount=Decimal(3)),
        )
        process.when(TransferConfirmed(source="a", target="b")).then(
            ConfirmWithdrawal("a", transfer="t"),
            ConfirmDeposit("b", transfer="t"),
        )

    def test_the_transfer_hears_of_what_its_accounts_did(self) -> None:
        source = given(TransferProcess, "a", OPENED, FIVE)
        source.when(WithdrawalReserved(transfer="t", amount=Decimal(3))).then(NoteReserved("t", side=Side.SOURCE))
        source.when(WithdrawalConfirmed(transfer="t", amount=Decimal(3), balance=Decimal(2))).then(
            NoteMoved("t", side=Side.SOURCE)
        )

    def test_the_same_event_brings_the_same_command_and_the_next_one_another(self) -> None:
        reserved = WithdrawalReserved(transfer="t", amount=Decimal(3))
        first, again, later = (
            given(TransferProcess, "a", *history).when(reserved).commands[0].id
            for history in ([OPENED], [OPENED], [OPENED, FIVE])
        )
        assert first == again != later

    def test_a_refusal_at_the_counter_cancels_nothing(self) -> None:
        given(TransferProcess, "a").when(AccountIsClosed("closed")).then_nothing()

    def test_every_refusal_of_a_reservation_cancels_its_transfer(self) -> None:
        for refusal in [
            InsufficientFunds("no", balance=Decimal(0), amount=Decimal(1), transfer="t"),
            AccountIsClosed("no", transfer="t"),
            UnknownAccount("no", transfer="t"),
            InvalidAmount("no", amount=Decimal(-1), transfer="t"),
        ]:
            with self.subTest(refusal=refusal):
                given(TransferProcess, "a", OPENED).when(refusal).then(CancelTransfer("t", reason="no"))

    def test_a_reservation_that_crashes_cancels_its_transfer(self) -> None:
        reserve = ReserveDeposit("b", transfer="t", amount=Decimal(3))
        crash = CommandCrashed.of(reserve, RuntimeError("a bug"), sender=TransferProcess.name)
        given(TransferProcess, "b", OPENED).when(crash).then(CancelTransfer("t", reason="It could not be carried out."))
