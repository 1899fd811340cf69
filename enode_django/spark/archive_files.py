"""An archive on disk, HDFS or an object store.

::

    PATH/history-0001/_manifests/000002.json
    PATH/history-0001/increment=000002-5f0c93ab/aggregate_root_type=bank.Account/day=2026-05-04/part-….parquet

The manifest with the highest number says what counts; all else is what a crash left. An increment has a directory of
its own, so nothing that counts is ever written to. A new manifest is made beside the one before and takes the next
number, if nobody else has.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from enode_django.exceptions import ArchiveBusy
from enode_django.spark.hadoop_files import HadoopFiles
from enode_django.spark.manifests import EMPTY, Manifest, manifest_of, text_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INCREMENT = "increment"
KEPT_MANIFESTS = 10
"""A job that took its horizon a while ago reads an older one."""
_HISTORY = re.compile(r"history-[0-9]{4}")
_MANIFEST = re.compile(r"[0-9]{6,}\.json")


class ArchiveFiles:
    """The files of the newest history below ``path``, a path or URI. All methods block on the file system."""

    def __init__(self, spark: SparkSession, path: str, *, anew: bool = False) -> None:
        """``anew`` begins another history, in which nothing is yet."""
        self._files = HadoopFiles(spark, path)
        self.root = self._files.root
        histories = [name for name in self._files.names() if _HISTORY.fullmatch(name)]
        newest = int(histories[-1][-4:]) if histories else 0
        self.history = f"history-{max(newest + anew, 1):04}"
        self.directory = self._files.uri(self.history)

    def newest(self) -> Manifest:
        """`EMPTY` if there is none. Raises `ArchiveError`."""
        return next(self.manifests(), EMPTY)

    def manifests(self) -> Iterator[Manifest]:
        """The newest first."""
        for name in reversed(self._manifest_names()):
            yield manifest_of(self._files.read(f"{self.history}/_manifests/{name}"))

    def new_increment(self, manifest: Manifest) -> str:
        return f"{manifest.number + 1:06}-{uuid.uuid4().hex[:8]}"

    def uri_of(self, increment: str) -> str:
        return self._files.uri(self._directory_of(increment))

    def files_of(self, increment: str) -> list[str]:
        return self._files.files_below(self._directory_of(increment))

    def add(self, manifest: Manifest) -> None:
        """Let ``manifest`` count from now on. Raises `ArchiveBusy` if its number is taken."""
        names = self._manifest_names()
        name = f"{manifest.number:06}.json"
        is_next = not names or names[-1] < name
        if not is_next or not self._files.create(f"{self.history}/_manifests/{name}", text_of(manifest)):
            raise ArchiveBusy(f"another export has added to {self.directory} meanwhile; what this one wrote is dropped")
        for old in [*names, name][:-KEPT_MANIFESTS]:
            self._files.delete(f"{self.history}/_manifests/{old}")

    def remove_left_behind(self, manifest: Manifest) -> list[str]:
        """Remove the files of runs that have not ended well. Returns the names of the increments. Not for use beside
        another run."""
        known = {self._directory_of(one.name) for one in manifest.increments}
        found = [f"{self.history}/{name}" for name in self._files.names(self.history)]
        left = [path for path in found if path not in known and f"/{INCREMENT}=" in path]
        unfinished = [name for name in self._files.names(f"{self.history}/_manifests") if not _MANIFEST.fullmatch(name)]
        for path in [*left, *(f"{self.history}/_manifests/{name}" for name in unfinished)]:
            self._files.delete(path)
        return [path.partition("=")[2] for path in left]

    def remove(self, increment: str) -> None:
        self._files.delete(self._directory_of(increment))

    def _directory_of(self, increment: str) -> str:
        return f"{self.history}/{INCREMENT}={increment}"

    def _manifest_names(self) -> list[str]:
        names = self._files.names(f"{self.history}/_manifests")
        return sorted(filter(_MANIFEST.fullmatch, names), key=lambda name: (len(name), name))
