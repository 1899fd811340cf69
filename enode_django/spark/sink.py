"""The writer `enode_rows`: writes rows of a DataFrame to the databases, atomically in each and exactly once.

Use `write_rows`, or `write_made` for rows that tasks make themselves. The plan contains aliases and the name of a
staging table, and nothing else of ``DATABASES``.
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
"""The column with the alias of the database that a row is written to."""
_PORTIONS = "alias STRING, id STRING, rows BIGINT"
_OPTIONS = frozenset({"kind", "aliases", "table"})


Batches = Iterator["pyarrow.RecordBatch"]
Make = Callable[[Batches], Batches]


class Staged(NamedTuple):
    """The rows that a write has published. They can be queried until its block ends."""

    aliases: Sequence[str]
    table: str

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query of each database, one after the other; ``{staged}`` stands for the table."""
        return [row for alias in self.aliases for row in staging.ask(alias, self.table, query)]


@contextlib.contextmanager
def write_rows(frame: DataFrame, kind: str, aliases: Iterable[str], report: Report) -> Iterator[Staged]:
    """Write a frame to the databases of these aliases. Blocks until all rows are published, in one transaction per
    database, and reports as `with_progress` does.

    ``frame`` has the columns of the kind's target and `ALIAS`, in any order. Raises Spark's error for a failed job (in
    the database where it failed, nothing was published), and `StoreUnavailable`.
    """
    target, aliases = target_of(kind), list(aliases)
    with staging.staging_tables(target, aliases) as table:
        options = {"kind": kind, "aliases": json.dumps(aliases), "table": table}
        writer = frame.select(ALIAS, *target.columns).write.format(FORMAT).options(**options).mode("append")
        with_progress(frame.sparkSession, kind, writer.save, report)
        yield Staged(aliases, table)


@contextlib.contextmanager
def write_made(frame: DataFrame, make: Make, kind: str, aliases: Iterable[str], report: Report) -> Iterator[Staged]:
    """Write the batches that ``make`` makes of the frame's batches, as `write_rows` does. Their columns are `ALIAS` and
    the target's columns, in this order.

    Each task writes its own rows, so they do not pass through the JVM, and Spark starts no processes for writing (each
    would take seconds of processor time for its imports).
    """
    target, aliases = target_of(kind), list(aliases)
    with staging.staging_tables(target, aliases) as table:
        writer = RowsWriter(kind, aliases, table)
        written = frame.mapInArrow(partial(_write_made, writer, make), _PORTIONS)
        portions = with_progress(frame.sparkSession, kind, written.collect, report)
        # Published in this thread, whose statements a job cancels when it has to stop.
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
    """Writes rows to staging tables. Spark calls `write` in the executors, once for each attempt, and the other methods
    in processes of the driver."""

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
    """Return the rows of a batch by the alias in its first column, without that column."""
    aliases, *columns = (column.to_pylist() for column in batch.columns)
    rows: dict[Any, list[tuple[Any, ...]]] = {}
    for alias, row in zip(aliases, zip(*columns, strict=True), strict=True):
        rows.setdefault(alias, []).append(row)
    return list(rows.items())
