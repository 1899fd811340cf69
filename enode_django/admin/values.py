"""Stored values as texts for a page, of any depth, length and type. Pure; templates must escape the texts."""

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
    """A value as text. ``path`` is its place, such as ``lines[2].amount``, ``kind`` its type."""

    path: str
    text: str
    kind: str


def lines_of(value: Any) -> Sequence[Line]:
    """Return a line for each value that contains no others. Above `MOST_LINES` the last line says that values are left
    out. Values deeper than `DEEPEST` levels are one line.

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
    """Return a path as text.

    >>> path_text(("lines", 2, "amount")), path_text((b"x",)), path_text(())
    ('lines[2].amount', "[b'x']", '')
    """
    parts = [f".{_cut(key)}" if isinstance(key, str) else f"[{_short(key)}]" for key in path]
    return "".join(parts).removeprefix(".")


def _short(key: Any) -> str:
    return key.isoformat() if isinstance(key, date) else shown(key)


def text_of(value: Any) -> str:
    """Return one value as text, bytes in hexadecimal digits. Long values are cut."""
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
    except ValueError:  # an integer with more digits than Python converts
        return shown(value)


def _cut(text: str) -> str:
    return f"{text[:MOST_CHARACTERS]} … ({len(text):,} characters)" if len(text) > MOST_CHARACTERS else text
