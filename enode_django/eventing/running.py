"""Running a subscriber's handlers over a batch, whatever the databases and the handlers do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from enode_django.concurrency.backoff import Persist
from enode_django.databases import heal_connections
from enode_django.eventing import parking
from enode_django.eventing.applying import Applier, is_transient
from enode_django.eventing.subscribers import running_subscriber
from enode_django.eventing.work import Failure, Progress, Work
from enode_django.exceptions import SubscriberUnavailable

Value = TypeVar("Value")


class Runner:
    """All methods are called by one thread. ``persist`` says how long to try while the databases are away."""

    def __init__(self, applier: Applier, persist: Persist) -> None:
        self.applier = applier
        self.subscriber = applier.subscriber
        self.alias = applier.alias
        self._persist = persist

    def run(self, works: Sequence[Work], portion: int, *, even_parked: bool = False) -> Mapping[str, Progress]:
        """As `Applier.apply`, except that an error which no handler raised is an aggregate's failure, too."""
        return self.persisted(partial(self._run, works, portion, even_parked))

    def persisted(self, call: Callable[[], Value]) -> Value:
        """Blocks while the databases cannot be asked; raises whatever else ``call`` raises."""

        def guarded() -> Value:
            heal_connections()
            token = running_subscriber.set(self.subscriber.name)
            try:
                return call()
            except Exception as error:  # of the databases, or a bug; told apart below
                if not is_transient(error):
                    raise
                raise SubscriberUnavailable(f"{self.subscriber.name} cannot go on: {error}") from error
            finally:
                running_subscriber.reset(token)

        return self._persist(guarded)

    def _run(self, works: Sequence[Work], portion: int, even_parked: bool) -> Mapping[str, Progress]:
        """What the database refuses as a whole (a value too long, a constraint) is tried in halves, until the guilty
        aggregate, and then its guilty version, stands alone."""
        self.applier.attempted = {}
        try:
            return self.applier.apply(works, portion, even_parked=even_parked)
        except Exception as error:
            if is_transient(error):
                raise
            if len(works) > 1:
                half = len(works) // 2
                first = self._run(works[:half], portion, even_parked)
                return {**first, **self._run(works[half:], portion, even_parked)}
            if portion > 1:
                return self._run(works, 1, even_parked)
            return self._unexplained(works[0], error)

    def _unexplained(self, work: Work, error: Exception) -> Mapping[str, Progress]:
        id = work.aggregate_root_id
        if id not in self.applier.attempted:
            raise error  # it was nothing to do with an event
        position = self.applier.positions([id]).get(id, 0)
        return {id: Progress(position, Failure(*self.applier.attempted[id], error, datetime.now(UTC)))}

    def park(self, work: Work, failure: Failure, instead_of: Iterable[parking.Parked] = ()) -> None:
        """Park the aggregate at ``failure``; the other refusals of ``work`` wait behind it."""
        first = work.failure or failure
        parked = parking.Parked(
            self.subscriber.name,
            work.aggregate_root_type,
            work.aggregate_root_id,
            failure.version,
            failure.command_id,
            type(failure.error).__name__,
            failure.traceback,
            work.failures,
            first.failed_at,
            failure.failed_at,
        )
        waiting = [refusal for command_id, refusal in work.refusals.items() if command_id != failure.command_id]
        self.persisted(lambda: parking.park(self.alias, parked, waiting, instead_of=instead_of))
