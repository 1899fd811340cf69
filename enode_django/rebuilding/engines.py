"""The engine that a rebuild is to have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING

from enode_django.rebuilding.engine import Engine, InProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_MASTER = "none"
"""The name that stands for no master: this process does the work."""


@contextmanager
def engine_for(master: str | None = None) -> Iterator[Engine]:
    """Spark with this master (None: that of the settings), which is started when there is work for it; ends with the
    block. Raises `SparkUnavailable` if it is not installed."""
    if master == NO_MASTER:
        yield InProcess()
        return
    from enode_django.spark.rebuild_job import SparkEngine
    from enode_django.spark.session import spark_session

    with ExitStack() as stack:

        @cache
        def session() -> SparkSession:
            return stack.enter_context(spark_session(master))

        yield SparkEngine(session)
