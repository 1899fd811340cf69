"""The file in which a broadcasting consumer keeps its offsets."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote

from enode_django.equeue.files import FULL, lock_file, make_directory, open_private, replaced_file
from enode_django.exceptions import QueueError, QueueFull

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptOffsets:
    """Offsets by queue. ``timelines``: the timeline under which each offset was reached. ``settled``: an offset old
    enough that a crash cannot lose messages below it."""

    offsets: dict[int, int]
    settled: dict[int, int] = field(default_factory=dict)
    timelines: dict[int, str] = field(default_factory=dict)


class OffsetsFile:
    """``<group>@<topic>.json`` in a directory, with a lock file for one consumer at a time. New files and directories
    are accessible only to their owner."""

    def __init__(self, directory: Path, group: str, topic: str) -> None:
        self.path = directory / f"{quote(group, safe='')}@{quote(topic, safe='')}.json"
        self._lock: IO[bytes] | None = None

    def open(self) -> KeptOffsets | None:
        """Lock the file and read it; return None if there is no file yet. Raises `QueueError` if another consumer has
        locked it or if it is damaged, `QueueFull` if there is no room for the lock, and `OSError`."""
        try:
            make_directory(self.path.parent)
            lock = open(self.path.with_suffix(".lock"), "ab", opener=open_private)  # noqa: SIM115  closed by `close`
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise QueueFull(
                f"no room for the offsets in {str(self.path)!r} ({error.strerror}); make room there"
            ) from error
        try:
            lock_file(lock.fileno())
        except OSError as error:
            lock.close()
            raise QueueError(
                f"another consumer has the offsets in {str(self.path)!r}; give each consumer a directory of its own"
            ) from error
        self._lock = lock
        try:
            return self._read()
        except QueueError:
            self.close()
            raise

    def _read(self) -> KeptOffsets | None:
        try:
            plain = json.loads(self.path.read_bytes())
            return KeptOffsets(
                offsets=_by_queue(plain["offsets"], _offset),
                settled=_by_queue(plain.get("settled", {}), _offset),
                timelines=_by_queue(plain.get("timelines", {}), str),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise QueueError(
                f"the offsets in {str(self.path)!r} cannot be read ({error}); put a copy of the file in its place, or "
                "delete it and begin where a new consumer begins"
            ) from error

    def write(self, kept: KeptOffsets) -> None:
        """Replace the file in one step; durable on return. Raises `OSError`, which leaves the file unchanged."""
        plain = {"offsets": kept.offsets, "settled": kept.settled, "timelines": kept.timelines}
        with replaced_file(self.path) as file:
            file.write(json.dumps(plain, sort_keys=True).encode())

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _by_queue(plain: dict[str, Any], value: Callable[[Any], Value]) -> dict[int, Value]:
    return {int(queue): value(each) for queue, each in plain.items()}


def _offset(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"an offset is a number from 0 on, got {value!r}")
    return value
