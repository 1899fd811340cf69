"""Models that a projection's handlers create rows of, and a projection whose handler each test brings along."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Upper

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
    """Of a line, and maybe of another part."""

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


class Defaulted(models.Model):
    number = models.IntegerField(db_default=7)

    class Meta:
        app_label = "following"


class Generated(models.Model):
    name = models.CharField(max_length=10)
    upper = models.GeneratedField(
        expression=Upper("name"), output_field=models.CharField(max_length=10), db_persist=True
    )

    class Meta:
        app_label = "following"


class Arrayed(models.Model):
    tags = ArrayField(models.CharField(max_length=10))

    class Meta:
        app_label = "following"


class LineProxy(Line):
    class Meta:
        app_label = "following"
        proxy = True


class NamedChild(Named):
    more = models.IntegerField(null=True)

    class Meta:
        app_label = "following"


class Foreign(models.Model):
    class Meta:
        app_label = "following"
        managed = False


class InsertsItself(models.Model):
    class Meta:
        app_label = "following"

    def _do_insert(self, *args: Any, **options: Any) -> Any:
        return super()._do_insert(*args, **options)  # type: ignore[misc]


class Numbered(models.IntegerField):
    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        return 1


class NumbersItself(models.Model):
    number = Numbered()

    class Meta:
        app_label = "following"


class SomeManager(models.Manager["Managed"]):
    pass


class Managed(models.Model):
    objects = SomeManager()

    class Meta:
        app_label = "following"
        base_manager_name = "objects"


class Small(models.Model):
    id = models.SmallAutoField(primary_key=True)

    class Meta:
        app_label = "following"


WAITING = (Line, Shelf, Part, Named)
NOT_WAITING = (
    Defaulted,
    Generated,
    Arrayed,
    LineProxy,
    NamedChild,
    Foreign,
    InsertsItself,
    NumbersItself,
    Managed,
    Small,
)


class Lines(Projection):
    name = "following.lines"
    models = WAITING
    script: Callable[[Added], object]

    @handles
    def added(self, event: Added) -> None:
        self.script(event)


class LinesAtOnce(Lines):
    name = "following.lines_at_once"
    defers_inserts = False
