"""The figures of a broker as lines of a table: what each is, and its value with the unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from django.template.defaultfilters import filesizeformat


class Figure(NamedTuple):
    """``value`` has a unit, unless ``label`` says what it counts."""

    label: str
    value: str


LABELS: Mapping[str, str] = {
    "run": "Number of this run of the broker",
    "bytes": "Stored messages and control records",
    "unflushed_bytes": "Written, not yet synced to the disk",
    "since_checkpoint": "Written since the last checkpoint",
    "held_bytes": "Message files that may stay in the kernel's memory",
    "ring_batches": "Batches in the ring",
    "ring_bytes": "Size of the batches in the ring",
    "ring_reads": "Batches read from the ring",
    "memory_reads": "Batches read from a file in memory",
    "file_reads": "Batches read from the disk",
    "free_bytes": "Free space on the disk",
    "uses_reserve": "Sends are refused, since the disk is full",
    "deleted_early": "Files deleted before their retention ended",
    "damaged_batches": "Damaged batches found",
    "waiting_pulls": "Pulls that wait for messages",
    "waiting_inboxes": "Processes that wait for answers",
}


def lines_of(figures: Mapping[str, Any]) -> list[Figure]:
    """Return a line for each figure. A figure without a label, of a newer broker, has its name."""
    return [Figure(LABELS.get(name, name.replace("_", " ")), _text(name, value)) for name, value in figures.items()]


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("bytes") or name == "since_checkpoint":
        return filesizeformat(value).replace("\xa0", " ")
    return f"{value:,}"
