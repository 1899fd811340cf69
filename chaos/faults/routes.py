"""Queues that are added while messages wait, and batches that only look whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import msgpack

from chaos.faults.base import Fault, Skipped
from chaos.names import COMMANDS, EVENTS, Setup
from enode_django.equeue.records import seal
from enode_django.equeue.transports.broker_address import address_of
from enode_django.equeue.transports.broker_connection import ConnectionLost, Pool
from enode_django.exceptions import QueueError

MOST_QUEUES = 12


class AddQueues(Fault):
    """As ``manage.py equeue add-queues --unordered``: keys move to other queues while their messages wait."""

    name = "add-queues"
    default = False

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return [f"route {topic}" for topic in (COMMANDS, EVENTS)]

    def begin(self) -> str:
        topic, transport = self.planned.target.removeprefix("route "), self.world.services.transport
        try:
            count = transport.queue_count(topic)
            if count >= MOST_QUEUES:
                raise Skipped(f"{topic} has {count} queues already")
            queues = transport.add_queues(topic, count + 1, unordered=True)
            self.world.keep_all(topic)
        except QueueError as error:
            raise Skipped(f"the queue is away: {error}") from error
        return f"let it have {queues} queues"


class MalformedBatch(Fault):
    """A batch whose check sum and count are right, and whose records are none."""

    name = "malformed-batch"
    default = False

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return [f"topic {topic}" for topic in (COMMANDS, EVENTS)] if setup.transport == "broker" else []

    def begin(self) -> str:
        topic = self.planned.target.removeprefix("topic ")
        body = seal(msgpack.packb([1, None, "no bytes"]))
        pool = Pool(address_of(self.world.services.broker.url, None, None), 3.0)
        try:
            with contextlib.closing(pool):
                pool.call("send", (topic, [(0, 3, body)], None, os.urandom(16), 1))
        except (ConnectionLost, QueueError) as error:
            raise Skipped(f"the broker does not take it: {error}") from error
        return "sent a batch of three"


KINDS: Sequence[type[Fault]] = (AddQueues, MalformedBatch)
