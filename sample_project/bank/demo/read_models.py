"""Comparison of the projections with the event store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal

from django.db.models import Sum

from enode_django.models import ParkedEvent
from sample_project.bank.demo.workload import Workload
from sample_project.bank.domain import BankAccount
from sample_project.bank.models import AccountSummary, LedgerEntry


def read_model_problems(workload: Workload, accounts: Mapping[str, BankAccount]) -> Iterator[str]:
    """Yield the differences as sentences. ``accounts`` are those of the store, by id."""
    mine = f"{workload.run}-"
    summaries = {row.pk: row for row in AccountSummary.objects.filter(pk__startswith=mine)}
    entries = LedgerEntry.objects.filter(account__startswith=mine).values_list("account").annotate(Sum("amount"))
    booked: dict[str, Decimal] = dict(entries)
    for id in sorted(summaries.keys() | booked.keys() | accounts.keys()):
        account = accounts.get(id)
        if account is None:
            yield f"account {id} is shown, but not stored"
            continue
        row = summaries.get(id)
        if row is None:
            yield f"account {id} has no summary"
        elif (row.balance, row.available) != (account.balance, account.balance - account.reserved):
            yield f"account {id} has the summary {row.balance} / {row.available}; stored is {account.balance}"
        if booked.get(id, Decimal(0)) != account.balance:
            yield f"account {id} has a ledger of {booked.get(id)}; stored is {account.balance}"
    for parked in ParkedEvent.objects.filter(aggregate_root_id__startswith=mine).order_by("pk"):
        yield f"{parked.subscriber} has parked {parked.aggregate_root_id}: {parked.error_type}"
