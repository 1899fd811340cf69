"""Queues that are added while messages wait, and malformed batches with a valid checksum."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import msgpack

from chaos.errors import ChaosError
from chaos.faults.base import Fault, Skipped
from chaos.names import COMMANDS, EVENTS, Setup
from enode_django.equeue.records import seal
from enode_django.equeue.transports.broker_address import address_of
from enode_django.equeue.transports.broker_connection import ConnectionLost, Pool
from enode_django.exceptions import MalformedRecords, QueueError

MOST_QUEUES = 12


class AddQueues(Fault):
    """Queues are added as by ``manage.py enode queue add-queues --unordered``: keys move to other queues while their
    messages wait."""

    name = "add-queues"
    weight = 0.3  # where commands move, the rules of answers without a row cannot be judged

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
    """A batch with a valid checksum and count, but invalid records. The broker refuses it."""

    name = "malformed-batch"
    weight = 0.3

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return [f"topic {topic}" for topic in (COMMANDS, EVENTS)] if setup.transport == "broker" else []

    def begin(self) -> str:
        return refusal_of_malformed(self.world.services.broker.url, self.planned.target.removeprefix("topic "))


def refusal_of_malformed(url: str, topic: str) -> str:
    """Send such a batch of three, and return a text about its refusal. Raises `Skipped` if the broker is unavailable,
    and `ChaosError` if it has stored the batch."""
    body = seal(msgpack.packb([1, None, "no bytes"]))
    try:
        with contextlib.closing(Pool(address_of(url, None, None), 3.0)) as pool:
            pool.call("send", (topic, [(0, 3, body)], None, os.urandom(16), 1))
    except MalformedRecords:
        return "sent a batch of three, which was refused"
    except (ConnectionLost, QueueError) as error:
        raise Skipped(f"the broker is away: {error}") from error
    raise ChaosError(f"the broker stored a batch in {topic!r} that nobody can decode; it has to refuse it")


KINDS: Sequence[type[Fault]] = (AddQueues, MalformedBatch)
