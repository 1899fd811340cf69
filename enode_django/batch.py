"""Batch work: the functions behind each kind of job, and the engine that a rebuild runs on.

Imported when a job begins, so that asking for a job needs no Spark.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import import_string

from enode_django.concurrency.cores import usable_cores
from enode_django.conf import conf
from enode_django.conf.rules import BY_SIZE, IN_PROCESSES, ON_SPARK
from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventstore.dividing import about
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import ConfigurationError
from enode_django.jobs.running import RunningJob
from enode_django.rebuilding.engine import Engine, InProcess
from enode_django.rebuilding.pool import Pool
from enode_django.rebuilding.processes import Processes
from enode_django.repository.snapshot_building import build
from enode_django.runtime import make_store, needed_snapshots
from enode_django.serialization.registry import types

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KINDS"]

NO_MASTER = "none"
"""The name that stands for no master: this process does the work."""


@contextmanager
def engine_for(master: str | None = None, engine: str | None = None, archive: str | None = None) -> Iterator[Engine]:
    """Open the rebuild engine ``engine``, by default that of ``REBUILDS``; with a ``master``, Spark on that master.

    The engine starts Spark or processes when there is work for them, and they end with the block. Raises
    `SparkUnavailable` if Spark is wanted and not installed, `ConfigurationError` if the arguments and the settings
    contradict each other, and `StoreUnavailable`.
    """
    chosen = _chosen(master, engine, archive)
    if chosen == NO_MASTER:
        yield InProcess()
    elif chosen == IN_PROCESSES:
        with closing(Pool(_count())) as pool:
            yield Processes(pool)
    else:
        with _spark_engine(master) as on_spark:
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


def _is_spark_installed() -> bool:
    return importlib.util.find_spec("pyspark") is not None


def _is_worth_spark() -> bool:
    if not _is_spark_installed():
        return False
    session = sys.modules.get("enode_django.spark.session")
    most = conf().REBUILDS.SPARK_FROM
    return (session is not None and session.is_running()) or (most is not None and _streams() >= most)


def _streams() -> int:
    """Return an upper bound on the number of stored rows, refusals included."""
    shards = make_store().shards
    return sum(about(shard.alias) for shard in shards if isinstance(shard, PostgresEventStore))


def _count() -> int:
    most = conf().SPARK.DATABASE_TASKS
    wanted = conf().REBUILDS.PROCESSES or usable_cores()
    return wanted if most is None else min(wanted, most)


@contextmanager
def _spark_engine(master: str | None) -> Iterator[Engine]:
    from enode_django.spark.rebuild_job import SparkEngine
    from enode_django.spark.session import spark_session

    with ExitStack() as stack:

        @cache
        def session() -> SparkSession:
            return stack.enter_context(spark_session(master))

        yield SparkEngine(session)


EVERYTHING = "*"
"""The name of a job that works on all types."""
FAILURES_KEPT = 10


def _build_snapshots(job: RunningJob, *, type: str | None, archive: str | None = None) -> None:
    master = conf().SPARK.MASTER
    if archive is None and (master == NO_MASTER or (_is_here(master) and not _is_spark_installed())):
        _build_snapshots_here(job, type)
        return
    build_on_spark = import_string("enode_django.spark.snapshot_job.build_snapshots")
    with _spark(job) as spark:
        job.result(**build_on_spark(spark, None if type is None else [type], job.report, archive=archive))


def _build_snapshots_here(job: RunningJob, type: str | None) -> None:
    store = make_store()
    snapshots = needed_snapshots(store)
    classes = None if type is None else [types.class_of(AggregateRoot, type)]
    made, failed = Counter[str](), dict[str, str]()
    job.report("looking for what is due")
    for one in build(store, snapshots, classes, dry_run=False):
        if one.failure:
            failed[one.aggregate_root_id] = one.failure
        else:
            made[one.aggregate_root_type] += 1
        job.report("making snapshots", made=made.total(), failed=len(failed))
    job.result(made=dict(made), failed=len(failed), failures=list(failed.items())[:FAILURES_KEPT])


def _rebuild(
    job: RunningJob,
    *,
    name: str,
    accept_differences: bool = False,
    accept_uncompared: bool = False,
    archive: str | None = None,
    compare_only: bool = False,
    take_back: bool = False,
) -> None:
    from enode_django.rebuilding.rebuild import has_kept, rebuild, swap_kept, undo
    from enode_django.rebuilding.results import Accepted

    accepted = {"accept_differences": accept_differences, "accept_uncompared": accept_uncompared}
    with engine_for(archive=archive) as engine:  # it reports every second, and so notices a stop
        if take_back:
            rebuilt = undo(name, engine, job.report)
        elif compare_only:
            rebuilt = rebuild(name, engine, job.report, archive=archive, compare_only=True)
            Accepted(accept_differences, accept_uncompared).check(name, rebuilt.comparison, is_last=True)
        elif has_kept(name):  # an earlier run could not swap it
            rebuilt = swap_kept(name, engine, job.report, **accepted)
        else:
            rebuilt = rebuild(name, engine, job.report, archive=archive, **accepted)
        job.result(**rebuilt.figures())


def _export(job: RunningJob, *, path: str, json: bool = False, compact: bool = False) -> None:
    export_events = import_string("enode_django.spark.archive.export_events")
    with _spark(job) as spark:
        job.result(**export_events(spark, path, job.report, json=json, compact=compact))


@contextmanager
def _spark(job: RunningJob) -> Iterator[SparkSession]:
    """Open a Spark session by the settings. If it starts here, it ends as soon as the job has to stop."""
    from enode_django.spark.session import is_running, spark_session, stop

    job.report("starting Spark")
    was_running = is_running()
    with spark_session() as spark:
        if not was_running:
            job.on_stop(lambda: stop(spark))
        yield spark


KINDS: dict[str, Callable[..., Any]] = {"snapshots": _build_snapshots, "rebuild": _rebuild, "export": _export}
"""Each is called with the `RunningJob` and keyword arguments, and reports its figures by ``result``.

For example::

    def count_rows(job: RunningJob, *, limit: int) -> None:
        job.result(rows=limit)

    KINDS["count"] = count_rows
"""
