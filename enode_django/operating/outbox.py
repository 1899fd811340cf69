"""Send again what was rejected in an outbox, and discard commands that wait there."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction

from enode_django.models import OutboxCommand
from enode_django.outbox import rows


def retry_in(alias: str, pks: Sequence[int]) -> int:
    """Let the relay send rows that were rejected. Return their number. They come after what was sent meanwhile."""
    found = OutboxCommand.objects.using(alias).filter(pk__in=pks, rejected_at__isnull=False)
    many = found.update(rejected_at=None, error="")
    rows.wake(alias)
    return many


def discard_in(alias: str, pks: Sequence[int]) -> int:
    """Delete rows without sending them. Return their number. Waits for a relay that is at work, so that no row counts
    as discarded that is being sent."""
    with transaction.atomic(using=alias):
        rows.lock(alias)
        return OutboxCommand.objects.using(alias).filter(pk__in=pks).delete()[0]
