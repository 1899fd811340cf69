"""Recursive comparison of plain values: maps, lists and scalars. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

Path = tuple[Any, ...]
"""Keys of maps and indices of lists, from the outside in."""


class Change(NamedTuple):
    """A difference at ``path``. ``before`` has no meaning for an added value, ``after`` none for a removed one."""

    path: Path
    kind: Literal["added", "removed", "changed"]
    before: Any = None
    after: Any = None


def differences(before: Any, after: Any, path: Path = ()) -> Iterator[Change]:
    """Yield the changes from ``before`` to ``after``. Lists are compared by index. Values of different types differ,
    even if Python considers them equal.

    For example::

        before, after = {"owner": "Ada", "tags": ["a"]}, {"owner": "Bob", "tags": ["a", "b"]}
        changes = [(change.path, change.kind) for change in differences(before, after)]
        assert changes == [(("owner",), "changed"), (("tags", 1), "added")]
    """
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _of_maps(before, after, path)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _of_maps(dict(enumerate(before)), dict(enumerate(after)), path)
    elif type(before) is not type(after) or before != after:
        yield Change(path, "changed", before, after)


def _of_maps(before: dict[Any, Any], after: dict[Any, Any], path: Path) -> Iterator[Change]:
    for key, value in before.items():
        if key in after:
            yield from differences(value, after[key], (*path, key))
        else:
            yield Change((*path, key), "removed", before=value)
    for key, value in after.items():
        if key not in before:
            yield Change((*path, key), "added", after=value)
