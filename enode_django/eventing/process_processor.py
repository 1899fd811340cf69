"""Turn events into states and commands of processes, exactly once: states, checkpoints and commands commit together.

The order of the locks prevents deadlocks: first the checkpoints of a batch's aggregates, which determine the events to
handle, then the processes of these events, both in the order of their keys. Only checkpoints of new aggregates are made
while others are locked: two batches that meet in one may deadlock, and one of them is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

from django.db import transaction

from enode_django.databases import let_hooks_fail_alone
from enode_django.domain.handlers import HANDLER_ERRORS
from enode_django.eventing import checkpoints, process_rows
from enode_django.eventing.effects import EffectProcessor, SendCommands
from enode_django.eventing.event_processors import Batch, Begun
from enode_django.eventing.failures import failure_of
from enode_django.eventing.pending import Failure, HandledEvent, PendingAggregate, Progress, followed_refusal
from enode_django.eventing.process_managers import ProcessManager
from enode_django.eventing.processes import Processes, Step, steps_of
from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.scheduling.due import ChangeDeadlines
from enode_django.scheduling.rows import change

logger = logging.getLogger("enode_django.subscribers")


class Plan(NamedTuple):
    """The streams and refusals of one aggregate with their steps, up to the one that cannot be read, if any."""

    work: PendingAggregate
    steps: list[tuple[StreamRecord, Sequence[Step]]]
    failure: Failure | None


class ProcessProcessor(EffectProcessor):
    """Calls the handlers of a process manager with a state. ``keep`` is called inside the transaction, and ensures that
    the commands are sent if it commits. Processes are kept for ``retention`` seconds after their end (None: for good),
    and as long without their beginning."""

    subscriber: ProcessManager

    def __init__(
        self,
        subscriber: ProcessManager,
        store: EventStore,
        keep: SendCommands,
        change_deadlines: ChangeDeadlines = change,
        retention: float | None = None,
    ) -> None:
        super().__init__(subscriber, store, keep, change_deadlines)
        self._retention = retention

    def apply(self, works: Sequence[PendingAggregate], portion: int, *, even_parked: bool) -> dict[str, Progress]:
        ids = sorted(work.aggregate_root_id for work in works)
        alone = len(works) == 1 and portion == 1
        with transaction.atomic(using=self.alias):
            positions, begun = self._lock(ids, even_parked)
            batch = self._next_batch(works, positions, begun, portion)
            handled = self._handled_refusals(works)
            plans = [self._plan(work, batch.streams[work.aggregate_root_id], handled) for work in batch.works]
            self.in_flight.end()  # time spent waiting for other workers is not a handler's
            keys = {step.key for plan in plans for _, steps in plan.steps for step in steps}
            known = process_rows.lock(self.alias, self.key, keys)
            processes = Processes(self.subscriber, known, self.store.find, self._follow)
            refusals: list[checkpoints.RefusalKey] = []
            for plan in plans:
                batch.progress[plan.work.aggregate_root_id] = self._run(plan, batch, processes, refusals, alone)
            self.in_flight.end()
            process_rows.save(self.alias, self.key, known, processes.changed)
            checkpoints.save(self.alias, self.key, batch.moved)
            checkpoints.save_refusals(self.alias, self.key, refusals)
            if processes.deadlines:
                self._change_deadlines(self.alias, processes.deadlines)
            if processes.commands:
                self.send(processes.commands)
            let_hooks_fail_alone(self.alias, self.in_flight.around(works[0]))
        return batch.progress

    def _lock(self, ids: Sequence[str], even_parked: bool) -> tuple[Mapping[str, int], Begun]:
        """Lock the checkpoints, of which missing ones are made where a subscriber that begins now begins. Return the
        positions, and what the batch begins with."""

        def make(missing: Sequence[str]) -> None:
            heads = self._heads_at_the_start(missing)
            checkpoints.save(self.alias, self.key, {id: heads.get(id, 0) for id in missing})

        return self._begin_all(ids, even_parked, partial(checkpoints.lock_cursor, self.alias, self.key, ids), make)

    def _plan(
        self, work: PendingAggregate, streams: Sequence[StreamRecord], handled: set[checkpoints.RefusalKey]
    ) -> Plan:
        """Find the processes that streams and refusals concern. Key functions and upcasters are application code."""
        plan = Plan(work, [], None)
        refusals = [one for one in work.refusals.values() if (one.aggregate_root_id, one.command_id) not in handled]
        self.in_flight.begin(work, (streams[0].version or 0) if streams else 0)
        for record in [*streams, *refusals]:
            try:
                plan.steps.append((record, steps_of(self.subscriber, self._follow(record))))
            except HANDLER_ERRORS as error:  # only this aggregate has failed
                return plan._replace(failure=failure_of(record, error))
        return plan

    def _follow(self, record: StreamRecord) -> Iterable[HandledEvent]:
        """Return the messages of a record with their handlers, which have the whole time limit."""
        self.in_flight.step()
        if record.version is not None:
            return self._followed.of(record)
        refused = followed_refusal(self.subscriber, record)
        return [] if refused is None else self._tracing.followed(self.name, record, [refused])

    def _run(
        self, plan: Plan, batch: Batch, processes: Processes, refusals: list[checkpoints.RefusalKey], alone: bool
    ) -> Progress:
        """Let the processes handle the plan; if ``alone``, with savepoints, to find what breaks the transaction."""
        version = batch.positions[plan.work.aggregate_root_id]
        self.in_flight.begin(plan.work, version + 1)
        for record, steps in plan.steps:
            self.in_flight.step()
            try:
                with transaction.atomic(using=self.alias) if alone else nullcontext():
                    processes.run(steps, alone=alone)
            except HANDLER_ERRORS as error:  # handlers are application code: only this aggregate has failed
                return Progress(version, failure_of(record, error))
            if record.version is None:
                refusals.append((record.aggregate_root_id, record.command_id))
            else:
                version = record.version
        return batch.handled(plan.work) if plan.failure is None else Progress(version, plan.failure)

    def tidy(self) -> int:
        if self._retention is None:
            return 0
        pruned = process_rows.prune(self.alias, self.key, f"{self._retention:.0f} seconds")
        for key, count in pruned.items():
            if not count:
                continue
            events = "event" if count == 1 else "events"
            told = "%s drops %d %s that waited for the process %r to begin, as PROCESS_RETENTION of the settings says"
            logger.warning(told, self.name, count, events, key, extra={"subscriber": self.name})
        return len(pruned)
