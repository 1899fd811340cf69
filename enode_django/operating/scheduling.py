"""Cancel scheduled commands and deadlines, and fire them before their time."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction
from django.db.models.functions import Now

from enode_django.models import ScheduledCommand
from enode_django.outbox import rows


def cancel_in(alias: str, pks: Sequence[int]) -> int:
    """Delete scheduled commands. Return their number. One that is being fired is not among them."""
    with transaction.atomic(using=alias):
        rows.lock(alias)
        return ScheduledCommand.objects.using(alias).filter(pk__in=pks).delete()[0]


def fire_in(alias: str, pks: Sequence[int]) -> int:
    """Make scheduled commands due now. Return their number. The relay sends them."""
    many = ScheduledCommand.objects.using(alias).filter(pk__in=pks).update(due_at=Now())
    rows.wake(alias)
    return many
