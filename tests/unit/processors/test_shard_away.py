"""A shard that does not answer stops its own aggregates and nobody else's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

import enode_django
from enode_django import CommandContext, command_handler
from enode_django.conf import make_conf
from enode_django.equeue.offsets import OffsetWindow
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.base import Appended, StreamRecord
from enode_django.eventstore.buckets import bucket_of, select_queue
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.shard_map import ShardMap
from enode_django.eventstore.sharding import ShardedEventStore
from enode_django.exceptions import ShardMapOutdated, StoreUnavailable
from enode_django.processors.puller import ShardBacklogs
from enode_django.processors.statistics import Statistics
from enode_django.processors.wiring import make_pipeline
from enode_django.serialization.codec import encode_command, encode_stream
from enode_django.testing.event_store_read_contract import stream
from tests.integration.sharded import id_in
from tests.unit.processors.test_pipeline_memory import SOON, wait_for

COUNT = 60


class Ring(enode_django.Command):
    type_name = "shards.Ring"


class Rung(enode_django.DomainEvent):
    type_name = "shards.Rung"


class Bell(enode_django.AggregateRoot):
    type_name = "shards.Bell"

    @enode_django.applies(Rung)
    def _rung(self, event: Rung) -> None:
        pass


@command_handler(Ring)
def ring(command: Ring, context: CommandContext) -> None:
    bell = context.find(Bell)
    if bell is None:
        bell = Bell(command.aggregate_root_id)
        context.add(bell)
    bell.apply(Rung())


class Halves(ShardMap):
    def __init__(self) -> None:
        super().__init__(["first", "second"])

    def place_of(self, aggregate_root_id: str) -> int:
        return bucket_of(aggregate_root_id) // 512


class Unknown(Halves):
    """No shard names its buckets at first."""

    refusals = 3

    def place_of(self, aggregate_root_id: str) -> int:
        if self.refusals:
            self.refusals -= 1
            raise StoreUnavailable("the shards cannot be reached")
        return super().place_of(aggregate_root_id)


class Moving(Halves):
    """The bucket of one aggregate moves to the other shard."""

    moved: str | None = None

    def place_of(self, aggregate_root_id: str) -> int:
        place = super().place_of(aggregate_root_id)
        return 1 - place if aggregate_root_id == self.moved else place


class Stallable(MemoryEventStore):
    """Does not answer while ``stalled``, like a stopped server."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.moves: list[Callable[[], None]] = []
        self.ended: list[str] = []

    def append(self, records: Sequence[StreamRecord], *, doubtful: bool = False) -> Sequence[Appended]:
        assert self.goes_on.wait(SOON)
        for move in self.moves:
            move()
            self.moves = []
            raise ShardMapOutdated("the shard owns other buckets by now")
        return super().append(records, doubtful=doubtful)

    def heads(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, int]:
        assert self.goes_on.wait(SOON)
        return super().heads(aggregate_root_ids)

    def find(self, keys: Iterable[Any]) -> Mapping[Any, StreamRecord]:
        assert self.goes_on.wait(SOON)
        return super().find(keys)

    def end_sessions(self, owner: str) -> int:
        assert self.goes_on.wait(SOON)
        self.ended.append(owner)
        return 0


class Tower:
    """A worker over two shards and two queues. Each queue has the commands of one shard."""

    def __init__(self, shard_map: ShardMap | None = None, **conf: Any) -> None:
        self.conf = make_conf(
            {"EVENT_STORE": {"DATABASES": ["first", "second"]}, "SNAPSHOTS": {"ENABLED": False}, **conf}
        )
        self.shards = (Stallable(), Stallable())
        self.transport = MemoryTransport()
        self.transport.create_topic(self.conf.COMMANDS.TOPIC, 2)
        self.statistics = Statistics()
        self.pipeline = make_pipeline(
            self.conf,
            self.transport,
            ShardedEventStore(self.shards, shard_map or Halves()),
            owner="new",
            markers=[[0], [0]],
            statistics=self.statistics,
        )

    def send(self, place: int) -> None:
        self.send_to(*(id_in(place, f"bell {place} {n} ") for n in range(COUNT)))

    def send_to(self, *ids: str) -> None:
        messages = [(id, encode_command(Ring(id), b"")) for id in ids]
        Producer(self.transport, selector=select_queue).send_all(self.conf.COMMANDS.TOPIC, messages)

    def start(self) -> None:
        self.pipeline.start()

    def stored(self, place: int) -> int:
        return len(self.shards[place]._commands)

    @property
    def windows(self) -> dict[int, OffsetWindow]:
        return {window.queue: window for window in self.pipeline.consumer.open_windows}


@pytest.fixture
def towers() -> Iterator[list[Tower]]:
    built: list[Tower] = []
    yield built
    for tower in built:
        for shard in tower.shards:
            shard.goes_on.set()
        assert tower.pipeline.drain(SOON)
        tower.pipeline.close(SOON)


