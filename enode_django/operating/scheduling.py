"""Cancel scheduled commands and deadlines, and fire them before their time."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction
from django.db.models.functions import Now

from enode_django.models import ScheduledCommand
from enode_django.operating.outbox import deleted, locked
from enode_django.outbox import rows


def cancel_in(alias: str, pks: Sequence[int]) -> Sequence[int]:
    """Delete scheduled commands. Return which were there. One that is being fired is not among them."""
    return deleted(ScheduledCommand.objects.using(alias), pks)


def fire_in(alias: str, pks: Sequence[int]) -> Sequence[int]:
    """Make scheduled commands due now. Return which were there. The relay sends them."""
    with transaction.atomic(using=alias):
        found = locked(ScheduledCommand.objects.using(alias).filter(pk__in=pks))
        ScheduledCommand.objects.using(alias).filter(pk__in=found).update(due_at=Now())
    rows.wake(alias)
    return found
