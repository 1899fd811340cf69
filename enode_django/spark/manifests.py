"""Manifests, which describe the content of an archive. Pure functions.

A manifest is JSON with ``format``, ``number``, ``horizon``, ``rows``, ``refusals`` (the number of rows without a
version), ``known``, ``json``, ``increments`` and ``replaced``. Positions are texts by the number of the shard.
``known`` has the command id and the aggregate root id of one row of each shard, which identify the store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from enode_django.exceptions import ArchiveError, shown
from enode_django.spark.horizons import Positions, positions_in, texts_of

FORMAT = 3

Known = Mapping[int, tuple[str, str]]


class Increment(NamedTuple):
    """The rows at positions p with after <= p < horizon: of one export, or of several merged ones.

    ``made_at`` is ISO 8601. ``files`` are relative to the increment's directory; ``bytes`` is their total size.
    ``json``: the rows have JSON.
    """

    name: str
    after: Positions
    horizon: Positions
    rows: int
    refusals: int
    made_at: str
    files: Sequence[str]
    bytes: int = 0
    json: bool = False


class Replaced(NamedTuple):
    """An increment whose rows are in another one since the manifest with the number ``manifest``, which was made ``at``
    a time (ISO 8601)."""

    name: str
    manifest: int
    at: str

    def is_needed_since(self, began: datetime) -> bool:
        """Return True if a job that began at this aware time may use an earlier manifest, and read the increment."""
        return began < datetime.fromisoformat(self.at)


class Manifest(NamedTuple):
    """A manifest. ``number`` 0 is that of an empty archive. ``json``: later increments have JSON."""

    number: int
    increments: Sequence[Increment]
    known: Known
    json: bool = False
    replaced: Sequence[Replaced] = ()

    @property
    def horizon(self) -> Positions:
        """The positions below which the archive has all rows."""
        return self.increments[-1].horizon if self.increments else {}

    def followed_by(self, increment: Increment, known: Known) -> Manifest:
        return self._replace(
            number=self.number + 1,
            increments=[*self.increments, increment],
            known={**self.known, **known},
            json=self.json or increment.json,
        )

    def merged(self, increment: Increment, now: datetime, began: datetime) -> Manifest:
        """Return the manifest with ``increment`` instead of the increment that begins at the same positions, and of all
        that follow that. Drop replaced increments that no job since ``began`` needs. Both times are aware."""
        number = self.number + 1
        kept = self.increments[: self.place_of(increment.after)]
        gone = [Replaced(one.name, number, now.isoformat()) for one in self.increments[len(kept) :]]
        return self._replace(
            number=number,
            increments=[*kept, increment],
            json=self.json or increment.json,
            replaced=(*(one for one in self.replaced if one.is_needed_since(began)), *gone),
        )

    def place_of(self, after: Positions) -> int:
        """Return the index of the increment that begins at these positions. Raises `ValueError`."""
        return [one.after for one in self.increments].index(after)


EMPTY = Manifest(0, (), {})


def text_of(manifest: Manifest) -> str:
    increments = [
        {**one._asdict(), "after": texts_of(one.after), "horizon": texts_of(one.horizon)} for one in manifest.increments
    ]
    value = {
        "format": FORMAT,
        "number": manifest.number,
        "horizon": texts_of(manifest.horizon),
        "rows": sum(one.rows for one in manifest.increments),
        "refusals": sum(one.refusals for one in manifest.increments),
        "known": {str(number): row for number, row in manifest.known.items()},
        "json": manifest.json,
        "increments": increments,
        "replaced": [one._asdict() for one in manifest.replaced],
    }
    return json.dumps(value, indent=1)


def manifest_of(text: str) -> Manifest:
    """Return the manifest of a text made by `text_of`. Raises `ArchiveError` for any other text."""
    try:
        value = json.loads(text)
        if value["format"] != FORMAT:
            raise ArchiveError(
                f"the archive has the format {value['format']!r}, here it is {FORMAT}; use the version that wrote it"
            )
        known = {int(number): (command, root) for number, (command, root) in value["known"].items()}
        increments = [_increment(one) for one in value["increments"]]
        replaced = tuple(Replaced(**one) for one in value["replaced"])
        return Manifest(value["number"], increments, known, value["json"], replaced)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArchiveError(
            f"{shown(text)} is not a manifest of an archive ({type(error).__name__}: {error}); if it was damaged, "
            "delete it, and the one before it counts"
        ) from error


def _increment(value: dict[str, Any]) -> Increment:
    return Increment(**{**value, "after": positions_in(value["after"]), "horizon": positions_in(value["horizon"])})
