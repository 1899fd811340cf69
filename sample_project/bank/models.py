"""The read models of the bank, derived from the event store."""

from __future__ import annotations

from decimal import Decimal

from django.db import models

from enode_django.models import ReadModel


class AccountSummary(ReadModel):
    owner = models.TextField()
    balance = models.DecimalField(max_digits=20, decimal_places=2, default=Decimal(0))
    available = models.DecimalField(
        max_digits=20, decimal_places=2, default=Decimal(0), help_text="What no transfer reserved."
    )
    opened_at = models.DateTimeField()
    closed = models.BooleanField(default=False)

    class Meta:
        verbose_name_plural = "account summaries"
        permissions = [("serve_customers", "Can serve customers at the counter")]

    def __str__(self) -> str:
        return f"{self.owner}: {self.balance}"


class LedgerEntry(models.Model):
    """One booking on one account; the amounts of an account add up to its balance."""

    class Kind(models.TextChoices):
        DEPOSIT = "deposit"
        WITHDRAWAL = "withdrawal"
        TRANSFER_IN = "transfer in"
        TRANSFER_OUT = "transfer out"

    account = models.CharField(max_length=255, db_collation="C")
    version = models.BigIntegerField()
    kind = models.CharField(max_length=20, choices=Kind)
    amount = models.DecimalField(max_digits=20, decimal_places=2, help_text="Negative for what was taken out.")
    balance = models.DecimalField(max_digits=20, decimal_places=2)
    transfer = models.CharField(max_length=255, blank=True, help_text="Empty for what happened at the counter.")
    booked_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "ledger entries"
        constraints = [models.UniqueConstraint(fields=["account", "version"], name="bank_ledger_version")]

    def __str__(self) -> str:
        return f"{self.account}: {self.kind} {self.amount}"


class Payee(models.Model):
    """An account to which another one has transferred money."""

    source = models.CharField(max_length=255, db_collation="C")
    target = models.CharField(max_length=255, db_collation="C")
    transfers = models.PositiveIntegerField(default=0)
    last_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["source", "target"], name="bank_payee_accounts")]

    def __str__(self) -> str:
        return f"{self.source} to {self.target}: {self.transfers}"
