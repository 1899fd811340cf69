"""A projection whose table has three indexes and a foreign key. It is imported only if ``BENCHMARK_DETAILS`` is set,
because it has no migration: `make_tables` creates its tables."""

from __future__ import annotations

from decimal import Decimal
from zlib import crc32

from django.db import connection, models

from enode_django import ModelProjection, handles
from enode_django.models import ReadModel
from sample_project.bank.domain import AccountOpened, Deposited

BRANCHES = 16


class Branch(models.Model):
    name = models.TextField()

    class Meta:
        app_label = "benchmarks"


class AccountDetails(ReadModel):
    owner = models.CharField(max_length=100)
    balance = models.DecimalField(max_digits=20, decimal_places=2, default=Decimal(0))
    paid_at = models.DateTimeField(null=True)
    branch = models.ForeignKey(Branch, on_delete=models.PROTECT, db_index=False)
    branch_id: int

    class Meta:
        app_label = "benchmarks"
        indexes = [
            models.Index(fields=["owner"], name="details_owner"),
            models.Index(fields=["branch", "-balance"], name="details_branch"),
            models.Index(fields=["paid_at"], name="details_paid_at"),
        ]


class Details(ModelProjection[AccountDetails]):
    name = "benchmarks.Details"

    @handles(creates=True)
    def opened(self, row: AccountDetails, event: AccountOpened) -> None:
        row.owner = event.owner
        row.branch_id = crc32(event.aggregate_root_id.encode()) % BRANCHES + 1

    @handles
    def deposited(self, row: AccountDetails, event: Deposited) -> None:
        row.balance, row.paid_at = event.balance, event.timestamp


def make_tables() -> None:
    """Create the tables and the branches."""
    with connection.schema_editor() as editor:
        editor.create_model(Branch)
        editor.create_model(AccountDetails)
    Branch._default_manager.bulk_create(Branch(name=f"branch {number}") for number in range(1, BRANCHES + 1))
