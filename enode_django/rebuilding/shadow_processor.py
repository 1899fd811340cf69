"""Event processors and runners whose transactions run in a shadow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from django.db import connections, transaction

from enode_django.concurrency.backoff import once
from enode_django.databases import execute
from enode_django.eventing import parking
from enode_django.eventing.checkpoints import PARKED
from enode_django.eventing.event_processors import EventProcessor
from enode_django.eventing.pending import Failure, PendingAggregate, Progress
from enode_django.eventing.runner import Runner
from enode_django.exceptions import RebuildError
from enode_django.rebuilding.shadow import Shadow


class ShadowProcessor(EventProcessor):
    """Runs another processor so that it sees the tables of a shadow only.

    Inside a caller's transaction it checks deferred constraints at once, so that a violation is the failure of an
    aggregate, as it is in a transaction of its own.
    """

    def __init__(self, shadow: Shadow, processor: EventProcessor) -> None:
        self._shadow = shadow
        self._processor = processor
        super().__init__(processor.subscriber, processor.store)

    @property
    def limit(self) -> int:
        return self._processor.limit

    @property
    def attempted(self) -> dict[str, tuple[int | None, str]]:
        return self._processor.attempted

    @attempted.setter
    def attempted(self, value: dict[str, tuple[int | None, str]]) -> None:
        self._processor.attempted = value

    def apply(self, works: Sequence[PendingAggregate], portion: int, *, even_parked: bool) -> dict[str, Progress]:
        is_inside = connections[self.alias].in_atomic_block
        with self._shadow.opened():
            progress = self._processor.apply(works, portion, even_parked=even_parked)
            if is_inside:
                self._check_constraints()
        return progress

    def _check_constraints(self) -> None:
        """Check all deferred constraints now. Only the setting is rolled back, not the written rows."""
        with transaction.atomic(using=self.alias):
            execute(self.alias, "SET CONSTRAINTS ALL IMMEDIATE", ())
            transaction.set_rollback(True, using=self.alias)

    def positions(self, ids: Sequence[str]) -> Mapping[str, int]:
        with self._shadow.opened():
            return self._processor.positions(ids)

    def skip_to(self, aggregate_root_id: str, version: int) -> None:
        with self._shadow.opened():
            self._processor.skip_to(aggregate_root_id, version)


class ShadowRunner(Runner):
    """Parks aggregates in a shadow, and then calls ``on_parked`` in it. `park` raises `RebuildError` if more than the
    shadow's ``max_failures`` are parked."""

    tells_of_parked = "%s, in a rebuild, fails at %s at %s: its later events are left out of what is built"

    def __init__(self, shadow: Shadow, processor: EventProcessor) -> None:
        super().__init__(ShadowProcessor(shadow, processor), once)
        self._shadow = shadow
        self.on_parked: Callable[[PendingAggregate, Failure], None] = lambda work, failure: None

    def park(
        self,
        work: PendingAggregate,
        failure: Failure,
        instead_of: Iterable[parking.Parked] = (),
        *,
        pause: float | None = None,
    ) -> bool:
        with self._shadow.opened():
            is_parked = super().park(work, failure, instead_of, pause=pause)
            if is_parked:
                self.on_parked(work, failure)
            (parked,) = execute(self._shadow.alias, _PARKED, (self._shadow.subscriber,)).fetchone() or (0,)
        most = self._shadow.max_failures
        if most is not None and parked > most:
            raise RebuildError(
                f"{self._shadow.subscriber} fails at more than {most} aggregates, the last is "
                f"{work.aggregate_root_id} at {failure.place}: {failure.text}; correct its handlers, or allow more "
                "failures"
            )
        return is_parked


_PARKED = f"SELECT count(*) FROM {PARKED} WHERE subscriber = %s AND attempts > 0"
