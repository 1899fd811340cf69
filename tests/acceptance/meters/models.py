from __future__ import annotations

from django.db import models

from enode_django.models import ReadModel


class Reading(ReadModel):
    """``changes`` counts the events that were handled: one handled twice shows."""

    watt_hours = models.BigIntegerField(default=0)
    changes = models.IntegerField(default=0)
