from __future__ import annotations

import time
from collections.abc import Callable

import enode_django
from enode_django import CommandContext, command_handler
from enode_django.conf import make_conf
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.processors.mailbox_threads import HANDLE_AT_ONCE
from enode_django.processors.pipeline import Pipeline
from enode_django.processors.statistics import Statistics
from enode_django.processors.wiring import make_pipeline
from enode_django.serialization.codec import encode_command

SOON = 60.0
LIMIT = 10
WAITING = 8 * HANDLE_AT_ONCE


class Plant(enode_django.Command):
    type_name = "memory.Plant"


class Planted(enode_django.DomainEvent):
    type_name = "memory.Planted"


class Tree(enode_django.AggregateRoot):
    type_name = "memory.Tree"

    @enode_django.applies(Planted)
    def _planted(self, event: Planted) -> None:
        pass


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Garden:
    """The mailbox gets all commands at once. It handles each only when the commands of a batch before it are
    published."""

    def __init__(self) -> None:
        self.statistics = Statistics()
        self.pipeline: Pipeline
        self.handled = 0
        self.most_cached = 0

    def plant(self, command: Plant, context: CommandContext) -> None:
        if not self.handled:
            wait_for(lambda: self.pipeline.consumer.unfinished == WAITING)
        wait_for(lambda: self.statistics.published >= self.handled - 2 * HANDLE_AT_ONCE)
        self.handled += 1
        self.most_cached = max(self.most_cached, self.statistics.gauges["cached_aggregates"]())
        tree = Tree(command.aggregate_root_id)
        tree.apply(Planted())
        context.add(tree)


garden = Garden()
command_handler(Plant)(garden.plant)


def test_finished_aggregates_leave_a_full_cache_though_many_commands_wait() -> None:
    transport = MemoryTransport()
    conf = make_conf({"AGGREGATE_CACHE": {"MAX_AGGREGATES": LIMIT}, "COMMANDS": {"PULL_MAX_BATCH": HANDLE_AT_ONCE}})
    transport.create_topic(conf.COMMANDS.TOPIC, 1)
    ids = [f"tree {n}" for n in range(WAITING)]
    messages = [(id, encode_command(Plant(aggregate_root_id=id), b"")) for id in ids]
    Producer(transport).send_all(conf.COMMANDS.TOPIC, messages)
    garden.pipeline = make_pipeline(
        conf, transport, MemoryEventStore(), owner="w", markers=[[0]], statistics=garden.statistics
    )
    garden.pipeline.start()
    wait_for(lambda: garden.statistics.published == WAITING)
    assert garden.pipeline.drain(SOON)
    garden.pipeline.close(SOON)
    assert garden.handled == WAITING
    assert garden.most_cached < WAITING * 3 / 4  # up to four batches are on their way, and eight would be all
