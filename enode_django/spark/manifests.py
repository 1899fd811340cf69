"""Describe the content of an archive by its manifests. Pure.

A manifest is JSON with ``format``, ``number``, ``horizon``, ``rows``, ``refusals`` (those of the rows that have no
version), ``known`` and ``increments``. Positions are texts by the number of the shard. ``known`` has the command id and
the aggregate root id of one row of each shard, by which the store is known again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from enode_django.eventstore.positions import Position
from enode_django.exceptions import ArchiveError, shown
from enode_django.spark.horizons import Positions

FORMAT = 1

Known = Mapping[int, tuple[str, str]]


class Increment(NamedTuple):
    """The rows that one export has added: those at positions p with after <= p < horizon. ``made_at`` is ISO 8601;
    ``files`` are relative to the increment's directory."""

    name: str
    after: Positions
    horizon: Positions
    rows: int
    refusals: int
    made_at: str
    files: Sequence[str]


class Manifest(NamedTuple):
    """``number`` 0 stands for an archive without any."""

    number: int
    increments: Sequence[Increment]
    known: Known

    @property
    def horizon(self) -> Positions:
        """All rows below it are in the archive."""
        return self.increments[-1].horizon if self.increments else {}

    def followed_by(self, increment: Increment, known: Known) -> Manifest:
        return Manifest(self.number + 1, [*self.increments, increment], {**self.known, **known})


EMPTY = Manifest(0, (), {})


def text_of(manifest: Manifest) -> str:
    increments = [
        {**one._asdict(), "after": _texts(one.after), "horizon": _texts(one.horizon)} for one in manifest.increments
    ]
    value = {
        "format": FORMAT,
        "number": manifest.number,
        "horizon": _texts(manifest.horizon),
        "rows": sum(one.rows for one in manifest.increments),
        "refusals": sum(one.refusals for one in manifest.increments),
        "known": {str(number): row for number, row in manifest.known.items()},
        "increments": increments,
    }
    return json.dumps(value, indent=1)


def manifest_of(text: str) -> Manifest:
    """Return the manifest of a text by `text_of`. Raises `ArchiveError` for any other text."""
    try:
        value = json.loads(text)
        if value["format"] != FORMAT:
            raise ArchiveError(f"the archive has the format {value['format']!r}, here it is {FORMAT}; use newer code")
        increments = [
            Increment(**{**one, "after": _positions(one["after"]), "horizon": _positions(one["horizon"])})
            for one in value["increments"]
        ]
        known = {int(number): (command, root) for number, (command, root) in value["known"].items()}
        return Manifest(value["number"], increments, known)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArchiveError(
            f"{shown(text)} is no manifest of an archive ({type(error).__name__}: {error}); if it was damaged, delete "
            "it, and the one before it counts"
        ) from error


def _texts(positions: Positions) -> dict[str, str]:
    return {str(number): str(position) for number, position in sorted(positions.items())}


def _positions(texts: Any) -> dict[int, Position]:
    return {int(number): Position.parse(text) for number, text in texts.items()}
