"""Write the snapshots that tasks make to the databases, atomically in each and exactly once.

Each task writes its own rows, so they do not pass through the JVM, and Spark starts no processes for writing: each
would take seconds of processor time for its imports. The plan contains aliases and the name of a staging table, and
nothing else of ``DATABASES``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from enode_django.eventstore.scanning import persistently
from enode_django.exceptions import ConfigurationError
from enode_django.jobs.progress import Report
from enode_django.spark import staging
from enode_django.spark.executors import task
from enode_django.spark.progress import with_progress
from enode_django.spark.staging import Portion

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

_PORTIONS = "alias STRING, id STRING, rows BIGINT"

Batches = Iterator["pyarrow.RecordBatch"]
Make = Callable[[Batches], Batches]


class StagedRows(NamedTuple):
    """The rows that a job stages in the table of this name in each of these databases."""

    aliases: Sequence[str]
    table: str

    def write(self, batches: Batches) -> list[Portion]:
        """Stage rows. Called in the executors, once for each attempt at a task."""
        with task():
            return [
                persistently(alias, partial(staging.copy_rows, self._known(alias), self.table, rows))
                for batch in batches
                for alias, rows in rows_by_alias(batch)
            ]

    def publish(self, portions: Sequence[Portion]) -> None:
        """Publish these portions, in one transaction per database."""
        for alias in self.aliases:
            counts = {portion.id: portion.rows for portion in portions if portion.alias == alias}
            persistently(alias, partial(staging.publish, alias, self.table, counts))

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query of each database, one after the other; ``{staged}`` stands for the table of the
        published rows."""
        return [row for alias in self.aliases for row in staging.ask(alias, self.table, query)]

    def _known(self, alias: str) -> str:
        if alias not in self.aliases:
            raise ConfigurationError(f"a row is for the database {alias!r}, but this write is for {self.aliases!r}")
        return alias


@contextlib.contextmanager
def write_made(frame: DataFrame, make: Make, aliases: Iterable[str], report: Report) -> Iterator[StagedRows]:
    """Write the batches that ``make`` makes of the frame's batches to the databases of these aliases. Their columns are
    the alias of the database that a row is written to, and `staging.COLUMNS`, in this order.

    Blocks until all rows are published, in one transaction per database, and reports as `with_progress` does. The rows
    can be queried until the block ends. Raises Spark's error for a failed job (in the database where it failed, nothing
    was published), and `StoreUnavailable`.
    """
    aliases = list(aliases)
    with staging.staging_tables(aliases) as table:
        staged = StagedRows(aliases, table)
        written = frame.mapInArrow(partial(_write_made, staged, make), _PORTIONS)
        portions = with_progress(frame.sparkSession, "snapshots", written.collect, report)
        # Published in this thread, whose statements a job cancels when it has to stop.
        staged.publish([Portion(*row) for row in portions])
        yield staged


def _write_made(staged: StagedRows, make: Make, batches: Batches) -> Batches:
    import pyarrow

    rows = [portion._asdict() for portion in staged.write(make(batches))]
    if rows:
        yield pyarrow.RecordBatch.from_pylist(rows)


def rows_by_alias(batch: pyarrow.RecordBatch) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Return the rows of a batch by the alias in its first column, without that column."""
    aliases, *columns = (column.to_pylist() for column in batch.columns)
    rows: dict[Any, list[tuple[Any, ...]]] = {}
    for alias, row in zip(aliases, zip(*columns, strict=True), strict=True):
        rows.setdefault(alias, []).append(row)
    return list(rows.items())
