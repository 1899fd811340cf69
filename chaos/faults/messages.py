"""Messages that are repeated, late, reordered or invalid."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from chaos.faults.base import Fault, Skipped
from chaos.names import COMMANDS, EVENTS, QUEUES, Setup
from enode_django.exceptions import QueueError

MOST = 200
"""The most messages of one fault."""
Messages = Mapping[int, Sequence[bytes]]
"""Messages by queue."""


class _MessageFault(Fault):
    """A fault that sends messages to the queues of a topic without a producer. The target is "topic NAME"."""

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return [f"topic {name}" for name in (COMMANDS, EVENTS)]

    @property
    def _topic(self) -> str:
        return self.planned.target.removeprefix("topic ")

    @property
    def _random(self) -> random.Random:
        return random.Random(self.planned.seed)

    def _stored(self) -> dict[int, list[bytes]]:
        """Return a run of stored messages of each queue that has any. Raises `Skipped`."""
        chance, found = self._random, {}
        transport = self.world.services.transport
        try:
            ends = transport.end_offsets(self._topic)
            for queue, end in ends.items():
                count = chance.randint(1, MOST // len(ends))
                start = {queue: chance.randint(0, max(0, end - count))}
                for batch in transport.pull(self._topic, start, limit=count, wait=0):
                    found[batch.queue] = list(batch.bodies)
        except QueueError as error:
            raise Skipped(f"the queue is away: {error}") from error
        if not found:
            raise Skipped(f"nothing is in {self._topic} yet")
        return found

    def _send(self, messages: Messages) -> str:
        """Send the messages and return a text with their number. Raises `Skipped`; some may be stored then."""
        try:
            self.world.services.transport.send(self._topic, messages)
        except QueueError as error:
            raise Skipped(f"the queue is away: {error}") from error
        return f"{sum(map(len, messages.values()))} messages"


class DuplicateMessages(_MessageFault):
    name = "duplicate-messages"

    def begin(self) -> str:
        return f"sent {self._send(self._stored())} again"


class ReorderMessages(_MessageFault):
    name = "reorder-messages"

    def begin(self) -> str:
        stored = self._stored()
        for bodies in stored.values():
            self._random.shuffle(bodies)
        return f"sent {self._send(stored)} again in another order"


class DelayMessages(_MessageFault):
    """Copies of messages arrive long after later messages."""

    name = "delay-messages"
    shortest, longest = 3.0, 15.0
    _kept: Messages = {}

    def begin(self) -> str:
        self._kept = self._stored()
        return f"kept copies of {sum(map(len, self._kept.values()))} messages"

    def end(self) -> None:
        try:
            self._send(self._kept)
        except Skipped:
            return  # the copies are never sent


class Garbage(_MessageFault):
    """Random bytes, empty messages, and messages that are cut off."""

    name = "garbage"

    def begin(self) -> str:
        chance = self._random
        real = [body for bodies in self._stored().values() for body in bodies]
        garbage: dict[int, list[bytes]] = {}
        for _ in range(chance.randint(1, 20)):
            garbage.setdefault(chance.randrange(QUEUES), []).append(broken(chance, chance.choice(real)))
        return f"sent {self._send(garbage)} that are none"


def broken(chance: random.Random, body: bytes) -> bytes:
    """Return bytes that are not a message: random ones, or ``body`` without its end."""
    if chance.random() < 0.5:
        return chance.randbytes(chance.randint(0, 300))
    return body[: chance.randrange(len(body))] if body else b""


KINDS: Sequence[type[Fault]] = (DuplicateMessages, ReorderMessages, DelayMessages, Garbage)
