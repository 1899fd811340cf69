"""Compare two plain values, as deep as maps and lists go. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

Path = tuple[Any, ...]
"""Keys of maps and places in lists, from the outside in."""


class Change(NamedTuple):
    """``before`` means nothing for what was added, and ``after`` nothing for what was removed."""

    path: Path
    kind: Literal["added", "removed", "changed"]
    before: Any = None
    after: Any = None


def differences(before: Any, after: Any, path: Path = ()) -> Iterator[Change]:
    """Lists are compared place by place. A value of another type is another value, also where Python calls both equal.

    >>> list(differences({"owner": "Ada", "tags": ["a"]}, {"owner": "Bob", "tags": ["a", "b"]}))
    [Change(path=('owner',), kind='changed', before='Ada', after='Bob'), Change(path=('tags', 1), kind='added', before=None, after='b')]
    """  # noqa: E501
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
