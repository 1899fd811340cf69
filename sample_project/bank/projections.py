from __future__ import annotations

from decimal import Decimal

from enode_django import ModelProjection, MultiProjection, Projection, handles
from sample_project.bank.domain import (
    AccountClosed,
    AccountOpened,
    DepositConfirmed,
    Deposited,
    ReservationCancelled,
    TransferConfirmed,
    WithdrawalConfirmed,
    WithdrawalReserved,
    Withdrawn,
)
from sample_project.bank.models import AccountSummary, LedgerEntry, Payee


class AccountSummaries(ModelProjection[AccountSummary]):
    @handles(creates=True)
    def opened(self, row: AccountSummary, event: AccountOpened) -> None:
        row.owner, row.opened_at = event.owner, event.timestamp

    @handles
    def paid_in(self, row: AccountSummary, event: Deposited | DepositConfirmed) -> None:
        row.balance = event.balance
        row.available += event.amount

    @handles
    def paid_out(self, row: AccountSummary, event: Withdrawn) -> None:
        row.balance = event.balance
        row.available -= event.amount

    @handles
    def reserved(self, row: AccountSummary, event: WithdrawalReserved) -> None:
        row.available -= event.amount

    @handles
    def transferred(self, row: AccountSummary, event: WithdrawalConfirmed) -> None:
        row.balance = event.balance

    @handles
    def released(self, row: AccountSummary, event: ReservationCancelled) -> None:
        row.available += event.released

    @handles
    def closed(self, row: AccountSummary, event: AccountClosed) -> None:
        row.closed = True


class Ledger(Projection):
    models = [LedgerEntry]
    aggregate_field = "account"

    @handles
    def deposited(self, event: Deposited) -> None:
        self._book(event, LedgerEntry.Kind.DEPOSIT, event.amount)

    @handles
    def withdrawn(self, event: Withdrawn) -> None:
        self._book(event, LedgerEntry.Kind.WITHDRAWAL, -event.amount)

    @handles
    def transferred_in(self, event: DepositConfirmed) -> None:
        self._book(event, LedgerEntry.Kind.TRANSFER_IN, event.amount, event.transfer)

    @handles
    def transferred_out(self, event: WithdrawalConfirmed) -> None:
        self._book(event, LedgerEntry.Kind.TRANSFER_OUT, -event.amount, event.transfer)

    def _book(
        self,
        event: Deposited | Withdrawn | DepositConfirmed | WithdrawalConfirmed,
        kind: LedgerEntry.Kind,
        amount: Decimal,
        transfer: str = "",
    ) -> None:
        entry = LedgerEntry(
            account=event.aggregate_root_id,
            version=event.version,
            kind=kind,
            amount=amount,
            balance=event.balance,
            transfer=transfer,
            booked_at=event.timestamp,
        )
        self.insert(entry)


class Payees(MultiProjection[Payee], key=lambda event: (event.source, event.target)):
    """Counts the transfers from one account to another, each of which is an aggregate."""

    key_field = ("source", "target")

    @handles
    def confirmed(self, row: Payee, event: TransferConfirmed) -> None:
        row.transfers += 1
        row.last_at = max(row.last_at or event.timestamp, event.timestamp)
