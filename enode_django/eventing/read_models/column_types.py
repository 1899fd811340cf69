"""The value that a column of PostgreSQL returns for a value that is written to it, found without asking the database.

Each function takes a value as the driver is given it and returns it as the driver loads it. It raises
`OnlyDatabaseKnows` for a value that the column refuses, or changes in a way that is not known here, so errors of the
database need not be imitated.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from ipaddress import IPv4Address, IPv6Address
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
from django.conf import settings
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.types.json import Jsonb

Stored = Callable[[Any], Any]
"""Return the loaded value for a written one."""

_NAMED = re.compile(r"([a-z ]+)(?:\(([0-9, ]+)\))?")
_INTEGERS = {"smallint": 15, "integer": 31, "bigint": 63}
"""The bits of the highest value of each type."""

_DOTTED = 1 << 48
"""Texts of IPv6 addresses below it may have dots; Python and PostgreSQL may differ there."""


class OnlyDatabaseKnows(Exception):
    """Says that a value has to be written and loaded to see its stored form."""


def stored_by(db_type: str, connection: BaseDatabaseWrapper) -> Stored | None:
    """Return the function for a column of this type, as ``Field.db_type`` names it, or None for an unknown type.

    >>> stored_by("numeric(5, 2)", connection)(Decimal("0.005"))
    Decimal('0.01')
    """
    named = _NAMED.fullmatch(db_type)
    if named is None:
        return None
    base, modifiers = named[1], [int(one) for one in (named[2] or "").split(",") if one]
    if base in _INTEGERS:
        return Integer(_INTEGERS[base])
    if base in ("varchar", "text"):
        return _text(*modifiers)
    if base == "numeric" and len(modifiers) == 2:
        return Numeric(*modifiers)
    if base == "timestamp with time zone":
        return _moment(connection)
    return None if modifiers else _SIMPLE.get(base)


def _text(limit: int = 2**30) -> Stored:
    def stored(value: Any) -> str:
        if not isinstance(value, str) or len(value) > limit or "\0" in value:
            raise OnlyDatabaseKnows
        if not value.isascii():
            _check_encodes(value)
        return value if type(value) is str else str.__str__(value)

    return stored


def _check_encodes(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OnlyDatabaseKnows from error


class Integer:
    """The function for whole numbers of ``bits`` bits and a sign."""

    def __init__(self, bits: int) -> None:
        self.low, self.end = -(1 << bits), 1 << bits

    def __call__(self, value: Any) -> int:
        if isinstance(value, int) and self.low <= value < self.end:
            return int(value)
        raise OnlyDatabaseKnows


class Numeric:
    """The function for decimals with ``digits`` digits, ``places`` of them after the point."""

    def __init__(self, digits: int, places: int) -> None:
        self.unit, self.zero = Decimal(1).scaleb(-places), Decimal(0).scaleb(-places)
        self.quantize = Context(prec=digits, rounding=ROUND_HALF_UP).quantize

    def __call__(self, value: Any) -> Decimal:
        if type(value) is not Decimal or not value.is_finite():
            raise OnlyDatabaseKnows
        try:
            return self.quantize(value, self.unit) or self.zero  # PostgreSQL knows no negative zero
        except InvalidOperation as error:
            raise OnlyDatabaseKnows from error


def _moment(connection: BaseDatabaseWrapper) -> Stored:
    if settings.USE_TZ:
        return Aware(connection.timezone or UTC)
    return _naive(ZoneInfo(connection.timezone_name))


class Aware:
    """The function for moments, which are loaded in this zone."""

    def __init__(self, zone: tzinfo) -> None:
        self.zone = zone

    def __call__(self, value: Any) -> datetime:
        if type(value) is not datetime or value.tzinfo is None:
            raise OnlyDatabaseKnows
        if value.tzinfo is self.zone is UTC and not value.fold:
            return value
        return _in_zone(value, self.zone)


def _naive(zone: tzinfo) -> Stored:
    """Return the function for times without ``USE_TZ``: values are loaded without a zone, in the session's zone. Times
    that a clock skips when it is put forward become later ones."""

    def stored(value: Any) -> datetime:
        if type(value) is not datetime:
            raise OnlyDatabaseKnows
        aware = value if value.tzinfo is not None else value.replace(tzinfo=zone)
        return _in_zone(aware, zone).replace(tzinfo=None)

    return stored


def _in_zone(value: datetime, zone: tzinfo) -> datetime:
    try:
        return value.astimezone(UTC).replace(fold=0).astimezone(zone)
    except (OverflowError, ValueError) as error:
        raise OnlyDatabaseKnows from error


def _time(value: Any) -> time:
    if type(value) is not time or value.tzinfo is not None:
        raise OnlyDatabaseKnows
    return value.replace(fold=0) if value.fold else value


def _bytes(value: Any) -> bytes:
    given = value.obj if isinstance(value, psycopg.Binary) else value
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise OnlyDatabaseKnows


def _address(value: Any) -> str:
    if isinstance(value, IPv4Address) or (isinstance(value, IPv6Address) and int(value) >= _DOTTED):
        return str(value)
    raise OnlyDatabaseKnows


def _json(value: Any) -> str:
    """Return a text, from which the field makes a value."""
    return json.dumps(json_stored(value), ensure_ascii=False)


def json_stored(value: Any) -> Any:
    """Return a `Jsonb` as it is loaded: keys are texts, each once, and sorted; numbers have no exponent."""
    if not isinstance(value, Jsonb):
        raise OnlyDatabaseKnows
    text = (value.dumps or json.dumps)(value.obj)
    if isinstance(text, bytes):
        text = text.decode()
    if "\\u0000" in text:
        raise OnlyDatabaseKnows
    try:
        loaded = json.loads(text, object_pairs_hook=_sorted, parse_float=_json_number, parse_constant=_refuse)
        if "\\ud" in text or "\\uD" in text:  # surrogates, which PostgreSQL refuses unless paired
            json.dumps(loaded, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise OnlyDatabaseKnows from error
    return loaded


def _sorted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) < 2:
        return dict(pairs)
    return dict(sorted(dict(pairs).items(), key=_shortest_first))


def _shortest_first(pair: tuple[str, Any]) -> tuple[int, bytes]:
    key = pair[0].encode()
    return len(key), key


def _json_number(text: str) -> int | float:
    """Convert a number with a point, or with an exponent, which PostgreSQL writes out."""
    if "e" in text or "E" in text or text.startswith("-"):
        exact = Decimal(text)
        text = format(exact if exact else abs(exact), "f")
    return float(text) if "." in text else int(text)


def _refuse(constant: str) -> Any:
    raise OnlyDatabaseKnows


def _exactly(*kinds: type) -> Stored:
    def stored(value: Any) -> Any:
        if type(value) in kinds:
            return value
        raise OnlyDatabaseKnows

    return stored


_SIMPLE: dict[str, Stored] = {
    "boolean": _exactly(bool),
    "double precision": _exactly(float),
    "date": _exactly(date),
    "time": _time,
    "interval": _exactly(timedelta),
    "uuid": _exactly(uuid.UUID),
    "jsonb": _json,
    "bytea": _bytes,
    "inet": _address,
}
