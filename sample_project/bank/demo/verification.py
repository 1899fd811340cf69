"""Verification that the database holds exactly what the demo sent and was answered."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import groupby

from enode_django import CommandResult
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import EnodeError
from enode_django.history import events_of, replay_records, stored_result
from sample_project.bank.demo.workload import Workload, signed_amount
from sample_project.bank.domain import (
    BankAccount,
    DepositConfirmed,
    MoneyTransfer,
    Side,
    TransferStatus,
    WithdrawalConfirmed,
)


class Verification:
    """The result of a verification, which reads the records once. ``problems`` are sentences, empty if there are none.

    ``accounts`` are the stored ones, ``paid_in`` is the sum of accepted deposits less withdrawals.
    """

    def __init__(self, workload: Workload, answered: Sequence[CommandResult], records: Iterable[StreamRecord]) -> None:
        self.problems: list[str] = []
        self.accounts: dict[str, BankAccount] = {}
        self.transfers: dict[str, MoneyTransfer] = {}
        self.paid_in = Decimal(0)
        self._workload = workload
        self._movements = bytearray(workload.commands)
        self._answered = {result.command_id: result for result in answered}
        self._others: defaultdict[str, int] = defaultdict(int)
        self._moved: Counter[tuple[str, Side]] = Counter()
        for id, streams in groupby(records, lambda record: record.aggregate_root_id):
            self._check_aggregate(id, list(streams))
        self._check_all_are_there()
        self._check_transfers()
        self._check_sum()

    @property
    def balances(self) -> Decimal:
        return sum((account.balance for account in self.accounts.values()), Decimal(0))

    def _check_aggregate(self, id: str, streams: Sequence[StreamRecord]) -> None:
        accepted = [stream for stream in streams if stream.version is not None]
        versions = [stream.version for stream in accepted]
        if versions != list(range(1, len(versions) + 1)):
            self._problem(f"{_kind(streams)} {id} has the versions {versions}: there is a gap")
            return
        should_be = sum(map(self._account_for, streams), Decimal(0))
        try:
            aggregate = replay_records(accepted)
        except EnodeError as error:
            self._problem(f"{_kind(streams)} {id} cannot be read: {error}")
            return
        if isinstance(aggregate, MoneyTransfer):
            self.transfers[id] = aggregate
        elif isinstance(aggregate, BankAccount):
            self._check_account(aggregate, should_be)
        elif id != self._workload.nobody:
            self._problem(f"account {id} was never opened")

    def _check_account(self, account: BankAccount, should_be: Decimal) -> None:
        self.accounts[account.id] = account
        if account.balance != should_be:
            self._problem(
                f"account {account.id} has the balance {account.balance}; what was accepted makes {should_be}"
            )
        if account.outgoing or account.incoming:
            self._problem(f"account {account.id} has reservations: {[*account.outgoing, *account.incoming]}")

    def _account_for(self, record: StreamRecord) -> Decimal:
        """Note that a command is stored, and return the amount that it adds to the balance if it was accepted."""
        if record.command_type in ("bank.ConfirmWithdrawal", "bank.ConfirmDeposit"):
            return self._account_for_transfer(record)
        prefix = self._workload.movement_prefix
        if not record.command_id.startswith(prefix):
            return self._account_for_other(record)
        number = int(record.command_id.removeprefix(prefix))
        if not number < len(self._movements):
            self._problem(f"command {record.command_id} is stored, but nobody sent it")
            return Decimal(0)
        self._movements[number] = min(self._movements[number] + 1, 255)
        movement = self._workload.movement(number)
        if movement.aggregate_root_id != record.aggregate_root_id:
            self._problem(f"command {record.command_id} was sent to another account than {record.aggregate_root_id}")
        return self._paid_in(signed_amount(movement)) if record.version is not None else Decimal(0)

    def _account_for_other(self, record: StreamRecord) -> Decimal:
        """Account for openings, starts of transfers, and answered commands, whose row must equal their final answer."""
        self._others[record.command_id] += 1
        answer = self._answered.get(record.command_id)
        if answer is not None and answer != stored_result(record):
            self._problem(f"command {record.command_id} was answered {answer}, but stored is {stored_result(record)}")
        return self._paid_in(Decimal(1)) if answer is not None and record.version is not None else Decimal(0)

    def _account_for_transfer(self, record: StreamRecord) -> Decimal:
        """Account for a transfer. The amount is the sent one, not that of the events."""
        moved = Decimal(0)
        for event in events_of(record) if record.version is not None else ():
            if isinstance(event, WithdrawalConfirmed | DepositConfirmed):
                side = Side.SOURCE if isinstance(event, WithdrawalConfirmed) else Side.TARGET
                self._moved[event.transfer, side] += 1
                start = self._workload.transfer(int(event.transfer.removeprefix(self._workload.transfer_prefix)))
                account = start.source if side is Side.SOURCE else start.target
                if record.aggregate_root_id != account:
                    self._problem(f"transfer {event.transfer} moved money of {record.aggregate_root_id}")
                moved += -start.amount if side is Side.SOURCE else start.amount
        return moved

    def _paid_in(self, amount: Decimal) -> Decimal:
        self.paid_in += amount
        return amount

    def _check_all_are_there(self) -> None:
        for number, times in enumerate(self._movements):
            if times != 1:
                self._problem(f"command {self._workload.movement_prefix}{number:09d} is stored {times} times")
        starts = map(self._workload.transfer, range(self._workload.transfers))
        sent = [*self._workload.openings(), *starts]
        for id in [*self._answered, *(command.id for command in sent)]:
            if self._others[id] != 1:
                self._problem(f"command {id} is stored {self._others[id]} times")

    def _check_transfers(self) -> None:
        for id, transfer in self.transfers.items():
            if not transfer.has_ended:
                self._problem(f"transfer {id} has not ended, it is {transfer.status.value}")
            moved = tuple(self._moved[id, side] for side in Side)
            if moved != ((1, 1) if transfer.status is TransferStatus.COMPLETED else (0, 0)):
                self._problem(f"transfer {id} is {transfer.status.value}, and moved (source, target) {moved} times")

    def _check_sum(self) -> None:
        if not self.problems and self.balances != self.paid_in:
            self._problem(f"the balances add up to {self.balances}; {self.paid_in} was paid in")

    def _problem(self, text: str) -> None:
        self.problems.append(text)


def _kind(streams: Sequence[StreamRecord]) -> str:
    return "transfer" if streams[0].aggregate_root_type == "bank.MoneyTransfer" else "account"
