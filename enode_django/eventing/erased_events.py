"""Take back the effects of events that the store has lost.

A failover to a standby that lagged, or a restore, loses the newest events; subscribers may have handled them. When a
generation of the store has begun, each aggregate is compared with it, before its next event is handled or by the sweep.
If more events were handled than had been stored before that generation, projections are taken back and rebuilt from the
stored events. The effects of process managers and event handlers, and the additions of a `MultiProjection` to rows of
many aggregates, cannot be taken back: they are reported.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from django.db import transaction

from enode_django.eventing import failovers
from enode_django.eventing.base_projections import BaseProjection
from enode_django.eventing.event_processors import EventProcessor
from enode_django.eventing.failover_guard import StoreMovedOn
from enode_django.eventing.failovers import Check, Known
from enode_django.eventstore.base import Shard
from enode_django.eventstore.positions import Position
from enode_django.exceptions import StoreUnavailable

logger = logging.getLogger("enode_django.subscribers")

LOST_AT_ONCE = 1_000
LOOK_EVERY = 1.0
NOTICED = "%s compares all that it has handled with shard %s of the event store, where generation %d has begun"
TAKEN_BACK = "%s had handled versions %d to %d of %s, which are not stored any more; it is made anew from what is"
ERASED = (
    "%s has handled versions %d to %d of %s, which are not stored any more, and cannot take that back; "
    "%s; see the erased events in the admin"
)
NOTHING_LEFT = (
    "%s has handled %d aggregates of which shard %s of the event store has none: nothing is taken back. Is this the "
    "database of the events? If all of them are lost for good, forget the subscriber: manage.py enode forgetsubscriber"
)


def take_up(processor: EventProcessor, news: StoreMovedOn) -> None:
    """Do what ``news`` asks for before the batch is begun again. Blocks on the store and the subscriber's database."""
    if news.shard is not None and news.generation is not None:
        notice(processor, news.shard, news.generation)
    elif news.shard is not None:
        heal(processor, news.shard, news.ids)


def notice(processor: EventProcessor, shard: Shard, generation: int) -> None:
    if failovers.notice(processor.alias, processor.key, shard.number, generation):
        logger.warning(NOTICED, processor.name, shard.name, generation)


def heal(processor: EventProcessor, shard: Shard, ids: Sequence[str]) -> None:
    """Compare aggregates with the newest known generation, unless that was done. Does so in one transaction, during
    which no other worker handles them."""
    with transaction.atomic(using=processor.alias):
        handled = processor.claimed(sorted(ids))
        known = failovers.known(processor.alias, processor.key)[shard.number]
        if known.is_healed:
            return
        checks = _checks(processor, shard, known, ids, handled)
        erased = {id: check for id, check in checks.items() if check.is_erased}
        back = bool(erased) and processor.take_back({id: check.stored for id, check in erased.items()})
        failovers.save_checks(processor.alias, processor.key, shard.number, known.generation, checks, back)
    for id, (stored, reached) in erased.items():
        extra = {"subscriber": processor.name, "aggregate_root_id": id}
        told = (processor.name, stored + 1, reached, id)
        if back:
            logger.warning(TAKEN_BACK, *told, extra=extra)
        else:
            logger.error(ERASED, *told, _way_out(processor), extra=extra)


def _way_out(processor: EventProcessor) -> str:
    if isinstance(processor.subscriber, BaseProjection):
        return f"rebuild it: manage.py rebuildprojection {processor.name} --accept-differences"
    return "settle what follows from them"


def _checks(
    processor: EventProcessor, shard: Shard, known: Known, ids: Sequence[str], handled: Mapping[str, int]
) -> dict[str, Check]:
    """Return the checks of the aggregates that were not compared yet. Each is compared with its streams stored before
    the first generation that began after its last comparison."""
    compared = failovers.checked(processor.alias, processor.key, ids, known.healed)
    since: dict[int, list[str]] = {}
    for id in ids:
        last = compared.get(id, known.healed)
        if last < known.generation:
            since.setdefault(last, []).append(id)
    checks: dict[str, Check] = {}
    for last, some in since.items():
        stored = shard.heads_before(some, Position(last + 1, 0))
        checks.update({id: Check(stored.get(id, 0), handled.get(id, 0)) for id in some})
    return checks


def heal_claims(processor: EventProcessor, shard: Shard, known: Known, claims: Sequence[tuple[str, int]]) -> bool:
    """Heal the aggregates that are parked or have a higher version than the store had. Return False, and heal none, if
    there are very many and the store has none of them: then it is more likely to be another store."""
    store = processor.store
    ours = {id: version for id, version in claims if store.shards[store.place_of(id)].number == shard.number}
    stored = shard.heads_before(ours, Position(known.healed + 1, 0))
    parked = processor.parked(list(ours), even_parked=False)  # some may be parked at an erased event
    ahead = [id for id, version in ours.items() if version > stored.get(id, 0) or id in parked]
    if not stored and len(ours) >= LOST_AT_ONCE:
        logger.error(NOTHING_LEFT, processor.name, len(ours), shard.name)
        return False
    if ahead:
        heal(processor, shard, ahead)
    return True


class Lookout:
    """Looks every second, while there is something to handle, for new generations and for corrections. Earlier messages
    may be handled only while no generation has begun, and messages have the originals of corrected events. `look`
    blocks on the shards; an unavailable one is asked again after ten times as long as the failure took, and not before
    `LOOK_EVERY`."""

    def __init__(self, processor: EventProcessor, clock: Callable[[], float] = time.monotonic) -> None:
        self._processor = processor
        self._clock = clock
        self._next: dict[int, float] = {}
        self._corrections: dict[int, int] = {}

    def look(self) -> None:
        for place, shard in enumerate(self._processor.store.shards):
            began = self._clock()
            if began < self._next.get(place, began):
                continue
            try:
                generation = shard.position().generation
                corrected = shard.corrected_since(self._corrections.get(place, 0))
            except StoreUnavailable as error:
                logger.debug("%s does not know the generation of a shard: %s", self._processor.name, error)
                self._next[place] = self._clock() + max(LOOK_EVERY, 10 * (self._clock() - began))
                continue
            self._next[place] = self._clock() + LOOK_EVERY
            notice(self._processor, shard, generation)
            if corrected and self._processor.heeded is not None:
                self._processor.heeded.note_corrected(corrected)
                self._corrections[place] = corrected[-1].number
