"""Models for the rows that handlers insert, and a projection that calls a test's own ``script``."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from django.db import models

from enode_django import Projection, handles
from tests.following.domain import Added


class Colour(models.TextChoices):
    RED = "red"


class Line(models.Model):
    account = models.CharField(max_length=20)
    version = models.BigIntegerField(default=1)
    amount = models.DecimalField(max_digits=8, decimal_places=2, default=0)
    note = models.CharField(max_length=20, default="")
    data = models.JSONField(null=True)
    booked_at = models.DateTimeField(null=True)
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "following"
        constraints = [models.UniqueConstraint(fields=["account", "version"], name="following_line_version")]


class Shelf(models.Model):
    number = models.IntegerField(primary_key=True)

    class Meta:
        app_label = "following"


class Part(models.Model):
    """A part of a line, and possibly of another part."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    line = models.ForeignKey(Line, models.CASCADE)
    whole = models.ForeignKey("self", models.CASCADE, null=True)
    shelf = models.ForeignKey(Shelf, models.CASCADE, null=True)

    class Meta:
        app_label = "following"


class Named(models.Model):
    name = models.CharField(max_length=20, primary_key=True)
    number = models.IntegerField(null=True)

    class Meta:
        app_label = "following"


WAITING = (Line, Shelf, Part, Named)


class Lines(Projection):
    name = "following.lines"
    models = WAITING
    script: Callable[[Added], object]

    @handles
    def added(self, event: Added) -> None:
        self.script(event)


class OtherLines(Lines):
    name = "following.other_lines"
