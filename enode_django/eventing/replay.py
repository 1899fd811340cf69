"""The replay of everything that is stored to subscribers, again or for the first time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from enode_django.concurrency.backoff import once
from enode_django.eventing.event_processors import EventProcessor
from enode_django.eventing.event_subscription import EventSubscription
from enode_django.eventing.retry_decisions import RAISE
from enode_django.eventing.runner import Runner
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventing.sweep import behind
from enode_django.eventstore.base import EventStore, parts_of
from enode_django.eventstore.positions import BEGINNING, END


def replay(
    chosen: Iterable[Subscriber], store: EventStore, processor_of: Callable[[Subscriber], EventProcessor]
) -> dict[str, int]:
    """Bring subscribers from their checkpoints to the end of the streams that the caller can see in the store, in this
    thread. Return how many aggregates each has caught up with.

    Process managers and event handlers are left out unless they say ``replays = True``: a replay must not repeat what
    they sent. Raises what a handler raises. Blocks until all is done.
    """
    caught_up: dict[str, int] = {}
    for subscriber in chosen:
        replayed = subscriber._enode_for_replay()
        if replayed is None:
            continue
        processor = processor_of(replayed)
        processor.heed()
        subscription = EventSubscription(Runner(processor, once), policy=RAISE, notify=lambda notices: None)
        caught_up[subscriber.name] = 0
        for shard in store.shards:
            processor.subscribe(shard)
            for part in parts_of(shard, BEGINNING, END):
                works = behind(subscription, part.settled)
                subscription.catch_up(works)
                caught_up[subscriber.name] += len(works)
    return caught_up
