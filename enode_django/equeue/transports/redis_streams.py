"""Queues on Redis Streams: one server, Redis 6.2 or later.

Keys, all under ``prefix`` (``enode``); what a script touches together shares a hash tag:

* ``enode:{topic}:queues`` how many queues; ``enode:{topic}:groups`` the groups that ever acquired one of them
* ``enode:{topic:3}:log`` the stream, offset n being the entry ``n+1-0``; ``enode:{topic:3}:next`` the next offset
* ``enode:{topic:3}:claim:<group>`` hash: epoch, offset (committed), and while leased owner, until (ms since 1970); run,
  the start of the server under which it was acquired: a later one may have lost writes, so leases are lost with it
* ``enode:{topic:3}:receipts:<group>`` list: what the group keeps of messages it is done with, the oldest first
* ``enode:inbox:{address}`` the answers to one process, gone ten minutes after the last one

What was acknowledged survives a crash of the server as its persistence is configured: with ``appendonly no`` it does
not, with ``appendfsync everysec`` the last second may be lost, with ``always`` nothing is.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from enode_django.equeue.messages import Commit, Lease, PulledBatch
from enode_django.equeue.transports.base import check_limit, check_new_topic, check_queues
from enode_django.equeue.transports.redis_connection import LONGEST_BLOCK, RedisConnection, ScriptCall
from enode_django.equeue.transports.redis_scripts import ACQUIRE, COMMIT, RELEASE, RENEW, REPLY, SEND
from enode_django.exceptions import ConfigurationError, QueueHeld, UnknownTopic

# One script call holds up every other client of the server.
MESSAGES_PER_CALL = 500
BYTES_PER_CALL = 1_000_000
RECEIPTS_PER_CALL = 1_000

INBOX_ANSWERS = 100_000
INBOX_SECONDS = 600
INBOX_BATCH = 1_000
_ADDRESS = re.compile(r"[0-9a-f]{32}")


class _Keys:
    def __init__(self, prefix: str) -> None:
        if not prefix or any(sign in prefix for sign in "{} "):
            raise ConfigurationError(f"prefix must be a plain word without braces or spaces, got {prefix!r}")
        self._prefix = prefix

    def queues(self, topic: str) -> str:
        return f"{self._prefix}:{{{topic}}}:queues"

    def groups(self, topic: str) -> str:
        return f"{self._prefix}:{{{topic}}}:groups"

    def log(self, topic: str, queue: int) -> str:
        return f"{self._prefix}:{{{topic}:{queue}}}:log"

    def next(self, topic: str, queue: int) -> str:
        return f"{self._prefix}:{{{topic}:{queue}}}:next"

    def claim(self, topic: str, queue: int, group: str) -> str:
        return f"{self._prefix}:{{{topic}:{queue}}}:claim:{group}"

    def receipts(self, topic: str, queue: int, group: str) -> str:
        return f"{self._prefix}:{{{topic}:{queue}}}:receipts:{group}"

    def inbox(self, address: str) -> str:
        return f"{self._prefix}:inbox:{{{address}}}"


class RedisInbox:
    """One thread receives; what it received is deleted by its next call."""

    def __init__(self, address: str, key: str, connection: RedisConnection) -> None:
        self.address = address
        self._key = key
        self._connection = connection
        self._last = "0-0"
        self._delete_received = False

    def receive(self, wait: float) -> Sequence[bytes]:
        before = ("XTRIM", self._key, "MINID", _following(self._last)) if self._delete_received else None
        for block in _blocks(wait):
            command = ("XREAD", "COUNT", INBOX_BATCH, *block, "STREAMS", self._key, self._last)
            response = self._connection.read_blocking(before, command)
            before, self._delete_received = None, False
            if response:
                entries = response[0][1]
                self._last = entries[-1][0].decode()
                self._delete_received = True
                return [entry[1][1] for entry in entries]
        return []

    def close(self) -> None:
        self._connection.execute("DEL", self._key)


class RedisStreamsTransport:
    """Implements `Transport` on one Redis server.

    ``location`` is ``redis://``, ``rediss://`` or ``unix://``. Options: ``prefix`` of all keys; ``timeout`` in
    seconds for connecting and for an answer; ``max_length``, above which `trim` cuts the queues of a topic that no
    group ever acquired (None: never); ``client``, further keyword arguments for redis-py's connections (certificates).
    """

    def __init__(
        self,
        location: str,
        *,
        prefix: str = "enode",
        timeout: float = 10.0,
        max_length: int | None = None,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self._keys = _Keys(prefix)
        self._max_length = max_length
        self._connection = RedisConnection(location, timeout=timeout, client=client or {})
        self._counts: dict[str, int] = {}

    def create_topic(self, topic: str, queues: int) -> int:
        check_new_topic(topic, queues)
        key = self._keys.queues(topic)
        count = int(self._connection.execute_all([("SETNX", key, queues), ("GET", key)])[1])
        self._counts[topic] = count
        return count

    def queue_count(self, topic: str) -> int:
        answer = self._connection.execute("GET", self._keys.queues(topic))
        if answer is None:
            self._counts.pop(topic, None)
            raise UnknownTopic(f"topic {topic!r} does not exist; create it with create_topic")
        self._counts[topic] = int(answer)
        return int(answer)

    def send(self, topic: str, bodies: Mapping[int, Sequence[bytes]]) -> Mapping[int, int]:
        self._check(topic, bodies)
        queues: list[int] = []
        calls: list[ScriptCall] = []
        for queue, added in bodies.items():
            keys = (self._keys.log(topic, queue), self._keys.next(topic, queue))
            for chunk in chunks(added):
                queues.append(queue)
                calls.append(ScriptCall(SEND, keys, chunk))
        if not calls:
            return {}
        # A queue's chunks must not be parted by another sender.
        parted = len(calls) > len(set(queues))
        first: dict[int, int] = {}
        for queue, offset in zip(queues, self._connection.run_all(calls, atomically=parted), strict=True):
            first.setdefault(queue, offset)
        return first

    def pull(self, topic: str, offsets: Mapping[int, int], *, limit: int, wait: float) -> Sequence[PulledBatch]:
        check_limit(limit)
        self._check(topic, offsets)
        if not offsets:
            return []
        logs = {self._keys.log(topic, queue).encode(): queue for queue in offsets}
        after = [f"{max(offset, 0)}-0" for offset in offsets.values()]
        keys = [key.decode() for key in logs]
        for block in _blocks(wait):
            command = ("XREAD", "COUNT", limit, *block, "STREAMS", *keys, *after)
            response = self._connection.read_blocking(None, command)
            if response:
                return [parse_entries(logs[key], entries) for key, entries in response]
        return []

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        queues = range(self.queue_count(topic))
        answers = self._connection.execute_all([("GET", self._keys.next(topic, queue)) for queue in queues])
        return {queue: int(answer or 0) for queue, answer in zip(queues, answers, strict=True)}

    def acquire(
        self, group: str, topic: str, queue: int, owner: str, lease: float, *, replaces: Collection[str] = ()
    ) -> Lease:
        self._check(topic, (queue,))
        # First of all, so that no trim can overlook a group that has begun to read.
        self._connection.execute("SADD", self._keys.groups(topic), group)
        keys = (self._keys.claim(topic, queue, group), self._keys.next(topic, queue))
        answer = self._connection.run(ScriptCall(ACQUIRE, keys, (owner, _milliseconds(lease), *replaces)))
        if answer[0] == 0:
            holder = answer[1].decode()
            raise QueueHeld(
                f"queue {queue} of topic {topic!r} is held by {holder!r}; try again when its lease has ended",
                owner=holder,
                seconds=answer[2] / 1000,
            )
        _, epoch, committed, end, previous = answer
        return Lease(epoch, committed, end, previous.decode() or None)

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        calls = self._claims(RENEW, topic, group, {q: (owner, e, _milliseconds(lease)) for q, e in epochs.items()})
        return {queue for queue, renewed in zip(epochs, calls, strict=True) if not renewed}

    def release(self, group: str, topic: str, owner: str, epochs: Mapping[int, int]) -> None:
        self._claims(RELEASE, topic, group, {queue: (owner, epoch) for queue, epoch in epochs.items()})

    def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> AbstractSet[int]:
        self._check(topic, commits)
        queues: list[int] = []
        calls: list[ScriptCall] = []
        for queue, commit in commits.items():
            keys = (self._keys.claim(topic, queue, group), self._keys.receipts(topic, queue, group))
            for step in steps(commit):
                queues.append(queue)
                calls.append(ScriptCall(COMMIT, keys, _commit_arguments(step)))
        answers = self._connection.run_all(calls) if calls else []
        return {queue for queue, taken in zip(queues, answers, strict=True) if not taken}

    def receipts(self, group: str, topic: str, queue: int) -> Sequence[bytes]:
        self._check(topic, (queue,))
        kept: list[bytes] = self._connection.execute("LRANGE", self._keys.receipts(topic, queue, group), 0, -1)
        return kept

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        queues = range(self.queue_count(topic))
        return dict(zip(queues, self._committed(topic, queues, group), strict=True))

    def trim(self, topic: str) -> None:
        queues = range(self.queue_count(topic))
        groups = [group.decode() for group in self._connection.execute("SMEMBERS", self._keys.groups(topic))]
        if groups:
            committed = [self._committed(topic, queues, group) for group in groups]
            lowest = {queue: min(offsets[queue] for offsets in committed) for queue in queues}
            self._cut(topic, {queue: ("MINID", f"{offset + 1}-0") for queue, offset in lowest.items()})
        elif self._max_length is not None:
            self._cut(topic, {queue: ("MAXLEN", str(self._max_length)) for queue in queues})

    def retire_group(self, group: str, topic: str) -> None:
        self.queue_count(topic)
        self._connection.execute("SREM", self._keys.groups(topic), group)

    def open_inbox(self) -> RedisInbox:
        address = uuid.uuid4().hex
        return RedisInbox(address, self._keys.inbox(address), self._connection)

    def reply(self, replies: Sequence[tuple[str, bytes]]) -> None:
        bodies: dict[str, list[bytes]] = {}
        for address, body in replies:
            bodies.setdefault(address, []).append(body)
        calls = [
            ScriptCall(REPLY, (self._keys.inbox(address),), (INBOX_ANSWERS, INBOX_SECONDS, *chunk))
            for address, answers in bodies.items()
            # An address comes out of a message: what is none of ours must not name a key.
            if _ADDRESS.fullmatch(address)
            for chunk in chunks(answers)
        ]
        if calls:
            self._connection.run_all(calls)

    def close(self) -> None:
        self._connection.close()

    def _check(self, topic: str, queues: Collection[int]) -> None:
        # Queues are only ever added: a count seen before is enough, unless it is too small.
        count = self._counts.get(topic, 0)
        if not queues or min(queues) < 0 or max(queues) >= count:
            check_queues(topic, queues, self.queue_count(topic))

    def _claims(self, script: Any, topic: str, group: str, arguments: Mapping[int, Sequence[Any]]) -> list[Any]:
        self._check(topic, arguments)
        calls = [ScriptCall(script, (self._keys.claim(topic, q, group),), given) for q, given in arguments.items()]
        return self._connection.run_all(calls) if calls else []

    def _committed(self, topic: str, queues: Iterable[int], group: str) -> list[int]:
        commands = [("HGET", self._keys.claim(topic, queue, group), "offset") for queue in queues]
        return [int(answer or 0) for answer in self._connection.execute_all(commands)]

    def _cut(self, topic: str, limits: Mapping[int, tuple[str, str]]) -> None:
        """Cut whole nodes of the streams, in steps that the server does not feel."""
        commands = {q: ("XTRIM", self._keys.log(topic, q), kind, "~", at) for q, (kind, at) in limits.items()}
        while commands:
            deleted = self._connection.execute_all(list(commands.values()))
            commands = {q: command for (q, command), n in zip(commands.items(), deleted, strict=True) if n}


def parse_entries(queue: int, entries: Sequence[tuple[bytes, Sequence[bytes]]]) -> PulledBatch:
    """What XREAD tells of one stream, entries like ``(b"43-0", [b"b", body])``, as the messages of a queue."""
    bodies = [entry[1][1] for entry in entries]
    first = int(entries[0][0][:-2]) - 1
    last = int(entries[-1][0][:-2]) - 1
    if last - first + 1 == len(bodies):
        return PulledBatch(queue, range(first, last + 1), bodies)
    return PulledBatch(queue, [int(entry[0][:-2]) - 1 for entry in entries], bodies)


def chunks(bodies: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Bodies in order, in pieces of at most `MESSAGES_PER_CALL` and (unless one alone is larger) `BYTES_PER_CALL`."""
    if len(bodies) <= MESSAGES_PER_CALL and sum(map(len, bodies)) <= BYTES_PER_CALL:
        if bodies:
            yield bodies
        return
    start = size = 0
    for index, body in enumerate(bodies):
        if index > start and (index - start == MESSAGES_PER_CALL or size + len(body) > BYTES_PER_CALL):
            yield bodies[start:index]
            start, size = index, 0
        size += len(body)
    yield bodies[start:]


