"""Small files and directories on all file systems of Hadoop, through Spark's JVM."""

from __future__ import annotations

import posixpath
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopFiles:
    """The files below ``root``, a path or URI. Paths are relative to it, with slashes. All methods block, and raise
    Py4J's errors for errors of the file system."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._to_text = jvm.org.apache.commons.io.IOUtils.toString
        path = self._path(root)
        self._fs = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        self.root = str(self._fs.makeQualified(path).toString())

    def uri(self, path: str) -> str:
        return posixpath.join(self.root, path)

    def names(self, path: str = "") -> list[str]:
        """Return the sorted names in a directory, without those that begin with a dot; none if the directory does not
        exist."""
        directory = self._at(path)
        found = self._fs.listStatus(directory) if self._fs.exists(directory) else []
        return sorted(name for name in (str(one.getPath().getName()) for one in found) if not name.startswith("."))

    def files_below(self, path: str) -> dict[str, int]:
        """Return the size in bytes of each file by its path relative to ``path``, sorted, without files whose names
        begin with a dot or an underscore; none if the directory does not exist."""
        if not self._fs.exists(self._at(path)):
            return {}
        iterator = self._fs.listFiles(self._at(path), True)
        base = self.uri(path)
        found: dict[str, int] = {}
        while iterator.hasNext():
            status = iterator.next()
            name = posixpath.relpath(str(status.getPath().toString()), base)
            if posixpath.basename(name)[0] not in "._":
                found[name] = int(status.getLen())
        return dict(sorted(found.items()))

    def read(self, path: str) -> str:
        with closing(self._fs.open(self._at(path))) as stream:
            return str(self._to_text(stream, "UTF-8"))

    def create(self, path: str, text: str) -> bool:
        """Create a file atomically. Return False, and change nothing, if it exists.

        If the file system renames without replacing, as HDFS does, exactly one of two concurrent calls returns True;
        on others nearly always.
        """
        beside = self._at(posixpath.join(posixpath.dirname(path), f"_{posixpath.basename(path)}.{uuid4().hex}"))
        with closing(self._fs.create(beside, True)) as stream:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        created = not self._fs.exists(self._at(path)) and bool(self._fs.rename(beside, self._at(path)))
        if not created:
            self._fs.delete(beside, False)
        return created

    def delete(self, path: str) -> None:
        """Delete a path recursively."""
        self._fs.delete(self._at(path), True)

    def _at(self, path: str) -> Any:
        return self._path(self.uri(path))
