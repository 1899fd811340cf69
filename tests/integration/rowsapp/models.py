"""Rows with fields of every kind. The app is not installed: a fixture makes and drops the tables."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from django.contrib.postgres.fields import ArrayField, IntegerRangeField
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models.functions import Now, Upper

from enode_django.models import ReadModel


class Colour(models.TextChoices):
    RED = "red"
    BLUE = "blue"


class Size(models.IntegerChoices):
    SMALL = 1
    LARGE = 2


class Region(models.Model):
    number = models.IntegerField(primary_key=True)

    class Meta:
        app_label = "rowsapp"


class Place(models.Model):
    code = models.CharField(max_length=10, primary_key=True)

    class Meta:
        app_label = "rowsapp"


class Nobody(models.Manager):
    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class Lowered(models.CharField):
    """Prepares its value for the database, and returns another value."""

    def get_prep_value(self, value: Any) -> Any:
        return None if value is None else str(value).lower().strip("<>")

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return None if value is None else f"<{value}>"


class ExactDecoder(json.JSONDecoder):
    def __init__(self, **options: Any) -> None:
        super().__init__(parse_float=Decimal, **options)


class Kinds(ReadModel):
    text = models.TextField(null=True)
    name = models.CharField(max_length=10, null=True)
    colour = models.CharField(max_length=10, choices=Colour.choices, null=True)
    amount = models.DecimalField(max_digits=20, decimal_places=2, null=True)
    small = models.SmallIntegerField(null=True)
    number = models.IntegerField(null=True)
    size = models.PositiveIntegerField(choices=Size.choices, null=True)
    big = models.BigIntegerField(null=True, db_column="Big One")
    ratio = models.FloatField(null=True)
    flag = models.BooleanField(null=True)
    moment = models.DateTimeField(null=True)
    day = models.DateField(null=True)
    time = models.TimeField(null=True)
    span = models.DurationField(null=True)
    uuid = models.UUIDField(null=True)
    data = models.JSONField(null=True)
    raw = models.BinaryField(null=True)
    address = models.GenericIPAddressField(null=True)
    file = models.FileField(null=True)
    lowered = Lowered(max_length=10, null=True)
    region = models.ForeignKey(Region, models.DO_NOTHING, null=True)
    place = models.ForeignKey(Place, models.DO_NOTHING, null=True)

    class Meta:
        abstract = True


class Plain(Kinds):
    objects = Nobody()

    class Meta:
        app_label = "rowsapp"


class WithArray(Kinds):
    """Rows with an array field are not written in arrays."""

    tags = ArrayField(models.CharField(max_length=10), null=True)
    table = ArrayField(ArrayField(models.IntegerField()), null=True)

    class Meta:
        app_label = "rowsapp"


class Dated(ReadModel):
    name = models.CharField(max_length=10, default="")
    created_at = models.DateTimeField(auto_now_add=True)
    created_on = models.DateField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        app_label = "rowsapp"


class Defaulted(ReadModel):
    name = models.CharField(max_length=10)
    number = models.IntegerField(db_default=7)
    since = models.DateTimeField(db_default=Now())
    upper = models.GeneratedField(
        expression=Upper("name"), output_field=models.CharField(max_length=10), db_persist=True
    )

    class Meta:
        app_label = "rowsapp"


class Bare(ReadModel):
    class Meta:
        app_label = "rowsapp"


class Remembering(ReadModel):
    """A loaded row remembers its loaded values."""

    count = models.IntegerField(default=0)

    @classmethod
    def from_db(cls, db: str | None, field_names: Any, values: Any) -> Remembering:
        row = super().from_db(db, field_names, values)
        row.loaded = dict(zip(field_names, values, strict=True))["count"]  # type: ignore[attr-defined]
        return row

    class Meta:
        app_label = "rowsapp"


class Every(ReadModel):
    """A field of every class that ``django.db.models`` has for rows like these."""

    big = models.BigIntegerField(null=True)
    raw = models.BinaryField(null=True)
    flag = models.BooleanField(null=True)
    name = models.CharField(max_length=10, null=True)
    day = models.DateField(null=True)
    moment = models.DateTimeField(null=True)
    amount = models.DecimalField(max_digits=6, decimal_places=2, null=True)
    span = models.DurationField(null=True)
    email = models.EmailField(max_length=10, null=True)
    file = models.FileField(null=True)
    path = models.FilePathField(null=True)
    ratio = models.FloatField(null=True)
    region = models.ForeignKey(Region, models.DO_NOTHING, null=True, db_constraint=False)
    address = models.GenericIPAddressField(null=True)
    image = models.ImageField(null=True)
    number = models.IntegerField(null=True)
    data = models.JSONField(null=True)
    place = models.OneToOneField(Place, models.DO_NOTHING, null=True, db_constraint=False)
    natural_big = models.PositiveBigIntegerField(null=True)
    natural = models.PositiveIntegerField(null=True)
    natural_small = models.PositiveSmallIntegerField(null=True)
    slug = models.SlugField(max_length=10, null=True)
    small = models.SmallIntegerField(null=True)
    text = models.TextField(null=True)
    time = models.TimeField(null=True)
    link = models.URLField(max_length=10, null=True)
    uuid = models.UUIDField(null=True)
    needed = models.IntegerField(default=0)
    lowered = Lowered(max_length=10, null=True)

    class Meta:
        app_label = "rowsapp"


class Remark(models.Model):
    """It has no table: rows of `Every` may have one in memory."""

    of = models.OneToOneField(Every, models.DO_NOTHING, related_name="remark")

    class Meta:
        app_label = "rowsapp"
        managed = False


class Odd(ReadModel):
    """Fields that only PostgreSQL has, and fields that the database fills in."""

    tags = ArrayField(models.CharField(max_length=3), null=True)
    amounts = ArrayField(models.DecimalField(max_digits=6, decimal_places=2), null=True)
    table = ArrayField(ArrayField(models.IntegerField()), null=True)
    numbers = IntegerRangeField(null=True)
    decoded = models.JSONField(null=True, encoder=DjangoJSONEncoder, decoder=ExactDecoder)
    since = models.DateTimeField(db_default=Now())
    count = models.IntegerField(db_default=7)
    doubled = models.GeneratedField(
        expression=models.F("count") * 2, output_field=models.IntegerField(), db_persist=True
    )

    class Meta:
        app_label = "rowsapp"


class Shouted(models.TextField):
    def get_placeholder(self, value: Any, compiler: Any, connection: Any) -> str:
        return "upper(%s)"

    def get_placeholder_sql(self, value: Any, compiler: Any, connection: Any) -> Any:  # Django 6.1
        return "upper(%s)", (value,)


class Whispered(models.TextField):
    def select_format(self, compiler: Any, sql: str, params: Any) -> Any:
        return f"lower({sql})", params


class Words(models.Field):
    def db_type(self, connection: Any) -> str:
        return "varchar(10)[]"


class Initial(models.CharField):
    def pre_save(self, row: Any, add: bool) -> Any:
        row.initial = row.name and row.name[:1]
        return row.initial


class FirstName(models.CharField):
    """Has the name that the row was made with, as slugs often do."""

    def pre_save(self, row: Any, add: bool) -> Any:
        if add:
            row.first_name = row.name
        return row.first_name


class Digit(models.IntegerField):
    def db_check(self, connection: Any) -> str:
        return f'"{self.column}" < 10'


class Own(ReadModel):
    """Fields with methods of their own, as projects and packages write them."""

    name = models.TextField(null=True)
    shouted = Shouted(null=True)
    whispered = Whispered(null=True)
    initial = Initial(max_length=1, null=True)
    first_name = FirstName(max_length=10, null=True)
    digit = Digit(null=True)
    decoded = models.JSONField(null=True, encoder=DjangoJSONEncoder, decoder=ExactDecoder)

    class Meta:
        app_label = "rowsapp"


class Worded(ReadModel):
    words = Words(null=True)

    class Meta:
        app_label = "rowsapp"


class Numbered(ReadModel):
    """The database makes a column of the version, and Django a date when the row is made."""

    name = models.CharField(max_length=10, default="")
    since = models.DateTimeField(auto_now_add=True)
    next_version = models.GeneratedField(
        expression=models.F("version") + 1, output_field=models.BigIntegerField(), db_persist=True
    )

    class Meta:
        app_label = "rowsapp"


MODELS = (Region, Place, Plain, WithArray, Dated, Defaulted, Bare, Remembering, Every, Odd, Own, Worded, Numbered)
