"""An archive on disk, HDFS or an object store.

::

    PATH/history-0001/_manifests/000002.json
    PATH/history-0001/increment=000002-5f0c93ab/aggregate_root_type=bank.Account/buckets=0000-0511/part-….parquet

The manifest with the highest number is the current one. Files that it does not name were left by a crash, or belong to
older manifests, or another export is writing them. Each increment has its own directory, so current files are never
changed. A new manifest takes the next number, unless another export has taken it. A history counts from its first
manifest on.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Protocol

from enode_django.exceptions import ArchiveBusy, ArchiveError
from enode_django.spark.manifests import EMPTY, Increment, Manifest, manifest_of, text_of

INCREMENT = "increment"
TAIL = "tail-"
"""The prefix of an increment that one job writes, reads and deletes."""
KEPT_MANIFESTS = 10
"""The newest manifests, which are kept: a job that took its horizon a while ago reads an older one."""
_HISTORY = re.compile(r"history-[0-9]{4}")
_MANIFEST = re.compile(r"[0-9]{6,}\.json")
_UNNAMED = re.compile(r"_([0-9]{6,})\.json")


class Files(Protocol):
    """The files below ``root``, with the methods of `enode_django.spark.hadoop_files.HadoopFiles`."""

    root: str

    def uri(self, path: str) -> str: ...

    def names(self, path: str = "") -> list[str]: ...

    def files_below(self, path: str) -> dict[str, int]: ...

    def read(self, path: str) -> str: ...

    def create(self, path: str, text: str) -> bool: ...

    def delete(self, path: str) -> None: ...


class ArchiveFiles:
    """The files of an archive's newest history. All methods block on the file system."""

    def __init__(self, files: Files, *, anew: bool = False) -> None:
        """``anew`` begins another, empty history."""
        self._files = files
        self.root = self._files.root
        begun = [
            name for name in self._files.names() if _HISTORY.fullmatch(name) and (anew or self._manifest_names(name))
        ]
        self.history = f"history-{max((int(name[-4:]) + anew for name in begun), default=1):04}"
        self.directory = self._files.uri(self.history)

    def newest(self) -> Manifest:
        """Return the newest manifest, or `EMPTY`. Raises `ArchiveError`."""
        return next(self.manifests(), EMPTY)

    def manifests(self) -> Iterator[Manifest]:
        """Yield the manifests, the newest first. Raises `ArchiveError`."""
        for name in reversed(self._manifest_names()):
            yield manifest_of(self._files.read(f"{self.history}/_manifests/{name}"))

    def new_increment(self, manifest: Manifest) -> str:
        return f"{manifest.number + 1:06}-{uuid.uuid4().hex[:8]}"

    def new_tail(self) -> str:
        return f"{TAIL}{uuid.uuid4().hex}"

    def uri_of(self, increment: str) -> str:
        return self._files.uri(self._directory_of(increment))

    def files_of(self, increment: str) -> dict[str, int]:
        """Return the size in bytes of each file by its path in the increment's directory, sorted."""
        return self._files.files_below(self._directory_of(increment))

    def check_files(self, increments: Sequence[Increment]) -> None:
        """Raise `ArchiveError` unless these increments have the files that their manifest names, and no others."""
        for one in increments:
            found = self.files_of(one.name)
            missing, others = set(one.files) - found.keys(), found.keys() - set(one.files)
            if missing or others:
                raise ArchiveError(
                    f"{len(missing)} files of the increment {one.name} are missing, and {len(others)} were added: "
                    f"restore {self.uri_of(one.name)!r}, or begin another archive with --anew"
                )

    def add(self, manifest: Manifest) -> None:
        """Make ``manifest`` the current one. Raises `ArchiveBusy` if its number is taken."""
        names = self._manifest_names()
        name = f"{manifest.number:06}.json"
        is_next = not names or names[-1] < name
        if not is_next or not self._files.create(f"{self.history}/_manifests/{name}", text_of(manifest)):
            raise ArchiveBusy(f"another export has added to {self.directory} meanwhile; what this one wrote is dropped")
        self._delete_manifests([*names, name][:-KEPT_MANIFESTS])

    def clean(
        self, manifest: Manifest, began: datetime, is_unused: Callable[[str], bool]
    ) -> tuple[Manifest, list[str]]:
        """Delete the files of failed runs, and the replaced increments that only jobs from before ``began``, an aware
        time, can need. Return the current manifest and the names of the deleted increments.

        ``is_unused`` is called with the name of a job's tail, and returns True if no job uses it. If an increment may
        be another export's, which is still writing it, the next number is given to a manifest of the same content: that
        export can then add nothing. Raises `ArchiveBusy` if that export was faster.
        """
        overdue = [one for one in manifest.replaced if not one.is_needed_since(began)]
        first = max((one.manifest for one in overdue), default=0)
        # Manifests go before the files that they name: a manifest exists only as long as its files.
        self._delete_manifests([name for name in self._manifest_names() if int(name.partition(".")[0]) < first])
        kept = {one.name for one in manifest.increments}
        kept |= {one.name for one in manifest.replaced if one not in overdue}
        left = [name for name in self._increments() if name not in kept]
        gone = [name for name in left if not name.startswith(TAIL) or is_unused(name)]
        unfinished = set(gone) - {one.name for one in overdue}
        if not all(name.startswith(TAIL) for name in unfinished):
            manifest = manifest._replace(number=manifest.number + 1)
            self.add(manifest)
        self._delete_manifests(self._unnamed_manifests(until=manifest.number))
        for name in gone:
            self.remove(name)
        return manifest, gone

    def remove(self, increment: str) -> None:
        self._files.delete(self._directory_of(increment))

    def _increments(self) -> list[str]:
        begin = f"{INCREMENT}="
        return [name.removeprefix(begin) for name in self._files.names(self.history) if name.startswith(begin)]

    def _directory_of(self, increment: str) -> str:
        return f"{self.history}/{INCREMENT}={increment}"

    def _delete_manifests(self, names: Sequence[str]) -> None:
        for name in names:
            self._files.delete(f"{self.history}/_manifests/{name}")

    def _unnamed_manifests(self, *, until: int) -> list[str]:
        """Return manifests that were written and not given their names. Another export may be about to name one of a
        number after ``until``."""
        found = map(_UNNAMED.match, self._files.names(f"{self.history}/_manifests"))
        return [one.string for one in found if one is not None and int(one[1]) <= until]

    def _manifest_names(self, history: str = "") -> list[str]:
        names = self._files.names(f"{history or self.history}/_manifests")
        return sorted(filter(_MANIFEST.fullmatch, names), key=lambda name: (len(name), name))
