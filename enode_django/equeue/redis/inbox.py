"""Answers over Redis: a stream for each process that waits for answers."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Sequence

from enode_django.equeue.redis.batches import chunks
from enode_django.equeue.redis.connection import LONGEST_BLOCK, Command, RedisConnection, ScriptCall
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.redis.scripts import REPLY
from enode_django.exceptions import shown

logger = logging.getLogger("enode_django.equeue")

INBOX_ANSWERS = 100_000
INBOX_SECONDS = 600
INBOX_BATCH = 1_000
_ADDRESS = re.compile(r"[0-9a-f]{32}")


class RedisInbox:
    """An inbox with one receiving thread. Each call deletes what the call before has returned, and reads from the
    beginning: the ids of later answers may be lower, since they come from the clocks of the servers."""

    def __init__(self, address: str, key: str, connection: RedisConnection) -> None:
        self.address = address
        self._key = key
        self._connection = connection
        self._received: Sequence[bytes] = ()
        """The ids of the answers that the last call has returned."""

    def receive(self, wait: float) -> Sequence[bytes]:
        before: Command | None = ("XDEL", self._key, *self._received) if self._received else None
        for block in blocks(wait):
            command = ("XREAD", "COUNT", INBOX_BATCH, *block, "STREAMS", self._key, "0-0")
            response = self._connection.read_blocking(before, command, key=self._key)
            before, self._received = None, ()
            if response:
                entries = response[0][1]
                self._received = [entry[0] for entry in entries]
                return [entry[1][1] for entry in entries]
        return []

    def close(self) -> None:
        self._connection.execute("DEL", self._key)


def replies_as_calls(keys: Keys, replies: Sequence[tuple[str, bytes]]) -> list[ScriptCall]:
    bodies: dict[str, list[bytes]] = {}
    for address, body in replies:
        if _ADDRESS.fullmatch(address):
            bodies.setdefault(address, []).append(body)
        else:  # the address comes from a message, and must not name a key
            logger.warning("an answer of %d bytes for %s is dropped: it is not an inbox", len(body), shown(address))
    return [
        ScriptCall(REPLY, (keys.inbox(address),), (INBOX_ANSWERS, INBOX_SECONDS, *chunk))
        for address, answers in bodies.items()
        for chunk in chunks(answers)
    ]


def blocks(wait: float, longest: float = LONGEST_BLOCK) -> Iterator[tuple[()] | tuple[str, int]]:
    """Yield the BLOCK arguments of successive XREADs, of up to ``longest`` seconds, until ``wait`` seconds are over."""
    if wait <= 0:
        yield ()
        return
    deadline = time.monotonic() + wait
    left = wait
    while left > 0:
        yield "BLOCK", max(1, round(min(left, longest) * 1000))
        left = deadline - time.monotonic()