@pytest.mark.parametrize("place", [0, 1])
def test_commands_of_the_other_shard_go_on(towers: list[Tower], place: int) -> None:
    tower = Tower()
    towers.append(tower)
    tower.shards[place].goes_on.clear()
    tower.send(place)
    tower.send(1 - place)
    tower.start()
    wait_for(lambda: tower.statistics.published == COUNT)
    assert (tower.stored(place), tower.stored(1 - place)) == (0, COUNT)
    tower.shards[place].goes_on.set()
    wait_for(lambda: tower.statistics.published == 2 * COUNT)
    assert tower.stored(place) == COUNT


def test_what_the_new_shard_refuses_is_recovered_where_it_was_handled(towers: list[Tower]) -> None:
    """The bucket moved while a command was on its way, and the aggregate has a version there already."""
    shard_map = Moving()
    tower = Tower(shard_map)
    towers.append(tower)
    id = id_in(0, "moved ")
    tower.shards[1].append(
        [stream(id, 1, aggregate_root_type="shards.Bell", events=encode_stream([Rung()]), metadata=b"")]
    )
    tower.shards[0].moves = [lambda: setattr(shard_map, "moved", id)]
    tower.send_to(id)
    tower.start()
    wait_for(lambda: tower.statistics.published == 1)
    assert tower.shards[0].heads([id]) == {}
    assert tower.shards[1].heads([id]) == {id: 2}


def test_nothing_is_pulled_before_the_shards_are_known(towers: list[Tower]) -> None:
    """Messages that are pulled but cannot be routed are kept from all other workers as long as this one lives."""
    tower = Tower(Unknown())
    towers.append(tower)
    tower.send(0)
    tower.start()
    wait_for(lambda: tower.statistics.published == COUNT)


def test_queue_of_a_shard_whose_share_is_full_pauses_and_the_others_go_on(towers: list[Tower]) -> None:
    tower = Tower(COMMANDS={"MAX_UNFINISHED": 20, "PULL_MAX_BATCH": 5})
    towers.append(tower)
    tower.shards[0].goes_on.clear()
    tower.send(0)
    tower.send(1)
    tower.start()
    wait_for(lambda: tower.statistics.published == COUNT)
    wait_for(lambda: tower.windows[0].unfinished == 10)
    tower.send(1)
    wait_for(lambda: tower.statistics.published == 2 * COUNT)
    assert tower.windows[0].unfinished == 10, "its share of the bound"
    assert tower.windows[0].next_offset == 10
    tower.shards[0].goes_on.set()
    wait_for(lambda: tower.statistics.published == 3 * COUNT)


def test_takeover_waits_for_the_sessions_of_each_shard_by_itself(towers: list[Tower]) -> None:
    tower = Tower()
    towers.append(tower)
    for queue in (0, 1):
        tower.transport.acquire(tower.conf.COMMANDS.CONSUMER_GROUP, tower.conf.COMMANDS.TOPIC, queue, "old", 0.0)
    tower.shards[0].goes_on.clear()
    tower.send(0)
    tower.send(1)
    tower.start()
    wait_for(lambda: tower.statistics.published == COUNT)
    assert [shard.ended for shard in tower.shards] == [[], ["old", "old"]]
    tower.shards[0].goes_on.set()
    wait_for(lambda: tower.statistics.published == 2 * COUNT)
    assert tower.shards[0].ended == ["old", "old"]


# Counts


def window(queue: int, unfinished: int) -> OffsetWindow:
    made = OffsetWindow("commands", queue, epoch=1, committed=0, deadline=1e9, backlog_end=0)
    made.add(range(unfinished))
    return made


def test_a_queue_that_has_brought_nothing_of_a_full_shard_is_not_paused() -> None:
    backlogs = ShardBacklogs(shards=2, max_unfinished=20)
    full, other, new = window(0, 10), window(1, 9), window(2, 0)
    backlogs.note(full, {0})
    backlogs.note(other, {1})
    assert backlogs.paused([full, other, new]) == {0}
    full.finish_many([0])
    assert backlogs.paused([full, other, new]) == frozenset()


def test_a_queue_that_holds_a_whole_share_pauses_whatever_it_has_brought() -> None:
    backlogs = ShardBacklogs(shards=2, max_unfinished=20)
    assert backlogs.paused([window(0, 10), window(1, 9)]) == {0}


def test_a_queue_with_commands_of_several_shards_counts_for_each() -> None:
    backlogs = ShardBacklogs(shards=2, max_unfinished=20)
    mixed, own = window(0, 6), window(1, 4)
    backlogs.note(mixed, {0, 1})
    backlogs.note(own, {1})
    assert backlogs.paused([mixed, own]) == {0, 1}
    assert backlogs.paused([mixed]) == frozenset()
