"""The writer `enode_rows`: rows of a DataFrame into the databases, all at once and once only.

``write_rows`` is the way in, and `write_made` for what tasks make themselves. The plan names aliases and a staging
table, and nothing of ``DATABASES``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from enode_django.eventstore.scanning import persistently
from enode_django.exceptions import ConfigurationError
from enode_django.jobs.progress import Report
from enode_django.spark import staging
from enode_django.spark.executors import task
from enode_django.spark.progress import with_progress
from enode_django.spark.staging import Portion
from enode_django.spark.targets import target_of

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FORMAT = "enode_rows"
ALIAS = "alias"
"""The column that says which database a row goes to."""
_PORTIONS = "alias STRING, id STRING, rows BIGINT"
_OPTIONS = frozenset({"kind", "aliases", "table"})


Batches = Iterator["pyarrow.RecordBatch"]
Make = Callable[[Batches], Batches]


class Staged(NamedTuple):
    """The rows that a write has published, as long as its block lasts."""

    aliases: Sequence[str]
    table: str

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """Ask each database, one after the other; ``{staged}`` stands for the table of the rows."""
        return [row for alias in self.aliases for row in staging.ask(alias, self.table, query)]


@contextlib.contextmanager
def write_rows(frame: DataFrame, kind: str, aliases: Iterable[str], report: Report) -> Iterator[Staged]:
    """Write to databases of these aliases; blocks until all is published, in one transaction per database, and reports
    as `with_progress` does.

    ``frame`` has the columns of the kind's target and `ALIAS`, in any order. Raises what Spark raises for a job that
    failed (in the database that it failed at, nothing was published then), and `StoreUnavailable`.
    """
    target, aliases = target_of(kind), list(aliases)
    with staging.staging_tables(target, aliases) as table:
        options = {"kind": kind, "aliases": json.dumps(aliases), "table": table}
        writer = frame.select(ALIAS, *target.columns).write.format(FORMAT).options(**options).mode("append")
        with_progress(frame.sparkSession, kind, writer.save, report)
        yield Staged(aliases, table)


@contextlib.contextmanager
def write_made(frame: DataFrame, make: Make, kind: str, aliases: Iterable[str], report: Report) -> Iterator[Staged]:
    """Write what ``make`` makes of the frame's batches, as `write_rows` does: batches of rows with the columns in their
    order. Each task writes its own rows, so they need not go through the JVM, nor need Spark start processes for
    writing, each of which takes seconds of processor time for its imports."""
    target, aliases = target_of(kind), list(aliases)
    with staging.staging_tables(target, aliases) as table:
        writer = RowsWriter(kind, aliases, table)
        written = frame.mapInArrow(partial(_write_made, writer, make), _PORTIONS)
        portions = with_progress(frame.sparkSession, kind, written.collect, report)
        # In this thread, where a job that has to stop cancels the statement.
        writer.publish([Portion(*row) for row in portions])
        yield Staged(aliases, table)


def _write_made(writer: RowsWriter, make: Make, batches: Batches) -> Batches:
    import pyarrow

    rows = [portion._asdict() for portion in writer.write(make(batches)).portions]
    if rows:
        yield pyarrow.RecordBatch.from_pylist(rows)


class RowsDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> RowsWriter:
        options = dict(self.options)
        if options.keys() != _OPTIONS or overwrite:
            raise ConfigurationError(f"{FORMAT} cannot be written with the options {sorted(options)}; use write_rows()")
        writer = RowsWriter(options["kind"], json.loads(options["aliases"]), staging.check_name(options["table"]))
        expected = [ALIAS, *target_of(writer.kind).columns]
        if schema.names != expected:
            raise ConfigurationError(f"rows of kind {writer.kind!r} have the columns {expected}, not {schema.names}")
        return writer


class Written(WriterCommitMessage):
    def __init__(self, portions: Sequence[Portion]) -> None:
        self.portions = portions


class RowsWriter(DataSourceArrowWriter):
    """`write` is called in the executors, once for each attempt; the rest by the driver, in processes of its own."""

    def __init__(self, kind: str, aliases: Sequence[str], table: str) -> None:
        self.kind = kind
        self.aliases = aliases
        self.table = table

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Written:  # type: ignore[override]
        target = target_of(self.kind)
        with task():
            return Written(
                [
                    persistently(alias, partial(staging.copy_rows, self._known(alias), self.table, target, rows))
                    for batch in iterator
                    for alias, rows in rows_by_alias(batch)
                ]
            )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with task():
            self.publish(
                [portion for message in messages if isinstance(message, Written) for portion in message.portions]
            )

    def publish(self, portions: Sequence[Portion]) -> None:
        """Publish these portions, in one transaction per database."""
        target = target_of(self.kind)
        for alias in self.aliases:
            counts = {portion.id: portion.rows for portion in portions if portion.alias == alias}
            persistently(alias, partial(staging.publish, alias, self.table, target, counts))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with task():
            for alias in self.aliases:
                staging.drop(alias, self.table)

    def _known(self, alias: str) -> str:
        if alias not in self.aliases:
            raise ConfigurationError(f"a row is for the database {alias!r}, but this write is for {self.aliases!r}")
        return alias


def rows_by_alias(batch: pyarrow.RecordBatch) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """The rows of a batch whose first column is the alias, without it."""
    aliases, *columns = (column.to_pylist() for column in batch.columns)
    rows: dict[Any, list[tuple[Any, ...]]] = {}
    for alias, row in zip(aliases, zip(*columns, strict=True), strict=True):
        rows.setdefault(alias, []).append(row)
    return list(rows.items())
