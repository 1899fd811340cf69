"""A function that normalises the rows of one model. It is compiled once, as those for the fields of messages are, and
does what a loop over the fields does, in less time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple
from uuid import UUID

from enode_django.eventing.read_models.column_types import Aware, Integer, Numeric, OnlyDatabaseKnows, Stored

Normalise = Callable[[Any], None]

HANDLED = "_enode_handled"
"""An attribute of a row that was passed to a handler: its normalised values, empty at first."""
NEVER_SEEN = object()
"""Stands for a normalised value that has to be normalised again."""

_LOADED_AS_WRITTEN = (bool, float, date, timedelta, UUID)
"""Types whose values are loaded as they were written, if a value is of exactly this type."""


class RowField(NamedTuple):
    """A field of a row. ``by_column`` converts values of exactly the type ``kind`` to those of a loaded row, and
    ``convert`` those of other types (all, if ``kind`` is None); they raise `OnlyDatabaseKnows`. With ``is_steady`` a
    loaded value is immutable and stays the same however often it is stored and loaded again."""

    name: str
    kind: type | None
    by_column: Stored | None
    convert: Stored
    is_steady: bool


class Preparing(NamedTuple):
    """The preparation of a row. ``prepare`` is called with a row that has more or fewer attributes than ``kept`` (None:
    with each row). ``unknown`` returns the text of the error for a row."""

    kept: int | None
    prepare: Callable[[Any], object]
    unknown: Callable[[Any], str]


_FUNCTION = """
def normalise(row):
  row._state.__dict__.pop("fields_cache", None)
  values = row.__dict__
  if {is_unprepared}: prepare(row)
  {seen}, = values[{handled!r}] or first_seen(row)
  try:
    {steps}
  except (InvalidOperation, OnlyDatabaseKnows) as error:
    raise OnlyDatabaseKnows(unknown(row)) from error
  {stores}
  values[{handled!r}] = {now_seen},
"""
_STEP = """
    v{n} = values[{name!r}]
    if v{n} is not s{n}:
        {by_type}
        else: v{n} = convert{n}(v{n})
"""


def compiled(fields: Sequence[RowField], preparing: Preparing, alias: str) -> Normalise:
    """Return a function that changes the values of a row to those that it would have if it were stored in the database
    ``alias`` and loaded. It forgets related instances.

    The row's attribute `HANDLED` gets the values of all fields, `NEVER_SEEN` for one that has to be normalised again.
    The function raises `OnlyDatabaseKnows`, and changes no value then. The first call makes the state of a row that of
    a stored one.
    """
    unseen = (NEVER_SEEN,) * len(fields)

    def first_seen(row: Any) -> Sequence[object]:
        row._state.adding, row._state.db = False, alias
        return unseen

    known: dict[str, Any] = {**_KNOWN, **preparing._asdict(), "first_seen": first_seen}
    steps = []
    for n, field in enumerate(fields):
        known |= {f"{name}{n}": value for name, value in field._asdict().items()}
        known |= {f"{name}{n}": value for name, value in getattr(field.by_column, "__dict__", {}).items()}
        by_type = _by_type(field).replace("{n}", str(n))
        steps.append(_STEP.format(n=n, name=field.name, by_type=by_type))
    text = _FUNCTION.format(
        is_unprepared="True" if preparing.kept is None else "len(values) != kept",
        seen=", ".join(f"s{n}" for n in range(len(fields))) or "*_",
        steps="".join(steps) or "pass",
        stores="; ".join(f"values[{field.name!r}] = v{n}" for n, field in enumerate(fields)) or "pass",
        handled=HANDLED,
        now_seen=", ".join(f"v{n}" if field.is_steady else "NEVER_SEEN" for n, field in enumerate(fields)) or "*()",
    )
    exec(text, known)  # noqa: S102  (names are quoted)
    normalise: Normalise = known["normalise"]
    return normalise


_KNOWN = {
    "Decimal": Decimal,
    "InvalidOperation": InvalidOperation,
    "NEVER_SEEN": NEVER_SEEN,
    "OnlyDatabaseKnows": OnlyDatabaseKnows,
    "UTC": UTC,
    "datetime": datetime,
}


def _by_type(field: RowField) -> str:
    """Return the statement for values of the field's type, with ``{n}`` for its number."""
    by_column = field.by_column
    if field.kind is None:
        return "if False: pass"
    if field.kind is Decimal and type(by_column) is Numeric:  # as it does, without a call
        return "if type(v{n}) is Decimal and v{n}.is_finite(): v{n} = quantize{n}(v{n}, unit{n}) or zero{n}"
    if field.kind is int and type(by_column) is Integer:
        return "if type(v{n}) is int and low{n} <= v{n} < end{n}: pass"
    if field.kind is datetime:
        if type(by_column) is Aware and by_column.zone is UTC:
            return "if type(v{n}) is datetime and v{n}.tzinfo is UTC and not v{n}.fold: pass"
        return "if type(v{n}) is datetime and v{n}.tzinfo is not None: v{n} = by_column{n}(v{n})"
    if field.kind in _LOADED_AS_WRITTEN:
        return "if type(v{n}) is kind{n}: pass"
    return "if type(v{n}) is kind{n}: v{n} = by_column{n}(v{n})"
