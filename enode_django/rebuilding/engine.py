"""Engines of a rebuild: this process, or the executors of a Spark cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from enode_django.concurrency.stopping import checked
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.positions import Position
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.scanning import Scan, raw_time, scan_raw
from enode_django.exceptions import ConfigurationError
from enode_django.jobs.progress import Report
from enode_django.rebuilding.catch_up_tasks import CatchUpTask, work_off
from enode_django.rebuilding.replaying import Replayed, Todo, replayer
from enode_django.rebuilding.shadow import Shadow
from enode_django.runtime import make_store


class Plan(NamedTuple):
    """The streams to be replayed into a shadow: those of aggregates of ``types`` (stored names) below ``horizon``, the
    position of each shard by number. With ``archive`` they are read from it, and the rest from the store."""

    shadow: Shadow
    types: Sequence[str]
    horizon: Mapping[int, Position]
    archive: str | None = None


class Engine(Protocol):
    """Executes a rebuild. All methods block, raise as `Replayer` does, and can be repeated after a failure."""

    def replay(self, plan: Plan, report: Report) -> Replayed: ...

    def catch_up(self, shadow: Shadow, todo: Sequence[Todo]) -> Replayed: ...

    def tasks_at_once(self) -> int:
        """Return the number of catch-up tasks that run at the same time."""

    def work_off(self, shadow: Shadow, tasks: Sequence[CatchUpTask]) -> Replayed:
        """Do the tasks of one range, in any order."""


class InProcess:
    """Replays in the calling thread, for small stores. Needs no Spark."""

    def replay(self, plan: Plan, report: Report) -> Replayed:
        if plan.archive is not None:
            raise ConfigurationError(
                "an archive is read by Spark; leave out the archive, or the choice of this process"
            )
        total = Replayed()
        store = make_store()
        with replayer(plan.shadow) as replaying:
            for shard in postgres_shards(store):
                wanted = Scan(shard.alias, horizon=plan.horizon[shard.number], types=plan.types)
                total += replaying.replay(checked(scan_raw(wanted)), raw_time)
                report("replay", shard=shard.name, streams=total.streams, aggregates=total.aggregates)
        return total

    def catch_up(self, shadow: Shadow, todo: Sequence[Todo]) -> Replayed:
        with replayer(shadow) as replaying:
            return replaying.catch_up(checked(todo))

    def tasks_at_once(self) -> int:
        return 1

    def work_off(self, shadow: Shadow, tasks: Sequence[CatchUpTask]) -> Replayed:
        return work_off(shadow, tasks)


def postgres_shards(store: EventStore) -> Sequence[PostgresEventStore]:
    """Return the shards of a store. Raises `ConfigurationError` if one is not in PostgreSQL."""
    shards = []
    for shard in store.shards:
        if not isinstance(shard, PostgresEventStore):
            raise ConfigurationError(
                f"jobs read event stores in PostgreSQL only, not {shard!r}; see ENODE['EVENT_STORE']"
            )
        shards.append(shard)
    return shards
