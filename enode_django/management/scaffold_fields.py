"""The fields of ``manage.py startaggregate``, and the code for each type."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from typing import NamedTuple

from django.core.management.base import CommandError

from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.messages import Command, DomainEvent
from enode_django.models import ReadModel


class Kind(NamedTuple):
    """The code for a type: ``initial`` is the aggregate's initial value, ``model`` the row's model field, ``examples``
    two different values. ``module`` has the type, if it is not built in; ``beside`` is a name from there that the
    examples need."""

    initial: str
    model: str
    examples: tuple[str, str]
    module: str = ""
    beside: str = ""


KINDS = {
    "str": Kind('""', 'TextField(default="")', ('"one"', '"another"')),
    "int": Kind("0", "BigIntegerField(default=0)", ("1", "2")),
    "bool": Kind("False", "BooleanField(default=False)", ("True", "False")),
    "float": Kind("0.0", "FloatField(default=0.0)", ("0.5", "1.5")),
    "Decimal": Kind(
        "Decimal(0)",
        "DecimalField(max_digits=20, decimal_places=2, default=0)",
        ('Decimal("1.50")', 'Decimal("2.50")'),
        "decimal",
    ),
    "date": Kind("None", "DateField(null=True)", ("date(2026, 1, 31)", "date(2026, 2, 28)"), "datetime"),
    "datetime": Kind(
        "None",
        "DateTimeField(null=True)",
        ("datetime(2026, 1, 31, tzinfo=UTC)", "datetime(2026, 2, 28, tzinfo=UTC)"),
        "datetime",
        "UTC",
    ),
    "UUID": Kind("None", "UUIDField(null=True)", ("UUID(int=1)", "UUID(int=2)"), "uuid"),
}
_IN_THE_TEXTS = {"applies", "change", "command_handler", "create", "models"}  # in the bodies of classes
_IN_THE_BASES = {name for cls in (AggregateRoot, Command, DomainEvent, ReadModel) for name in dir(cls)}
_TAKEN = _IN_THE_TEXTS | _IN_THE_BASES | {"id", "aggregate_root_id", "objects"}


class Field(NamedTuple):
    name: str
    type: str

    @property
    def kind(self) -> Kind:
        return KINDS[self.type]

    @property
    def in_aggregate(self) -> str:
        optional = " | None" if self.kind.initial == "None" else ""
        return f"{self.name}: {self.type}{optional} = {self.kind.initial}"


def parse_fields(texts: Sequence[str]) -> list[Field]:
    """Parse fields given as ``name:type``. Raises `CommandError` for an impossible, reserved or repeated field."""
    fields = [_parse(text) for text in texts]
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise CommandError(f"the field {name!r} is there twice; give each field its own name")
    return fields


def _parse(text: str) -> Field:
    name, _, type = text.partition(":")
    if type not in KINDS:
        raise CommandError(f"the field {text!r} is not like name:type; the types are {', '.join(KINDS)}")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name, re.ASCII) or keyword.iskeyword(name):
        raise CommandError(f"a field cannot be called {name!r}; use small letters, digits and single underscores")
    if name in _TAKEN or name in KINDS:
        raise CommandError(f"a field cannot be called {name!r}: aggregates, messages or rows use that name themselves")
    return Field(name, type)
