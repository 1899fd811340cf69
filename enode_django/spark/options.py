"""The options of ``enode_events``. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from enode_django.exceptions import ConfigurationError
from enode_django.spark.horizons import Positions, positions_of

NAME = "enode_events"
AGGREGATE, POSITION = "aggregate", "position"


class Options(NamedTuple):
    """The options of a read.

    The read takes a ``horizon`` itself if that is None. With the order ``"aggregate"``, a partition has all streams of
    an aggregate that are read, by version; ``"position"`` reads in the order of the feed. ``partitions`` is the highest
    number of parts of a whole shard (None: by its size).
    """

    horizon: Positions | None = None
    after: Positions | None = None
    order: str = AGGREGATE
    refusals: bool = False
    partitions: int | None = None


def options_of(given: Mapping[str, str]) -> Options:
    """Return the options of a read. Raises `ConfigurationError` for an unknown name or an invalid value.

    >>> options_of({"order": "position", "refusals": "true"}).refusals
    True
    """
    values: dict[str, Any] = {}
    for name, text in given.items():
        parse = _PARSERS.get(name.lower())
        if parse is None:
            raise ConfigurationError(f"{NAME} has no option {name!r}; it has {', '.join(sorted(_PARSERS))}")
        try:
            values[name.lower()] = parse(text)
        except (ValueError, KeyError) as error:
            raise ConfigurationError(f"the option {name!r} of {NAME} is {text!r}: {error}") from error
    return Options(**values)


def _order(text: str) -> str:
    if text not in (AGGREGATE, POSITION):
        raise ValueError(f"it must be {AGGREGATE!r} or {POSITION!r}")
    return text


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be 'true' or 'false'")
    return text.lower() == "true"


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("it must be a whole number above 0")
    return int(text)


_PARSERS: Mapping[str, Callable[[str], object]] = {
    "horizon": positions_of,
    "after": positions_of,
    "order": _order,
    "refusals": _flag,
    "partitions": _count,
}
