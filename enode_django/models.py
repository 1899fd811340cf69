"""The tables of the app. Drivers of the event store speak SQL to them; these classes are for reading and migrating."""

from __future__ import annotations

from typing import Any

from django.db import models

from enode_django.fields import CurrentTransactionId, TransactionIdField


class EventStream(models.Model):
    """What one command did to one aggregate; a row without a version is a stored refusal.

    Rows are written by an event store's driver and never change. Saving a row again or deleting one raises TypeError.
    """

    sequence = models.BigAutoField("sequence", primary_key=True)
    aggregate_root_type = models.CharField("aggregate root type", max_length=255, db_collation="C")
    aggregate_root_id = models.CharField("aggregate root id", max_length=255, db_collation="C")
    version = models.BigIntegerField("version", null=True, help_text="Empty for a stored refusal.")
    command_id = models.CharField("command id", max_length=255, db_collation="C")
    command_type = models.CharField("command type", max_length=255, db_collation="C")
    created_at = models.DateTimeField("created at")
    transaction_id = TransactionIdField("transaction id", db_default=CurrentTransactionId(), editable=False)
    events = models.BinaryField("events")
    metadata = models.BinaryField("metadata")

    class Meta:
        verbose_name = "event stream"
        verbose_name_plural = "event streams"
        default_permissions = ("view",)
        constraints = [
            models.UniqueConstraint(fields=["aggregate_root_id", "version"], name="enode_stream_version"),
            # The command comes first, so that a command can be found by its id alone.
            models.UniqueConstraint(fields=["command_id", "aggregate_root_id"], name="enode_stream_command"),
        ]
        indexes = [
            models.Index(
                fields=["created_at"], name="enode_stream_refused_at", condition=models.Q(version__isnull=True)
            ),
        ]

    def __str__(self) -> str:
        if self.version is None:
            return f"{self.aggregate_root_type} {self.aggregate_root_id} refused {self.command_type} {self.command_id}"
        return f"{self.aggregate_root_type} {self.aggregate_root_id} version {self.version}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise TypeError(f"event stream {self.sequence!r} is stored and cannot change; append to the event store")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        raise TypeError(
            f"event stream {self.sequence!r} cannot be deleted; refusals are pruned by the event store's prune_refusals"
        )
