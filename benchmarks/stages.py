"""The processor time of a command worker by stage: its objects without their threads, one stage after the other.

``python -m benchmarks.stages ACCOUNTS COUNT`` prints a line of JSON for each line of its input: the microseconds that a
deposit takes in each stage, and the memory blocks that it adds there; for the line ``instructions`` the number that the
interpreter executes, which does not depend on the machine. Queues and store are those of the environment.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

TraceFunction = Callable[[FrameType, str, Any], Any]

BATCH = 1_000
"""Commands of one stage at a time; a COPY stores as many."""
OWNER = "stages"
WITHIN = "of it: "
"""Begins the name of a part of the stage before, which is repeated alone after the batch."""


class Stages:
    """Adds up, by stage, the processor time of this thread, and the memory blocks that are in use afterwards; or, with
    ``counting``, the instructions that the interpreter executes."""

    def __init__(self, counting: bool = False) -> None:
        self.seconds: dict[str, float] = {}
        self.blocks: dict[str, int] = {}
        self.instructions = Counter[str]()
        self._counting = counting

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        if self._counting:
            sys.settrace(_counter(self.instructions, stage))
        blocks, began = sys.getallocatedblocks(), time.thread_time()
        yield
        sys.settrace(None)
        seconds, more = time.thread_time() - began, sys.getallocatedblocks() - blocks
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        self.blocks[stage] = self.blocks.get(stage, 0) + more


def _counter(counts: Counter[str], stage: str) -> TraceFunction:
    """Return a function for `sys.settrace` that counts the instructions of all frames that begin from now on."""

    def count(frame: FrameType, event: str, argument: object) -> TraceFunction:
        if event == "opcode":
            counts[stage] += 1
        return count

    def watch(frame: FrameType, event: str, argument: object) -> TraceFunction:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    return watch


class Line:
    """The objects of a command worker, without threads."""

    def __init__(self) -> None:
        from enode_django.commanding.committer import Committer
        from enode_django.commanding.intake import Intake
        from enode_django.commanding.mailbox_router import MailboxRouter
        from enode_django.commanding.publisher import EventPublisher
        from enode_django.commanding.remembered_answers import RememberedAnswers
        from enode_django.concurrency.backoff import CountedWaits, once
        from enode_django.conf import conf as current_conf
        from enode_django.equeue.clocks import boot_time
        from enode_django.processors.measuring import BatchMeter
        from enode_django.processors.statistics import Statistics
        from enode_django.processors.wiring import make_consumer, make_processors
        from enode_django.runtime import make_producer, make_store, make_transport

        conf, store, transport = current_conf(), make_store(), make_transport()
        self._consumer = make_consumer(conf, transport, OWNER)
        self._producer, self._topic = make_producer(transport), conf.COMMANDS.TOPIC
        router, persist = MailboxRouter(1, 1, 1, store.place_of), CountedWaits()
        remembered = RememberedAnswers(conf.COMMANDS.REMEMBERED_ANSWERS, self._consumer.receipts, self._consumer)
        self._publisher = EventPublisher(
            transport,
            make_producer(transport),
            remembered,
            event_topic=conf.SUBSCRIBERS.TOPIC,
            command_topic=self._topic,
            persist=once,
            commit=self._consumer.commit_some,
        )
        (self._processor,) = make_processors(
            conf, store, router, None, persist=persist, max_record=self._publisher.max_record, markers=[[0]]
        )
        self._intake = Intake(router, remembered, delays=())
        self._committer = Committer(store, persist=persist, clock=boot_time)
        self._meter = BatchMeter(Statistics())
        transport.create_topic(self._topic, conf.QUEUE.QUEUES_PER_TOPIC)
        self._consumer.join()
        self._consumer.acquire_missing()

    def send(self, messages: Sequence[tuple[str, bytes]]) -> None:
        for start in range(0, len(messages), BATCH):
            self._producer.send_batch(self._topic, messages[start : start + BATCH])

    def run(self, count: int, counting: bool = False) -> Stages:
        """Take ``count`` commands from the queue to the events topic."""
        stages, left = Stages(counting), count
        while left > 0:
            envelopes: list[Any] = []
            while len(envelopes) < min(left, BATCH):
                with stages.of("pull"):
                    pulled = self._consumer.pull(BATCH, 10.0)
                with stages.of("decode and route"):
                    for window, offsets, bodies in pulled:
                        envelopes += self._intake.receive(window, offsets, bodies).commands
            self._take(stages, envelopes)
            left -= len(envelopes)
        return stages

    def _take(self, stages: Stages, envelopes: Sequence[Any]) -> None:
        with stages.of("handle, apply, encode"):
            decisions = self._processor.handle(envelopes)
        with stages.of("commit"):
            committed = self._committer.commit(decisions)
        with stages.of("measure"):
            self._meter.stored(committed.finished, 0, None)
        with stages.of("publish and answer"):
            self._publisher.publish(committed.finished)
        with stages.of("release"):
            self._processor.finish(committed.released)
        with stages.of("offsets"):
            self._consumer.commit()
        _repeat_parts(stages, [envelope.body for envelope in envelopes], [one.record for one in decisions])


def _repeat_parts(stages: Stages, bodies: Sequence[bytes], records: Sequence[Any]) -> None:
    """Repeat parts of the stages alone."""
    from enode_django.bus.messages import encode_published
    from enode_django.eventstore.copy_format import encode
    from enode_django.serialization.codec import decode_command, restore_command

    parts: dict[str, Callable[[], object]] = {
        "decode": lambda: [restore_command(decode_command(body)) for body in bodies],
        "rows": lambda: encode(records),
        "messages": lambda: [encode_published(record) for record in records],
    }
    for name, repeat in parts.items():
        with stages.of(WITHIN + name):
            repeat()


def main(accounts: int, count: int) -> None:
    import django

    django.setup()
    from benchmarks import loads
    from enode_django.concurrency.garbage import collect_seldom

    line, ids = Line(), loads.account_ids(accounts)
    collect_seldom()  # as workers do
    line.send(loads.opens(ids))
    line.run(accounts)
    for question in sys.stdin:
        counting = question.strip() == "instructions"
        line.send(loads.deposits(ids, count))
        stages = line.run(count, counting)
        if counting:
            each = {stage: found / count for stage, found in stages.instructions.items()}
            print(json.dumps({"instructions": each}), flush=True)
            continue
        micro = {stage: 1e6 * seconds / count for stage, seconds in stages.seconds.items()}
        blocks = {stage: more / count for stage, more in stages.blocks.items()}
        print(json.dumps({"microseconds": micro, "blocks": blocks}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
