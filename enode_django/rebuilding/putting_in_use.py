"""Putting a generation of a projection's tables in use when little is left to catch up with."""

from __future__ import annotations

import logging
import time
from itertools import islice

from django.utils import timezone

from enode_django.concurrency.backoff import delays
from enode_django.concurrency.stopping import pause
from enode_django.eventing import checkpoints, failovers
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.positions import BEGINNING
from enode_django.exceptions import TablesInUse
from enode_django.models import Rebuild
from enode_django.rebuilding.catching_up import CatchingUp, Generations, Positions, TooMuchLeft
from enode_django.rebuilding.checking import Check, UsedIsBehind
from enode_django.rebuilding.letting_go import let_go
from enode_django.rebuilding.results import Accepted
from enode_django.rebuilding.swapping import Swap
from enode_django.rebuilding.target import State, Target

logger = logging.getLogger("enode_django.rebuilding")

SWAPS = 10
"""Attempts to swap, with growing pauses: 80 seconds in all."""
FIRST_PAUSE = 0.2
SLICE = 1.0
"""Seconds between checks whether the job has to stop, during a pause."""


def put_in_use(
    target: Target,
    record: Rebuild,
    catching_up: CatchingUp,
    check: Check | None = None,
    accepted: Accepted = Accepted(),  # noqa: B008
) -> None:
    """Swap the tables as soon as writers need not be locked out for long. Blocks.

    Raises `ProjectionsDiffer` if ``check`` finds differences that are not ``accepted``; `TablesInUse` if writers would
    be locked out for long at each of `SWAPS` attempts; and as `Swap.run` does.
    """
    swapping = _Swapping(target, record, catching_up, check, accepted)
    catching_up.run()
    for number, delay in enumerate(islice(delays(FIRST_PAUSE, 30.0), SWAPS), 1):
        is_last = number == SWAPS
        try:
            swapping.run(is_last=is_last)
        except TooMuchLeft:
            prepare = swapping.prepare
        except UsedIsBehind:
            prepare = swapping.leave_as_it_is
        else:
            swapping.let_go()
            return
        if not is_last:
            _wait(catching_up, delay)
            prepare()
    raise TablesInUse(f"{target.name} cannot be swapped: events keep coming in faster than they are handled")


class _Swapping:
    def __init__(
        self, target: Target, record: Rebuild, catching_up: CatchingUp, check: Check | None, accepted: Accepted
    ) -> None:
        self._target = target
        self._record = record
        self._was = record.state
        self._catching_up = catching_up
        self._check = check
        self._accepted = accepted
        self._swept = _swept(target, catching_up.store)
        self._swap = Swap(target, catching_up.shadow, target.shadow(target.generation()))

    def prepare(self) -> None:
        self._catching_up.run()
        if self._check is not None:
            self._check.go_on()

    def leave_as_it_is(self) -> None:
        """Let the workers catch up: the built tables are ahead of those in use."""

    def run(self, *, is_last: bool) -> None:
        self._swap.run(lambda: self._last_steps(is_last))
        logger.info("%s has build %d in use", self._target.name, self._catching_up.shadow.generation)

    def let_go(self) -> None:
        try:
            let_go(self._target, self._swap.outgoing)
        except Exception:  # the tables are swapped: the rebuild has not failed
            name = self._target.name
            logger.exception(
                "the replaced tables of %s still hold rows of other tables; the next rebuild drops them", name
            )

    def _last_steps(self, is_last: bool) -> None:
        locked = self._target.locked(self._record, self._was)
        self._catching_up.check_little_is_left()
        if self._check is not None and not self._accepted.differences:
            self._compare(self._check, is_last)
        self._catching_up.finish()
        locked.generations = {str(number): generation for number, generation in self._compared().items()}
        for number, generation in self._catching_up.generations.items():
            failovers.rebuilt(self._target.alias, self._target.key, number, generation)
        locked.state = State.SWAPPED if self._was == State.BUILDING else State.UNDONE
        locked.positions = {str(number): str(position) for number, position in self._swept.items()}
        locked.migrations = self._target.applied_migrations()
        locked.swapped_at = timezone.now()
        locked.save(using=self._target.alias)

    def _compared(self) -> Generations:
        """Return the generations with which the rows in use were compared: those of events erased since may be left."""
        known = failovers.known(self._target.alias, self._target.key)
        return {**self._catching_up.generations, **{number: one.healed for number, one in known.items()}}

    def _compare(self, check: Check, is_last: bool) -> None:
        try:
            check.finish()
        except UsedIsBehind:
            if not (is_last or self._accepted.uncompared):
                raise
        self._accepted.check(self._target.name, check.comparison, is_last=True)


def _wait(catching_up: CatchingUp, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        catching_up.report("wait to swap")
        pause(min(left, SLICE))


def _swept(target: Target, store: EventStore) -> Positions:
    """Return the positions below which the tables in use have everything."""
    found = {}
    for shard in store.shards:
        subscription = checkpoints.subscription(target.alias, target.key, shard.number)
        found[shard.number] = subscription.swept_position if subscription is not None else BEGINNING
    return found
