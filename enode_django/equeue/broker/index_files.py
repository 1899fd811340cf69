"""The paths of index files: ``<topic>/<queue>/<first offset>.index``."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from enode_django.exceptions import QueueError

logger = logging.getLogger(__name__)

_LONGEST_NAME = 200


class IndexFile(NamedTuple):
    """The file of the segment that begins at offset ``start``. `path` is made on access, so that a thread can do it:
    for a thousand queues it takes the event loop too long."""

    directory: Path
    topic: str
    queue: int
    start: int

    @property
    def path(self) -> Path:
        return index_path(self.directory, self.topic, self.queue, self.start)


def index_path(directory: Path, topic: str, queue: int, start: int) -> Path:
    """Return the path of the file of the segment that begins at offset ``start``. Raises as `directory_name` does."""
    return directory / directory_name(topic) / str(queue) / f"{start:020}.index"


def directory_name(topic: str) -> str:
    """Return a name that is unique to the topic and is not a path. Raises `QueueError` if it is empty or too long."""
    name = quote(topic, safe="").replace(".", "%2E")
    if not name or len(name) > _LONGEST_NAME:
        raise QueueError(
            f"{topic[:50]!r} cannot name a topic here; use 1 to {_LONGEST_NAME} letters, digits, '-' and '_'"
        )
    return name


def delete_index_files(files: Iterable[IndexFile]) -> None:
    """Delete files that nobody needs. Errors are logged, not raised."""
    for path in (file.path for file in files):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            logger.error("%s is of no use, but cannot be deleted: %s", path, error)
