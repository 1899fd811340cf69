"""The engine that a rebuild is to have."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from typing import TYPE_CHECKING

from enode_django.conf import BY_SIZE, IN_PROCESSES, ON_SPARK, conf
from enode_django.eventstore.dividing import about
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import ConfigurationError
from enode_django.processors.cores import usable_cores
from enode_django.rebuilding.engine import Engine, InProcess
from enode_django.rebuilding.pool import Pool
from enode_django.rebuilding.processes import Processes
from enode_django.runtime import make_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_MASTER = "none"
"""The name that stands for no master: this process does the work."""


@contextmanager
def engine_for(master: str | None = None, engine: str | None = None, archive: str | None = None) -> Iterator[Engine]:
    """Open the engine of this name, by default what ``REBUILDS`` says; with a ``master`` it is Spark there. Spark or
    processes are started when there is work for them, and end with the block.

    Raises `SparkUnavailable` if Spark is wanted and not installed, `ConfigurationError` if the wishes exclude each
    other, and `StoreUnavailable`.
    """
    chosen = _chosen(master, engine, archive)
    if chosen == NO_MASTER:
        yield InProcess()
    elif chosen == IN_PROCESSES:
        with closing(Pool(_count())) as pool:
            yield Processes(pool)
    else:
        with _spark(master) as on_spark:
            yield on_spark


def _chosen(master: str | None, engine: str | None, archive: str | None) -> str:
    if master is not None and engine not in (None, ON_SPARK):
        raise ConfigurationError(f"the master {master!r} is Spark's, and the engine is to be {engine!r}: name only one")
    place = master or conf().SPARK.MASTER
    wanted = engine or (conf().REBUILDS.ENGINE if master is None else ON_SPARK)
    if place == NO_MASTER and wanted == ON_SPARK and engine is not None:
        raise ConfigurationError(f"Spark has no master, MASTER in ENODE['SPARK'] is {place!r}: name one by --master")
    if place == NO_MASTER and engine is None:
        return NO_MASTER
    if wanted != BY_SIZE:
        return wanted
    return ON_SPARK if archive is not None or not _is_here(place) or _is_worth_spark() else IN_PROCESSES


def _is_here(master: str) -> bool:
    """Return True if all of Spark would run on this machine, in one process and its children."""
    return master == "local" or master.startswith("local[")


def _is_worth_spark() -> bool:
    if importlib.util.find_spec("pyspark") is None:
        return False
    session = sys.modules.get("enode_django.spark.session")
    most = conf().REBUILDS.SPARK_FROM
    return (session is not None and session.is_running()) or (most is not None and _streams() >= most)


def _streams() -> int:
    """Return about how many streams are stored."""
    shards = make_store().shards
    return sum(about(shard.alias) for shard in shards if isinstance(shard, PostgresEventStore))


def _count() -> int:
    most = conf().SPARK.DATABASE_TASKS
    wanted = conf().REBUILDS.PROCESSES or usable_cores()
    return wanted if most is None else min(wanted, most)


@contextmanager
def _spark(master: str | None) -> Iterator[Engine]:
    from enode_django.spark.rebuild_job import SparkEngine
    from enode_django.spark.session import spark_session

    with ExitStack() as stack:

        @cache
        def session() -> SparkSession:
            return stack.enter_context(spark_session(master))

        yield SparkEngine(session)
