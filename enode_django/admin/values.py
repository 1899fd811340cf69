"""Stored values as texts for a page, however deep, long or strange they are. Pure; templates escape what it returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple

from enode_django.exceptions import shown
from enode_django.history.differences import Path

MOST_LINES = 1_000
MOST_CHARACTERS = 10_000
MOST_BYTES = 256
DEEPEST = 30


class Line(NamedTuple):
    """``path`` is where the value stands, such as ``lines[2].amount``."""

    path: str
    text: str
    kind: str


def lines_of(value: Any) -> Sequence[Line]:
    """A line for each value that holds no others; the last one says what was left out.

    >>> [line[:2] for line in lines_of({"owner": "Ada", "tags": ["a", {"b": None}]})]
    [('owner', 'Ada'), ('tags[0]', 'a'), ('tags[1].b', 'None')]
    """
    found: list[Line] = []
    for path, one in _leaves(value, ()):
        if len(found) == MOST_LINES:
            found.append(Line("…", f"only the first {MOST_LINES:,} values are shown", "note"))
            break
        found.append(Line(path_text(path), text_of(one), type(one).__name__))
    return found


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, Mapping) and value and len(path) < DEEPEST:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list | tuple) and value and len(path) < DEEPEST:
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path, value


def path_text(path: Path) -> str:
    """
    >>> path_text(("lines", 2, "amount")), path_text((b"x",)), path_text(())
    ('lines[2].amount', "[b'x']", '')
    """
    parts = [f".{_cut(key)}" if isinstance(key, str) else f"[{_short(key)}]" for key in path]
    return "".join(parts).removeprefix(".")


def _short(key: Any) -> str:
    return key.isoformat() if isinstance(key, date) else shown(key)


def text_of(value: Any) -> str:
    """One value: text as it is, bytes in hexadecimal digits, what is too long with its beginning and its size."""
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, bytes):
        start = value[:MOST_BYTES].hex(" ")
        return f"{start} … ({len(value):,} bytes)" if len(value) > MOST_BYTES else start or "(no bytes)"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping | list | tuple):
        return shown(value)
    try:
        return _cut(str(value))
    except ValueError:  # an integer with more digits than Python likes to write
        return shown(value)


def _cut(text: str) -> str:
    return f"{text[:MOST_CHARACTERS]} … ({len(text):,} characters)" if len(text) > MOST_CHARACTERS else text
