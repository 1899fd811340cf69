"""Values that belong to one aggregate at most: their declaration, and their digests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from types import UnionType
from typing import Any
from uuid import UUID

from enode_django.domain.refusals import ValueTaken
from enode_django.exceptions import DefinitionError, shown

Normalize = Callable[..., Any]


class Unique:
    """Declares that no two aggregates of a class have the same values of these ``fields``, taken together.

    ``normalize`` is called with the values and returns what is compared: a scalar, or a tuple of scalars. By default
    the values are compared as they are. None, an empty text, and a tuple with one of these need not be unique: any
    number of aggregates may have them. ``name`` identifies the values in the database. By default it consists of the
    oldest name of the class that declares it, and of the fields; classes with the same ``name`` share their values.
    ``message`` is the text of the refusal.

    Raises `DefinitionError` if there are no fields, or one is not a name.

    For example::

        class Customer(AggregateRoot):
            email: str = ""
            unique = Unique("email", normalize=str.casefold, message="This e-mail address is registered.")

        folded = Unique("email", normalize=str.casefold)
        assert folded.digest_of(["Ada@x.org"]) == folded.digest_of(["ada@x.org"])
    """

    __slots__ = ("fields", "message", "name", "normalize")

    def __init__(self, *fields: str, normalize: Normalize | None = None, name: str = "", message: str = "") -> None:
        if not fields or not all(isinstance(field, str) and field for field in fields) or len({*fields}) < len(fields):
            raise DefinitionError(f"Unique() takes the names of fields, each once, got {shown(fields)}")
        self.fields = fields
        self.normalize = normalize
        self.name = name
        self.message = message or f"this {' and '.join(field.replace('_', ' ') for field in fields)} is taken"

    def __repr__(self) -> str:
        return f"Unique({', '.join(map(repr, self.fields))})"

    def digest_of(self, values: Iterable[Any]) -> bytes | None:
        """Return the digest of the value that is compared; None if any number of aggregates may have these values.
        Raises `DefinitionError` if the value is neither a scalar nor a tuple of scalars, and the errors of
        ``normalize``.

        >>> one = Unique("tenant", "number")
        >>> one.digest_of(["a", None]), one.digest_of(["a", 1]) == one.digest_of(["a", "1"])
        (None, False)
        """
        given = tuple(values)
        if any(value is None for value in given):
            return None
        found = given if self.normalize is None else self.normalize(*given)
        compared = found if isinstance(found, tuple) else (found,)
        if not compared or any(value is None or value == "" for value in compared):
            return None
        digest = sha256()
        for value in compared:
            text = _text_of(value).encode(errors="surrogatepass")
            digest.update(len(text).to_bytes(8))
            digest.update(text)
        return digest.digest()

    def refused(self, message: str = "") -> ValueTaken:
        """Return the refusal of a command that needs a taken value."""
        return ValueTaken(message or self.message, fields=self.fields)


def uniques_of(cls: type, given: object) -> tuple[Unique, ...]:
    """Return the declarations in ``unique`` of a class. Raises `DefinitionError` for anything else."""
    found = (given,) if isinstance(given, Unique) else given
    if not isinstance(found, tuple | list) or not all(isinstance(one, Unique) for one in found):
        raise DefinitionError(
            f'{cls.__qualname__} has unique = {shown(given)}; give it Unique("field"), or a list of these'
        )
    return tuple(found)


def unknown_fields(uniques: Iterable[Unique], known: Collection[str]) -> Iterator[tuple[Unique, str]]:
    """Yield the fields of the declarations that are not among the known ones, each with its declaration."""
    return ((unique, field) for unique in uniques for field in unique.fields if field not in known)


def _text_of(value: Any) -> str:
    """Return a text that is the same for equal values of a type, and begins with their kind. Raises `DefinitionError`.

    >>> [_text_of(value) for value in ("1", 1, Decimal("1.0"), Decimal("1E+1"), Decimal(10), Decimal("-0.0"), True)]
    ['s1', 'i1', 'n1e0', 'n1e1', 'n1e1', 'n0e0', 'bTrue']
    """
    for kinds, text_of in _TEXTS:
        if isinstance(value, kinds):
            return text_of(value)
    raise DefinitionError(
        f"{shown(value)} cannot be unique; let normalize return a text, a number, a date, an id, or a tuple of these"
    )


def _number(value: Decimal) -> str:
    sign, digits, exponent = value.as_tuple()
    written = "".join(map(str, digits))
    significant = written.strip("0")
    if not significant or not isinstance(exponent, int):
        return f"n{value if value else 0}e0"
    return f"n{'-' if sign else ''}{significant}e{exponent + len(written) - len(written.rstrip('0'))}"


_TEXTS: Sequence[tuple[type | UnionType, Callable[[Any], str]]] = (
    (Enum, lambda value: f"e{value.name}"),
    (str, lambda value: f"s{value}"),
    (bool, lambda value: f"b{value}"),
    (int, lambda value: f"i{value}"),
    (float, lambda value: f"f{value + 0.0!r}"),  # -0.0 equals 0.0
    (Decimal, _number),
    (datetime, lambda value: f"t{value.astimezone(UTC).isoformat()}"),
    (date, lambda value: f"d{value.isoformat()}"),
    (UUID, lambda value: f"u{value.hex}"),
    (bytes, lambda value: f"y{value.hex()}"),
)
"""By kind, the first that fits: a bool is an int, and a datetime a date."""
