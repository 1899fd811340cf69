"""Send rejected commands of an outbox again, and discard commands that wait there. Fire scheduled commands before their
time, and cancel them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models.functions import Now

from enode_django.models import OutboxCommand, ScheduledCommand
from enode_django.outbox import rows

if TYPE_CHECKING:
    from django.db.models import QuerySet


def retry_in(alias: str, pks: Sequence[int]) -> Sequence[int]:
    """Let the relay send rejected rows. Return the rows that were rejected. They come after the commands that were sent
    meanwhile."""
    with transaction.atomic(using=alias):
        found = _locked(OutboxCommand.objects.using(alias).filter(pk__in=pks, rejected_at__isnull=False))
        OutboxCommand.objects.using(alias).filter(pk__in=found).update(rejected_at=None, error="")
    rows.wake(alias)
    return found


def discard_in(alias: str, pks: Sequence[int]) -> Sequence[int]:
    """Delete rows without sending them. Return the rows that were there."""
    return _deleted(OutboxCommand.objects.using(alias), pks)


def fire_in(alias: str, pks: Sequence[int]) -> Sequence[int]:
    """Make scheduled commands due now. Return which were there. The relay sends them."""
    with transaction.atomic(using=alias):
        found = _locked(ScheduledCommand.objects.using(alias).filter(pk__in=pks))
        ScheduledCommand.objects.using(alias).filter(pk__in=found).update(due_at=Now())
    rows.wake(alias)
    return found


def cancel_in(alias: str, pks: Sequence[int]) -> Sequence[int]:
    """Delete scheduled commands. Return which were there. One that is being fired is not among them."""
    return _deleted(ScheduledCommand.objects.using(alias), pks)


def _deleted(table: QuerySet[Any], pks: Sequence[int]) -> Sequence[int]:
    """Delete rows of a table that the relay sends from. Return the rows that were there. Waits for a relay that is at
    work, so rows that are being sent do not count as deleted."""
    with transaction.atomic(using=table.db):
        rows.lock(table.db)
        found = _locked(table.filter(pk__in=pks))
        table.filter(pk__in=found).delete()
    return found


def _locked(chosen: QuerySet[Any]) -> Sequence[int]:
    """Lock rows until the transaction ends. Return their primary keys."""
    return list(chosen.order_by("pk").select_for_update().values_list("pk", flat=True))
