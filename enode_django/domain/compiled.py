"""Functions that check and decode the fields of one class. They are compiled once for each class, as the methods of
dataclasses are, and do what a loop over the fields does, in less time. When a value is refused, they call that loop,
which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from enode_django.domain.scalars import Convert, check_decimal
from enode_django.exceptions import InvalidField

Values = dict[str, Any]
Check = Callable[[Values], None]
Decode = Callable[[Values, Mapping[str, Any]], None]


class Converted(NamedTuple):
    """A field, and the function that converts its values, which values of the type ``exact`` do not need."""

    name: str
    exact: type
    convert: Convert


_CHECK = """
    v{n} = values[{name!r}]
    if {needs}: v{n} = convert{n}(v{n})
"""
_DECODE = """
    try: v{n} = plain[{name!r}]
    except KeyError: v{n} = default({name!r})
    else:
        if {needs}: v{n} = convert{n}(v{n})
"""
_MAKE = """
def call(plain, {given}):
  made = new(owner)
  values = made.__dict__
  try:
    pass
{steps}
  except InvalidField:
    slowly(values, plain)
  else:
    {stores}
  {stores_given}
  return made
"""
_FUNCTION = """
def call({parameters}):
  try:
    pass
{steps}
  except InvalidField:
    return slowly({parameters})
  {stores}
"""


def compiled_check(fields: Sequence[Converted], slowly: Check) -> Check:
    """Return a function that replaces values by their normal forms in place, or calls ``slowly`` if one is refused."""
    return _compiled("values", _CHECK, fields, {"slowly": slowly})


def compiled_decode(fields: Sequence[Converted], default: Callable[[str], Any], slowly: Decode) -> Decode:
    """Return a function that decodes ``plain`` into ``values``, or calls ``slowly`` if a value is refused. ``default``
    returns the value of a missing field."""
    return _compiled("values, plain", _DECODE, fields, {"slowly": slowly, "default": default})


def compiled_maker(
    owner: type, fields: Sequence[Converted], default: Callable[[str], Any], slowly: Decode, given: Sequence[str]
) -> Callable[..., Any]:
    """Return a function that makes an instance of ``owner`` without its constructor: of ``plain``, which it decodes as
    `compiled_decode` does, and of further attributes, whose names are ``given``."""
    stores_given = "; ".join(f"values[{name!r}] = given{n}" for n, name in enumerate(given))
    text = _MAKE.format(
        given=", ".join(f"given{n}" for n in range(len(given))),
        steps=_steps(_DECODE, fields),
        stores=_stores(fields),
        stores_given=stores_given,
    )
    names = {"slowly": slowly, "default": default, "owner": owner, "new": object.__new__}
    return _executed(text, fields, names)


def _compiled(parameters: str, step: str, fields: Sequence[Converted], names: dict[str, Any]) -> Callable[..., Any]:
    text = _FUNCTION.format(parameters=parameters, steps=_steps(step, fields), stores=_stores(fields))
    return _executed(text, fields, names)


def _steps(step: str, fields: Sequence[Converted]) -> str:
    return "".join(step.format(n=n, name=one.name, needs=_needs(n, one)) for n, one in enumerate(fields))


def _stores(fields: Sequence[Converted]) -> str:
    return "; ".join(f"values[{one.name!r}] = v{n}" for n, one in enumerate(fields)) or "pass"


def _executed(text: str, fields: Sequence[Converted], names: dict[str, Any]) -> Callable[..., Any]:
    known = {"InvalidField": InvalidField, "Decimal": Decimal, **names}
    for n, one in enumerate(fields):
        known |= {f"exact{n}": one.exact, f"convert{n}": one.convert}
    exec(text, known)  # noqa: S102  (names are quoted)
    call: Callable[..., Any] = known["call"]
    return call


def _needs(n: int, field: Converted) -> str:
    """Return the condition for values that have to be converted."""
    if field.convert is check_decimal:
        return f"type(v{n}) is not Decimal or v{n}.is_nan()"
    return f"type(v{n}) is not exact{n}"
