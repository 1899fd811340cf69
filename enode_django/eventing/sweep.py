"""Compare the event store with a subscriber's checkpoints, for streams that no message ever announced.

A queue may lose its tail, and a new projection has a past that the queue no longer holds. So one worker regularly goes
over what was stored since the last time. The store's positions order that without a gap: nothing can appear below a
settled position.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from enode_django.bus.notices import SendNotices
from enode_django.concurrency.outages import Attempts
from enode_django.equeue.consumer.queue_consumer import PulledMessages
from enode_django.equeue.transport import Transport
from enode_django.eventing import checkpoints, event_types, failovers, unknown_types
from enode_django.eventing.drained_topics import Goal, is_worked_off
from enode_django.eventing.erased_events import Lookout, heal_claims, notice
from enode_django.eventing.event_subscription import EventSubscription
from enode_django.eventing.failovers import Known
from enode_django.eventing.in_flight import FIRST_QUEUE
from enode_django.eventing.parked_retries import ParkedRetries
from enode_django.eventing.pending import PendingAggregate, follows_refusal
from enode_django.eventing.resender import Resender
from enode_django.eventing.retry_decisions import RetryPolicy
from enode_django.eventing.runner import Runner
from enode_django.eventing.subscribers import follows
from enode_django.eventstore.base import Part, Settled, Shard, parts_of
from enode_django.eventstore.positions import BEGINNING, END, Position
from enode_django.exceptions import StoreUnavailable

logger = logging.getLogger("enode_django.subscribers")

ROWS_AT_ONCE = 10_000
PORTIONS_FORGOTTEN = 10
"""The most portions of `ROWS_AT_ONCE` refusals that are forgotten after a sweep: more than will be handled until the
next one, and no long pause."""
LOOK_AGAIN = 0.5
"""Seconds between checks whether the queue is worked off."""
RESTORED = "%s has compared the store up to position %s, but that is at %s: it was set back, so a generation is begun"
FORGET_REFUSALS = 86_400.0
"""Seconds. A handled refusal is remembered for at least this time, and until the sweep has passed it."""


def behind(subscription: EventSubscription, settled: Settled) -> Collection[PendingAggregate]:
    """Return the works of a part that the subscriber has not handled and does not pass over as unknown."""
    subscriber, processor = subscription.subscriber, subscription.runner.processor
    heads = {id: head for id, head in settled.heads.items() if follows(subscriber, head[0])}
    positions = processor.positions(list(heads)) if heads else {}
    heads = {id: head for id, head in heads.items() if positions.get(id, 0) < head[1]}
    passed = unknown_types.passed_over_among(subscriber, processor.store, heads, positions)
    works = {id: PendingAggregate(id, *head) for id, head in heads.items() if id not in passed}
    for refusal in settled.refusals:
        if follows_refusal(subscriber, refusal) and not unknown_types.is_passed_over(subscriber, refusal):
            id = refusal.aggregate_root_id
            works.setdefault(id, PendingAggregate(id, refusal.aggregate_root_type)).add(refusal)
    return works.values()


class Sweeper:
    """Sweeps one shard. `tick` is called by the subscriber's thread, if this worker owns the first queue."""

    def __init__(
        self,
        subscription: EventSubscription,
        shard: Shard,
        transport: Transport,
        topic: str,
        *,
        interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subscription = subscription
        self._subscriber = subscription.subscriber
        self._processor = subscription.runner.processor
        self._shard = shard
        self._place = (self._processor.alias, self._processor.key, shard.number)
        self._transport = transport
        self._topic = topic
        self._interval = interval
        self._clock = clock
        self._goal: Goal | None = None
        self._parts: Iterator[Part] | None = None
        self._part: Part | None = None
        self._arrived = unknown_types.NOTHING_ARRIVED
        self._swept = BEGINNING
        self._fence: tuple[int, int] | None = None
        self._began = clock()
        self.next_step = clock()
        """The time of the clock at which `tick` has something to do next."""
        self.swept_at: float | None = None
        """The time of the clock at which the last finished comparison began; None before the first."""
        self._passed = BEGINNING
        """The position up to which the last finished comparison came. A transaction that stays open holds it back."""

    def tick(self) -> None:
        """Do a part of the work, if any is due: look whether the queue is worked off, or compare some rows."""
        if self._clock() < self.next_step:
            return
        if self._goal is None:
            self._began = self._clock()
            self._goal = Goal(self._shard.position(), self._transport.end_offsets(self._topic))
            notice(self._processor, self._shard, self._goal.position.generation)
        if self._parts is None:
            # Before the queue is worked off, most of what is missing comes by it, and would be handled twice.
            if not is_worked_off(self._transport, self._processor.key, self._topic, self._goal.ends):
                self.next_step = self._clock() + LOOK_AGAIN
                return
            begin = self._begin()
            if begin is None:
                self._goal = None
                return
            if self._heals(begin):
                return
            self._parts = self._parts_between(begin, self._goal.position)
        if self._part is None:
            self._part = self._next_part(self._parts)
        if self._part is None:
            self._end()
        elif self._catch_up(self._part):
            self._part = None
        else:
            self.next_step = self._clock() + LOOK_AGAIN

    def postpone(self) -> None:
        """Go on when the next comparison is due."""
        self.next_step = self._clock() + self._interval

    def _begin(self) -> Position | None:
        """Return the position to compare from; None to ask again, because the store had not noticed a restore."""
        swept = self._processor.subscribe(self._shard).swept_position
        position = self._shard.position()
        if swept <= position:
            return swept
        logger.warning(RESTORED, self._subscriber.name, swept, position)
        self._shard.begin_generation(position.generation)
        return None

    def _parts_between(self, swept: Position, goal: Position) -> Iterator[Part]:
        """Return the parts to compare. If types were passed over that are known now, they begin where that was."""
        self._arrived = unknown_types.arrived(self._processor.alias, self._subscriber, self._shard.number)
        self._swept, since = swept, self._arrived.since
        if since is None or since >= swept:
            return parts_of(self._shard, swept, goal, limit=ROWS_AT_ONCE)
        logger.info("%s knows %s by now, and compares from there", self._subscriber.name, self._arrived.names)
        ways = ((since, swept), (swept, goal))
        return chain.from_iterable(parts_of(self._shard, *way, limit=ROWS_AT_ONCE) for way in ways)

    def ahead(self, refusals: Collection[checkpoints.RefusalKey]) -> set[checkpoints.RefusalKey]:
        """Return those of the refusals that a later comparison comes to. Blocks. Raises `StoreUnavailable`."""
        here = self._shard.stored_before([(command_id, id) for id, command_id in refusals], END)
        passed = self._shard.stored_before(here, self._passed)
        return {(id, command_id) for command_id, id in {*here}.difference(passed)}

    # -- after a failover -----------------------------------------------------------------------------------------

    def _heals(self, swept: Position) -> bool:
        """Compare a part of what was handled before a generation began. Return False if nothing is left.

        First each aggregate that the subscriber knows is compared with the store, then the streams below ``swept`` with
        the subscriber. Its refusals were handled, and are left alone.
        """
        known = failovers.known(self._processor.alias, self._processor.key).get(self._shard.number)
        if known is None or known.is_healed:
            return False
        if known.healed_id is not None:
            self._compare_ids(known, known.healed_id)
        elif known.compared < swept:
            self._compare_rows(known, swept)
        else:
            failovers.healed(*self._place, known.generation)
        return True

    def _compare_ids(self, known: Known, after: str) -> None:
        # A batch that began before the generation was noted may still advance aggregates.
        if self._fence is None or self._fence[0] != known.generation:
            self._fence = (known.generation, failovers.next_transaction(self._processor.alias))
        if not failovers.have_ended(self._processor.alias, self._fence[1]):
            self.next_step = self._clock() + LOOK_AGAIN
            return
        claims = self._processor.claims(after, ROWS_AT_ONCE)
        if claims and not heal_claims(self._processor, self._shard, known, claims):
            self._goal = None
            self.postpone()
            return
        until = claims[-1][0] if len(claims) == ROWS_AT_ONCE else None
        failovers.ids_compared(*self._place, known.generation, until)

    def _compare_rows(self, known: Known, swept: Position) -> None:
        part = self._shard.settled(known.compared, swept, limit=ROWS_AT_ONCE)
        works = behind(self._subscription, part.settled._replace(refusals=()))
        if works and not self._subscription.catch_up(works):
            self.next_step = self._clock() + LOOK_AGAIN
            return
        failovers.rows_compared(*self._place, known.generation, part.until)

    def _next_part(self, parts: Iterator[Part]) -> Part | None:
        try:
            return next(parts, None)
        except Exception:
            self._parts = None  # a generator that has raised is exhausted; the next step makes another
            raise

    def _end(self) -> None:
        if self._arrived.names:
            unknown_types.forget(*self._place, self._arrived.names)
        if self._goal is not None:
            self._passed = self._goal.position
        self._goal = self._parts = None
        self.swept_at = self._began
        self.postpone()

    def _catch_up(self, part: Part) -> bool:
        """Catch up with a part. Return True if all of it is handled now."""
        settled, is_known = part.settled, part.until <= self._swept
        if is_known:  # its other refusals were handled, and may be forgotten by now
            settled = settled._replace(refusals=self._arrived.among(settled.refusals))
        works = behind(self._subscription, settled)
        if works:
            logger.info("%s catches up with %d aggregates from the store", self._subscriber.name, len(works))
            if not self._subscription.catch_up(works):
                return False
        if not is_known:
            unknown_types.note(*self._place, unknown_types.unknown_types(self._subscriber, settled))
            checkpoints.save_swept(*self._place, part.until)
        return True


class SweepingSubscription(EventSubscription):
    """A subscription that also sweeps the store regularly, in the worker that owns the first queue. Each shard is swept
    separately, so that an unavailable one does not hold up the others."""

    def __init__(
        self,
        runner: Runner,
        *,
        policy: RetryPolicy,
        notify: SendNotices,
        transport: Transport,
        topic: str,
        interval: float,
        hand_over: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        new_resender: Callable[[Shard], Resender] | None = None,
    ) -> None:
        super().__init__(runner, policy=policy, notify=notify, hand_over=hand_over, clock=clock)
        runner.processor.heed()
        self._lookout = Lookout(runner.processor, clock)
        self._new_sweeper = partial(Sweeper, self, transport=transport, topic=topic, interval=interval, clock=clock)
        self._shards = runner.processor.store.shards
        self._sweepers: Sequence[Sweeper] = ()
        self._parked = ParkedRetries(self, clock=clock)
        self._new_resender = new_resender
        self._resenders: Sequence[Resender] = ()
        self._attempts: Mapping[Sweeper | Resender, Attempts] = {}
        self._has_begun = False

    def begin(self) -> None:
        """Subscribe in each shard. Call this before the first pull: a subscriber that begins at *now* begins here."""
        if not self._has_begun:
            for shard in self._shards:
                self.runner.persisted(partial(self._begin, shard))
            self.runner.persisted(partial(event_types.record, self.runner.alias, self.subscriber))
            self._has_begun = True

    def _begin(self, shard: Shard) -> None:
        try:
            self.runner.processor.subscribe(shard)
        except StoreUnavailable as error:
            if len(self._shards) == 1:
                raise
            logger.warning("%s begins without a shard: %s", self.subscriber.name, error)  # a sweep subscribes later

    def handle(self, pulled: Sequence[PulledMessages]) -> None:
        self.runner.persisted(self._lookout.look)
        super().handle(pulled)

    def retry_due(self) -> None:
        self.begin()
        if super().next_retry is not None:
            self.runner.persisted(self._lookout.look)
        super().retry_due()

    def begin_round(self) -> None:
        """Let `tick` sweep and look for parked aggregates now, and retry each of these once until the next call.
        Otherwise one whose handler asks for a short pause might be due again whenever the others have been tried, and
        the round would not end."""
        self._parked.since = self._parked.next_step = self._clock()
        for sweeper in self._sweepers:
            sweeper.next_step = self._clock()

    def tick(self, owned: Collection[int]) -> None:
        """Retry what is parked, sweep, and resend, if due. ``owned`` are the queues of this worker."""
        if FIRST_QUEUE not in owned:
            self._sweepers = self._resenders = ()
            return
        if not self._sweepers:
            self._sweepers = [self._new_sweeper(shard) for shard in self._shards]
            self._resenders = [self._new_resender(shard) for shard in self._shards] if self._new_resender else ()
            self._attempts = {one: Attempts(is_rare=True) for one in [*self._sweepers, *self._resenders]}
        self.runner.persisted(self._parked.tick)
        for sweeper in self._sweepers:
            self.runner.persisted(partial(self._sweep, sweeper))
        for resender in self._resenders:
            self.runner.persisted(partial(self._step, resender))

    def _sweep(self, sweeper: Sweeper) -> None:
        swept_at = sweeper.swept_at
        self._step(sweeper)
        if sweeper.swept_at != swept_at:
            self._forget_refusals()
            self.runner.processor.tidy()

    def _step(self, one: Sweeper | Resender) -> None:
        try:
            one.tick()
            self._attempts[one].worked()
        except StoreUnavailable as error:
            if len(self._shards) == 1:
                raise
            self._attempts[one].failed(error)
            one.postpone()  # by a whole interval: each attempt at an unresponsive server takes time

    def _forget_refusals(self) -> None:
        """Forget refusals that were handled `FORGET_REFUSALS` ago, unless a sweep has yet to come to them: it would
        handle them again."""
        alias, key = self.runner.alias, self.runner.key
        for _ in range(PORTIONS_FORGOTTEN):
            old = checkpoints.old_refusals(alias, key, f"{FORGET_REFUSALS:.0f} seconds", ROWS_AT_ONCE)
            try:
                ahead = {refusal for one in self._sweepers if old for refusal in one.ahead(old)}
            except StoreUnavailable:
                if len(self._shards) == 1:
                    raise
                return  # the shard's own sweep tells of it
            checkpoints.forget_refusals(alias, key, old - ahead)
            if ahead or len(old) < ROWS_AT_ONCE:
                return

    @property
    def next_retry(self) -> float | None:
        due = super().next_retry
        steps = [sweeper.next_step for sweeper in self._sweepers] + [one.next_step for one in self._resenders]
        if steps:
            steps.append(self._parked.next_step)
        return min(steps if due is None else [due, *steps], default=None)
