"""Subscribers of an event store with two shards: the tests' database, and one in memory that can be away."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import pytest

from enode_django.eventing import checkpoints
from enode_django.eventing.registry import subscribers
from enode_django.eventing.replay import replay
from enode_django.eventstore.base import Appended, CommandKey, Part, StreamRecord
from enode_django.eventstore.buckets import bucket_of
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.positions import BEGINNING, Position
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.shard_map import ShardMap
from enode_django.eventstore.sharding import ShardedEventStore
from enode_django.exceptions import StoreUnavailable
from enode_django.models import HandledRefusal, Subscription
from enode_django.runtime import make_processor
from tests.following.domain import Added, Behaviour, Entries, Kindness, TooMuch, handler_group
from tests.following.harness import Harness
from tests.following.test_sweeping import Sweep
from tests.integration.sharded import id_in

pytestmark = pytest.mark.django_db(transaction=True)
DAY = 86_400.0
FIRST, SECOND = id_in(0, "c"), id_in(1, "d")


class SecondShard(MemoryEventStore):
    number = 1
    is_away = False

    def _asked(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the second shard is away")

    def append(self, records: Sequence[StreamRecord], *, doubtful: bool = False) -> Sequence[Appended]:
        self._asked()
        return super().append(records, doubtful=doubtful)

    def position(self) -> Position:
        self._asked()
        return super().position()

    def settled(self, after: Position, before: Position, *, limit: int) -> Part:
        self._asked()
        return super().settled(after, before, limit=limit)

    def stored_before(self, keys: Iterable[CommandKey], position: Position) -> Collection[CommandKey]:
        self._asked()
        return super().stored_before(keys, position)

    def heads_before(self, aggregate_root_ids: Iterable[str], position: Position) -> Mapping[str, int]:
        self._asked()
        return super().heads_before(aggregate_root_ids, position)


class Halves(ShardMap):
    def place_of(self, aggregate_root_id: str) -> int:
        return bucket_of(aggregate_root_id) // 512


class ShardedHarness(Harness):
    def __init__(self) -> None:
        super().__init__()
        self.second = SecondShard()
        self.store = ShardedEventStore([PostgresEventStore(), self.second], Halves([]))  # type: ignore[assignment]


@pytest.fixture
def harness(harness: Harness) -> ShardedHarness:
    return ShardedHarness()


def test_what_is_missing_is_fetched_from_every_shard(harness: ShardedHarness, behaviour: Behaviour) -> None:
    harness.stored(FIRST, Added(amount=1))
    harness.stored(SECOND, Added(amount=2), Added(amount=3))
    Sweep(harness, subscribers.instance(Entries)).run()
    assert sorted(behaviour.calls) == [f"{FIRST}/1/0", f"{SECOND}/1/0", f"{SECOND}/2/0"]
    swept = Subscription.objects.order_by("shard").values_list("shard", "swept_generation")
    assert [shard for shard, _ in swept] == [0, 1]
    assert swept[1][1] == harness.second.position().generation, "positions of one shard say nothing of the other"


def test_a_shard_that_is_away_keeps_nobody_from_the_other(harness: ShardedHarness, behaviour: Behaviour) -> None:
    harness.stored(FIRST, Added(amount=1))
    harness.stored(SECOND, Added(amount=2))
    harness.second.is_away = True
    sweep = Sweep(harness, subscribers.instance(Entries))
    sweep.run()
    assert behaviour.calls == [f"{FIRST}/1/0"]
    harness.stored(FIRST, Added(amount=3), after=1)
    sweep.run()
    assert behaviour.calls == [f"{FIRST}/1/0", f"{FIRST}/2/0"]
    harness.second.is_away = False
    sweep.run()
    assert behaviour.calls == [f"{FIRST}/1/0", f"{FIRST}/2/0", f"{SECOND}/1/0"]


def test_a_handled_refusal_is_remembered_until_its_own_shard_is_swept(harness: ShardedHarness) -> None:
    """However long its shard is away, and however often the other shard is swept meanwhile."""
    sweep = Sweep(harness, subscribers.instance(Kindness))
    sweep.run()
    harness.deliver(sweep.subscription, [harness.refused(SECOND, TooMuch("no", amount=1))])
    HandledRefusal.objects.update(handled_at="2020-01-01T00:00:00Z")
    harness.second.is_away = True
    harness.clock.now += 2 * DAY
    sweep.run()
    assert HandledRefusal.objects.count() == 1
    harness.second.is_away = False
    sweep.run()
    sweep.run()
    assert len(harness.sent) == 1, "else it is handled a second time"
    assert HandledRefusal.objects.count() == 0


def test_handled_refusals_are_forgotten_beside_a_shard_that_stores_nothing(harness: ShardedHarness) -> None:
    """Such as a new one without buckets: its position never advances."""
    sweep = Sweep(harness, subscribers.instance(Kindness))
    harness.deliver(sweep.subscription, [harness.refused(FIRST, TooMuch("no", amount=1))])
    HandledRefusal.objects.update(handled_at="2020-01-01T00:00:00Z")
    sweep.run()
    assert HandledRefusal.objects.count() == 0


def test_a_shard_that_goes_away_does_not_end_the_sweep_of_another(harness: ShardedHarness) -> None:
    """Nothing is forgotten while it cannot be asked."""
    sweep = Sweep(harness, subscribers.instance(Kindness))
    sweep.run()
    harness.deliver(sweep.subscription, [harness.refused(FIRST, TooMuch("no", amount=1))])
    HandledRefusal.objects.update(handled_at="2020-01-01T00:00:00Z")
    harness.second.is_away = True
    harness.clock.now += 30.0
    sweep.run()
    assert HandledRefusal.objects.count() == 1
    harness.second.is_away = False
    harness.clock.now += 30.0
    sweep.run()
    assert HandledRefusal.objects.count() == 0


def test_who_begins_now_begins_in_every_shard(harness: ShardedHarness, behaviour: Behaviour) -> None:
    old = [*harness.stored(FIRST, Added(amount=1)), *harness.stored(SECOND, Added(amount=2))]
    subscription = harness.subscription(handler_group(start="now"))
    for shard in harness.store.shards:
        subscription.runner.processor.subscribe(shard)
    new = [*harness.stored(FIRST, Added(amount=3), after=1), *harness.stored(SECOND, Added(amount=4), after=1)]
    harness.deliver(subscription, [*old, *new])
    assert sorted(call for call in behaviour.calls if call != "second") == [f"{FIRST}/2/0", f"{SECOND}/2/0"]


def test_who_began_while_a_shard_was_away_begins_there_later(harness: ShardedHarness, behaviour: Behaviour) -> None:
    harness.second.is_away = True
    sweep = Sweep(harness, handler_group(start="now"))
    assert [began.shard for began in Subscription.objects.all()] == [0]
    harness.second.is_away = False
    sweep.run()
    assert {began.shard for began in Subscription.objects.all()} == {0, 1}


def test_a_replay_goes_over_every_shard(harness: ShardedHarness, behaviour: Behaviour) -> None:
    harness.stored(FIRST, Added(amount=1))
    harness.stored(SECOND, Added(amount=2))
    entries = subscribers.instance(Entries)
    caught_up = replay([entries], harness.store, lambda one: make_processor(one, harness.store, harness._send))
    assert caught_up == {entries.name: 2}
    assert checkpoints.read("default", entries.name, [FIRST, SECOND]) == {FIRST: 1, SECOND: 1}
    assert all(began.start_position == 0 for began in Subscription.objects.all())
    assert harness.second.position() > BEGINNING
