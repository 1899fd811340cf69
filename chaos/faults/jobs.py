"""Batch jobs under load, which Celery runs next to the processors."""

from __future__ import annotations

from collections.abc import Sequence

from kombu.exceptions import OperationalError

from chaos.faults.base import Fault, Skipped
from chaos.names import Setup

PROJECTIONS = ("bank.AccountSummaries", "bank.Ledger", "notes.Notes")


class _Job(Fault):
    def _send(self, name: str, *arguments: str) -> str:
        try:
            self.world.send_task(name, *arguments)
        except OperationalError as error:
            raise Skipped(f"Celery's broker is away: {error}") from error
        return "sent the task to Celery"


class Rebuild(_Job):
    """A projection is rebuilt from the event store and replaces the live one."""

    name = "rebuild"
    weight = 2.0
    halfway = True

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return list(PROJECTIONS)

    def begin(self) -> str:
        return self._send("enode_django.rebuild_projection", self.planned.target)


class Snapshots(_Job):
    """Snapshots of all aggregates for which one is due."""

    name = "snapshots"

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return ["everything"]

    def begin(self) -> str:
        return self._send("enode_django.build_snapshots")


KINDS: Sequence[type[Fault]] = (Rebuild, Snapshots)
