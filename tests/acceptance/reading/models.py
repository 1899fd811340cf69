from __future__ import annotations

from django.db import models

from enode_django.models import ReadModel


class Balance(ReadModel):
    """``changes`` counts the deposits and withdrawals that were handled: one handled twice shows."""

    balance = models.DecimalField(max_digits=20, decimal_places=2, default=0)
    changes = models.IntegerField(default=0)


class Movement(models.Model):
    """Only the checkpoints protect a movement from being stored twice."""

    account = models.CharField(max_length=255)
    account_version = models.BigIntegerField()
    balance = models.DecimalField(max_digits=20, decimal_places=2)

    class Meta:
        indexes = [models.Index(fields=["account"], name="reading_movement_account")]

    def __str__(self) -> str:
        return f"{self.account} has {self.balance} since version {self.account_version}"
