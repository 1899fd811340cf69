from __future__ import annotations

from enode_django import ModelProjection, Projection, handles
from sample_project.bank.domain import AccountOpened, Deposited, Withdrawn
from tests.acceptance.reading.models import Balance, Movement


class Balances(ModelProjection[Balance]):
    @handles
    def opened(self, row: Balance, event: AccountOpened) -> None:
        row.balance = 0

    @handles
    def moved(self, row: Balance, event: Deposited | Withdrawn) -> None:
        row.balance = event.balance
        row.changes += 1


class Movements(Projection):
    models = (Movement,)
    aggregate_field = "account"

    @handles
    def moved(self, event: Deposited | Withdrawn) -> None:
        Movement(account=event.aggregate_root_id, account_version=event.version, balance=event.balance).save()
