"""The functions behind each kind of job. They are imported when a job begins, so that asking for a job needs no
Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import import_string

from enode_django.conf import conf
from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventing.snapshot_building import build
from enode_django.exceptions import ConfigurationError
from enode_django.jobs import RunningJob
from enode_django.rebuilding.engines import NO_MASTER, engine_for
from enode_django.runtime import make_snapshots, make_store
from enode_django.serialization.registry import types

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KINDS"]

EVERYTHING = "*"
"""The name of a job that works on all types."""
FAILURES_KEPT = 10


def _build_snapshots(job: RunningJob, *, type: str | None, archive: str | None = None) -> None:
    if conf().SPARK.MASTER == NO_MASTER and archive is None:
        _build_snapshots_here(job, type)
        return
    build_on_spark = import_string("enode_django.spark.snapshot_job.build_snapshots")
    with _spark(job) as spark:
        job.result(**build_on_spark(spark, None if type is None else [type], job.report, archive=archive))


def _build_snapshots_here(job: RunningJob, type: str | None) -> None:
    store = make_store()
    snapshots = make_snapshots(store)
    if snapshots is None:
        raise ConfigurationError("snapshots are switched off: by SNAPSHOTS['ENABLED'], or by all classes")
    classes = None if type is None else [types.class_of(AggregateRoot, type)]
    made, failed = Counter[str](), dict[str, str]()
    job.report("looking for what is due")
    for one in build(store, snapshots, classes, dry_run=False):
        if one.failure:
            failed[one.aggregate_root_id] = one.failure
        else:
            made[one.aggregate_root_type] += 1
        job.report("making snapshots", made=made.total(), failed=len(failed))
    job.result(made=dict(made), failed=len(failed), failures=_first(failed))


def _first(failed: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    return list(failed.items())[:FAILURES_KEPT]


def _rebuild(
    job: RunningJob,
    *,
    name: str,
    accept_differences: bool = False,
    accept_uncompared: bool = False,
    archive: str | None = None,
    take_back: bool = False,
) -> None:
    from enode_django.rebuilding.rebuild import has_kept, rebuild, swap_kept, undo

    accepted = {"accept_differences": accept_differences, "accept_uncompared": accept_uncompared}
    with engine_for(archive=archive) as engine:  # it reports every second while others work, and so hears of a stop
        if take_back:
            rebuilt = undo(name, engine, job.report)
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
    """A session by the settings. One that is started here ends at once when the job has to stop."""
    from enode_django.spark.session import is_running, spark_session, stop

    job.report("starting Spark")
    was_running = is_running()
    with spark_session() as spark:
        if not was_running:
            job.on_stop(lambda: stop(spark))
        yield spark


KINDS: dict[str, Callable[..., Any]] = {"snapshots": _build_snapshots, "rebuild": _rebuild, "export": _export}
"""Each is called with the `RunningJob` and keyword arguments; it says its figures by ``result``."""
