"""Handing subscribers everything that is stored, once more or for the first time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from enode_django.concurrency.backoff import once
from enode_django.eventing.applying import Applier
from enode_django.eventing.follower import Follower
from enode_django.eventing.retrying import RAISE
from enode_django.eventing.running import Runner
from enode_django.eventing.subscribers import Subscriber, part_for_replay
from enode_django.eventing.sweeping import behind
from enode_django.eventstore.base import EventStore, parts_of
from enode_django.eventstore.positions import BEGINNING, END


def replay(
    chosen: Iterable[Subscriber], store: EventStore, applier_of: Callable[[Subscriber], Applier]
) -> dict[str, int]:
    """Bring subscribers from where their checkpoints are to the end of what the caller can see in the store, in this
    thread; returns how many aggregates each has caught up with.

    Process managers and event handlers are left out unless they say ``replays = True``: a replay must not send what was
    sent. What a handler raises is raised. Blocks until all is done.
    """
    caught_up: dict[str, int] = {}
    for subscriber in chosen:
        replayed = part_for_replay(subscriber)
        if replayed is None:
            continue
        follower = Follower(Runner(applier_of(replayed), once), policy=RAISE, notify=lambda notices: None)
        caught_up[subscriber.name] = 0
        for shard in store.shards:
            follower.runner.applier.subscribe(shard)
            for part in parts_of(shard, BEGINNING, END):
                works = behind(follower, part.settled)
                follower.catch_up(works)
                caught_up[subscriber.name] += len(works)
    return caught_up
