from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import enode_django
from enode_django import CommandContext, command_handler
from enode_django.conf import make_conf
from enode_django.conf.groups import Conf
from enode_django.equeue.messages import PulledBatch
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import QueueHeld, TransportUnavailable
from enode_django.processors.pipeline import Pipeline
from enode_django.processors.statistics import Statistics
from enode_django.processors.wiring import make_pipeline
from enode_django.serialization.codec import encode_command
from enode_django.serialization.plain import pack
from tests.acceptance.waiting import wait_until

SOON = 60.0


class Dig(enode_django.Command):
    type_name = "drain.Dig"


class CannotRelease(MemoryTransport):
    def release(self, group: str, topic: str, owner: str, epochs: Mapping[int, int]) -> None:
        raise TransportUnavailable("gone")


class GivesOneMore(MemoryTransport):
    """Answers the pull that is under way when the worker leaves, with one message."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.released = threading.Event(), threading.Event()

    def pull(self, topic: str, offsets: Mapping[int, int], *, limit: int, wait: float) -> Sequence[PulledBatch]:
        assert self.left.wait(SOON)
        if not self.end_offsets(topic)[0]:
            self.send(topic, {0: [encode_command(Dig("hole"), b"")]})
        return super().pull(topic, offsets, limit=limit, wait=wait)

    def leave(self, group: str, topic: str, member: str) -> None:
        super().leave(group, topic, member)
        self.left.set()

    def release(self, group: str, topic: str, owner: str, epochs: Mapping[int, int]) -> None:
        super().release(group, topic, owner, epochs)
        if epochs:
            self.released.set()


def started(conf: Conf, transport: MemoryTransport, queues: int = 1) -> Pipeline:
    transport.create_topic(conf.COMMANDS.TOPIC, queues)
    pipeline = make_pipeline(conf, transport, MemoryEventStore(), owner="w", markers=[[0]], statistics=Statistics())
    pipeline.start()
    return pipeline


def test_worker_that_cannot_give_its_queues_back_says_that_it_has_not_drained() -> None:
    pipeline = started(make_conf({"COMMANDS": {"MAILBOXES": 1}}), CannotRelease())
    assert pipeline.drain(1.0) is False


def test_queue_is_kept_until_what_the_last_pull_brought_is_finished() -> None:
    transport = GivesOneMore()
    was_released: list[bool] = []

    @command_handler(Dig)
    def dig(command: Dig, context: CommandContext) -> None:
        was_released.append(transport.released.wait(0.5))

    pipeline = started(make_conf({"COMMANDS": {"MAILBOXES": 1}}), transport)
    wait_until(lambda: pipeline.consumer.owned == {0}, "the worker has the queue")
    assert pipeline.drain(SOON)
    assert was_released == [False]
    assert transport.released.is_set()
    pipeline.close(SOON)


class Wait(enode_django.Command):
    type_name = "drain.Wait"


class Later(enode_django.Command):
    type_name = "drain.Later"


def test_command_is_handled_again_though_nothing_else_comes() -> None:
    conf, transport = make_conf({"COMMANDS": {"MAILBOXES": 1}, "WORKERS": {"RETRY_DELAY": 0.001}}), MemoryTransport()
    errors = [ConnectionError("reset"), TimeoutError("late")]

    @command_handler(Wait)
    def wait(command: Wait, context: CommandContext) -> None:
        if errors:
            raise errors.pop()

    pipeline = started(conf, transport)
    transport.send(conf.COMMANDS.TOPIC, {0: [encode_command(Wait("x"), b"")]})
    wait_until(lambda: not errors and not pipeline.consumer.unfinished, "the command is handled")
    assert pipeline.drain(SOON)
    pipeline.close(SOON)


def test_command_that_waits_for_its_next_attempt_keeps_no_queue_from_the_next_worker() -> None:
    conf, transport = make_conf({"COMMANDS": {"MAILBOXES": 1}}), MemoryTransport()

    @command_handler(Later)
    def later(command: Later, context: CommandContext) -> None:
        raise enode_django.Retry(after=1e6)

    pipeline = started(conf, transport, queues=2)
    for at in range(2):
        commands = [encode_command(Later(f"x{at}"), b"") for _ in range(2)]
        transport.send(conf.COMMANDS.TOPIC, {at: commands})
    wait_until(lambda: pipeline.consumer.unfinished == 4, "all commands wait")
    (queue,) = transport.join(conf.COMMANDS.CONSUMER_GROUP, conf.COMMANDS.TOPIC, "next", 60).queues
    wait_until(lambda: is_free(conf, transport, queue), "the worker has given up the queue")
    assert pipeline.drain(SOON)
    pipeline.close(SOON)


def is_free(conf: Conf, transport: MemoryTransport, queue: int) -> bool:
    try:
        lease = transport.acquire(conf.COMMANDS.CONSUMER_GROUP, conf.COMMANDS.TOPIC, queue, "next", 60)
    except QueueHeld:
        return False
    assert (lease.committed, lease.previous_owner) == (0, None)
    return True


def test_command_of_a_type_that_only_the_next_worker_knows_keeps_no_queue_from_it() -> None:
    conf = make_conf({"COMMANDS": {"MAILBOXES": 1}, "WORKERS": {"UNKNOWN_TYPE_DELAYS": (1000.0,)}})
    transport = MemoryTransport()
    pipeline = started(conf, transport, queues=2)
    for at in range(2):
        transport.send(conf.COMMANDS.TOPIC, {at: [pack((1, "drain.NotYet", f"u{at}", f"x{at}", {}, b"", ""))]})
    wait_until(lambda: pipeline.consumer.unfinished == 2, "both commands wait")
    (queue,) = transport.join(conf.COMMANDS.CONSUMER_GROUP, conf.COMMANDS.TOPIC, "next", 60).queues
    wait_until(lambda: is_free(conf, transport, queue), "the worker has given up the queue")
    assert pipeline.drain(SOON)
    pipeline.close(SOON)
