"""Send rejected commands of an outbox again, and discard commands that wait there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db import transaction

from enode_django.models import OutboxCommand
from enode_django.outbox import rows

if TYPE_CHECKING:
    from django.db.models import QuerySet


def retry_in(alias: str, pks: Sequence[int]) -> Sequence[int]:
    """Let the relay send rejected rows. Return the rows that were rejected. They come after the commands that were sent
    meanwhile."""
    with transaction.atomic(using=alias):
        found = locked(OutboxCommand.objects.using(alias).filter(pk__in=pks, rejected_at__isnull=False))
        OutboxCommand.objects.using(alias).filter(pk__in=found).update(rejected_at=None, error="")
    rows.wake(alias)
    return found


def discard_in(alias: str, pks: Sequence[int]) -> Sequence[int]:
    """Delete rows without sending them. Return the rows that were there."""
    return deleted(OutboxCommand.objects.using(alias), pks)


def deleted(table: QuerySet[Any], pks: Sequence[int]) -> Sequence[int]:
    """Delete rows of a table that the relay sends from. Return the rows that were there. Waits for a relay that is at
    work, so rows that are being sent do not count as deleted."""
    with transaction.atomic(using=table.db):
        rows.lock(table.db)
        found = locked(table.filter(pk__in=pks))
        table.filter(pk__in=found).delete()
    return found


def locked(chosen: QuerySet[Any]) -> Sequence[int]:
    """Lock rows until the transaction ends. Return their primary keys."""
    return list(chosen.order_by("pk").select_for_update().values_list("pk", flat=True))