def steps(commit: Commit) -> Iterator[Commit]:
    """A commit in pieces of at most `RECEIPTS_PER_CALL` receipts, each moving the offset just past its own."""
    receipts = commit.receipts[-commit.keep :]
    while len(receipts) > RECEIPTS_PER_CALL:
        yield commit._replace(offset=receipts[RECEIPTS_PER_CALL - 1].offset + 1, receipts=receipts[:RECEIPTS_PER_CALL])
        receipts = receipts[RECEIPTS_PER_CALL:]
    yield commit._replace(receipts=receipts)


def _commit_arguments(commit: Commit) -> list[int | bytes]:
    arguments: list[int | bytes] = [commit.epoch, commit.offset, commit.keep]
    for receipt in commit.receipts:
        arguments += receipt
    return arguments


def _blocks(wait: float) -> Iterator[tuple[()] | tuple[str, int]]:
    """The arguments that make one XREAD after another block until ``wait`` seconds are over."""
    if wait <= 0:
        yield ()
        return
    deadline = time.monotonic() + wait
    left = wait
    while left > 0:
        yield "BLOCK", max(1, round(min(left, LONGEST_BLOCK) * 1000))
        left = deadline - time.monotonic()


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _following(entry_id: str) -> str:
    milliseconds, _, counter = entry_id.partition("-")
    return f"{milliseconds}-{int(counter) + 1}"
