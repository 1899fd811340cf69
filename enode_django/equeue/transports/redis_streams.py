"""Queues on Redis Streams: one server, a master that Sentinels watch, or a cluster; Redis 6.2 or later.

Keys, all under ``prefix`` (``enode``); what a script touches together shares a hash tag:

* ``enode:topics`` set: the names of all topics
* ``enode:{topic}:topic`` hash: queues (how many), unproduced and unconsumed (which are hidden), and what
  `redis_topic_scripts` says of version, round, until (of a deleted topic version and round are left)
* ``enode:{topic}:groups`` hash: the groups that ever joined or acquired a queue, and whether trimming waits for them;
  ``enode:{topic}:group:<group>`` hash: sessions, division
* ``enode:{topic}:producers`` sorted set: who sends to the topic, by when it said so last, in ms since 1970
* ``enode:{topic:3}:log`` the stream, offset n being the entry ``n+1-0``; ``enode:{topic:3}:queue`` hash: end (the next
  offset), largest (the bytes of the largest message there may be), largest_since (of those at and after mark), route
  and round (copies of the topic's), epoch (the last one given out) and run (under which)
* ``enode:{topic:3}:times`` stream: entry ids are ms since 1970, each with the offset of the first message of that time
* ``enode:{topic:3}:sent:<producer>`` hash: where the newest sends of a producer lie
* ``enode:{topic:3}:claim:<group>`` hash: epoch, offset (committed), deaths, and while leased owner, until (ms since
  1970), and previous (the owner before, until the owner has shown that it was told); run, the start of the server under
  which it was acquired: a later one, or a replica that took over, may have lost writes, so leases are lost with it
* ``enode:{topic:3}:receipts:<group>`` list: what the group keeps of messages it is done with, the oldest first
* ``enode:inbox:{address}`` the answers to one process, gone ten minutes after the last one

What was acknowledged survives a crash of the server as its persistence is configured: with ``appendonly no`` it does
not, with ``appendfsync everysec`` the last second may be lost, with ``always`` nothing is. Replication is asynchronous:
a failover may lose what was acknowledged just before. ``wait_replicas`` makes that rare, not impossible.
"""

from __future__ import annotations

import copy
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter
from typing import Any

from enode_django.equeue.assignment import Allocate, divide
from enode_django.equeue.messages import (
    Commit,
    GroupState,
    Lease,
    Membership,
    Once,
    PulledBatch,
    QueueState,
    Route,
    Start,
)
from enode_django.equeue.transports.base import LONG_POLL, check_limit, check_size
from enode_django.equeue.transports.redis_batches import (
    RECEIPTS_PER_CALL,
    commit_arguments,
    milliseconds,
    parse_deaths,
    parse_entries,
    steps,
)
from enode_django.equeue.transports.redis_claim_scripts import ACQUIRE, COMMIT, RELEASE, RENEW, SET_OFFSET, TIMELINE
from enode_django.equeue.transports.redis_connection import (
    LONGEST_BLOCK,
    Command,
    Confirmation,
    RedisConnection,
    ScriptCall,
)
from enode_django.equeue.transports.redis_deletion import DeletableTopics
from enode_django.equeue.transports.redis_groups import RedisGroups
from enode_django.equeue.transports.redis_inbox import RedisInbox, blocks, replies_as_calls
from enode_django.equeue.transports.redis_keys import Keys
from enode_django.equeue.transports.redis_partly import ByQueue, raise_failure
from enode_django.equeue.transports.redis_pulling import PullCounts
from enode_django.equeue.transports.redis_retention import RedisRetention
from enode_django.equeue.transports.redis_scripts import CLOCK_STEP, MEND, SEND_WITH_RESERVE, TRIM_TIMES
from enode_django.equeue.transports.redis_sending import RedisSender, foreign_entries
from enode_django.equeue.transports.redis_waiting import read_first, read_waking
from enode_django.equeue.transports.redis_wakes import Wakes
from enode_django.exceptions import (
    ConfigurationError,
    EnodeError,
    QueueHeld,
)

TIMES_PER_CALL = 500
MENDED_PER_CALL = 1_000
LAST_PLACE = (1 << 64) - 1
"""Behind it in an entry's id comes the next message: what others have put between two messages is not read."""
LOOK_AGAIN = 1.0
"""Seconds after which a pull that waits without some of its queues looks whether they can be used again."""
TRIM_SECONDS = 1.0
"""For one cut, except for the step that it takes in any case."""


class RedisStreamsTransport:
    """Implements `Transport` on Redis.

    ``location`` is ``redis://``, ``rediss://`` or ``unix://`` for one server, ``redis+sentinel://`` or
    ``redis+cluster://`` (see `redis_location`). Options: ``prefix`` of all keys; ``timeout`` in seconds for connecting
    and for an answer; ``max_age``, for how many seconds `trim` keeps what all groups have committed (None: not at all),
    unless memory is nearly full; ``max_length`` (messages) and ``max_age``, above which it cuts the queues of a topic
    that no group ever acquired, and with ``delete_unconsumed`` all queues (None: never); ``wait_replicas``, how many
    replicas must have what was sent or committed before the call returns, and ``wait_timeout``, how many seconds they
    have for it; ``client``, further keyword arguments for redis-py's connections (certificates); ``allocate``, which
    divides the queues among the members of a group (None: evenly), the same for all of them: whoever finds that members
    have changed divides.
    """

    max_send = 64 * 1024 * 1024

    def __init__(
        self,
        location: str,
        *,
        prefix: str = "enode",
        timeout: float = 5.0,
        max_age: float | None = None,
        max_length: int | None = None,
        delete_unconsumed: bool = False,
        wait_replicas: int = 0,
        wait_timeout: float = 1.0,
        client: Mapping[str, Any] | None = None,
        allocate: Allocate | None = None,
    ) -> None:
        if wait_replicas < 0 or wait_timeout <= 0:
            raise ConfigurationError(
                f"wait_replicas must not be negative and wait_timeout be above 0 seconds, got {wait_replicas!r} and "
                f"{wait_timeout!r}"
            )
        confirmation = Confirmation(wait_replicas, milliseconds(wait_timeout)) if wait_replicas else None
        self._keys = Keys(prefix)
        self._max_age = max_age
        self._max_length = max_length
        self._delete_unconsumed = delete_unconsumed
        self._connection = RedisConnection(location, timeout=timeout, client=client or {}, confirmation=confirmation)
        self._counts = PullCounts(self._keys, self._connection)
        self._topics = DeletableTopics(self._keys, self._connection, timeout)
        self._groups = RedisGroups(self._keys, self._connection, self._topics, allocate or divide)
        self._sender = RedisSender(self._keys, self._connection, self._topics)
        self._retention = RedisRetention(self._keys, self._connection, self._topics)
        self._wakes = Wakes()

    # -- topics ---------------------------------------------------------------------------------------------------

    def topics(self) -> Sequence[str]:
        return self._topics.names()

    def create_topic(self, topic: str, queues: int) -> int:
        return self._topics.create(topic, queues)

    def queue_count(self, topic: str) -> int:
        return self._topics.count(topic)

    def queues(self, topic: str) -> Mapping[int, QueueState]:
        return self._topics.states(topic)

    def route(self, topic: str) -> Route:
        return self._topics.route(topic)

    def add_queues(self, topic: str, queues: int, *, unordered: bool = False) -> int:
        return self._topics.add_queues(topic, queues, unordered=unordered)

    def show(
        self,
        topic: str,
        queue: int,
        *,
        to_producers: bool | None = None,
        to_consumers: bool | None = None,
        unordered: bool = False,
    ) -> None:
        self._topics.check(topic, (queue,))
        if to_producers is not None:
            self._topics.show_to_producers(topic, queue, to_producers, unordered=unordered)
        if to_consumers is not None:
            self._topics.show_to_consumers(topic, queue, to_consumers)

    def delete_topic(self, topic: str, *, force: bool = False) -> None:
        self._topics.delete(topic, lambda: {} if force else self._groups.show(topic), force=force)

    def delete_queue(self, topic: str, queue: int, *, force: bool = False) -> None:
        self._topics.delete_queue(topic, queue, lambda: self._groups.show(topic), force=force)

    def announce(self, topic: str, producer: str) -> None:
        self._topics.announce(topic, producer)

    def producers(self, topic: str) -> Mapping[str, float]:
        return self._topics.producers(topic)

    # -- messages -------------------------------------------------------------------------------------------------

    def send(
        self, topic: str, bodies: Mapping[int, Sequence[bytes]], *, route: int | None = None, once: Once | None = None
    ) -> Mapping[int, int]:
        check_size(bodies, self.max_send)
        self._topics.check(topic, bodies)
        return self._sender.send(topic, bodies, route, once)

    def with_reserve(self) -> RedisStreamsTransport:
        """Its sends are stored above the server's ``maxmemory``, too, unless a queue gets so much at once that it takes
        several steps: a full Redis refuses transactions."""
        other = copy.copy(self)
        other._sender = RedisSender(self._keys, self._connection, self._topics, SEND_WITH_RESERVE)
        return other

    def pull(
        self, topic: str, offsets: Mapping[int, int], *, limit: int, wait: float = LONG_POLL
    ) -> Sequence[PulledBatch]:
        check_limit(limit)
        self._topics.check(topic, offsets)
        if not offsets:
            return []
        return self._pull(topic, offsets, self._counts.counts(topic, offsets, limit), wait)

    def _pull(
        self, topic: str, offsets: Mapping[int, int], counts: Mapping[int, int], wait: float
    ) -> Sequence[PulledBatch]:
        logs = {self._keys.log(topic, queue): queue for queue in offsets}
        after = [f"{max(offset, 0)}-{LAST_PLACE}" for offset in offsets.values()]
        read = self._read_each if self._connection.is_cluster and len(logs) > 1 else self._read_together
        found = self._read_apart(list(logs), after, list(counts.values()))
        found = found or read(list(logs), after, min(counts.values()), wait)
        batches = [parse_entries(logs[key.decode()], entries) for key, entries in found]
        pulled = [batch for batch in batches if batch.bodies]
        if batches and not pulled:
            raise foreign_entries(self._keys, topic, [batch.queue for batch in batches])
        if not pulled:
            self._topics.check_kept(topic, next(iter(offsets)))
        return pulled

    def wake(self, thread: int) -> None:
        self._wakes.wake(thread)

    def _read_apart(self, logs: Sequence[str], after: Sequence[str], counts: Sequence[int]) -> Sequence[Any]:
        """Without waiting, and only if the counts differ: then there is something."""
        if len(set(counts)) == 1:
            return ()
        places = zip(logs, after, counts, strict=True)
        reads = {log: ("XREAD", "COUNT", count, "STREAMS", log, start) for log, start, count in places}
        return _streams(self._connection.read_each(reads))

    def _read_together(self, logs: Sequence[str], after: Sequence[str], limit: int, wait: float) -> Sequence[Any]:
        def command(*block: str | int) -> Command:
            return ("XREAD", "COUNT", limit, *block, "STREAMS", *logs, *after)

        if wait <= 0:
            return self._connection.read_blocking(None, command(), key=logs[0]) or ()
        with self._wakes.waiting() as wakeup:
            for block in blocks(wait):
                found = read_waking(self._connection, command(*block), key=logs[0], wakeup=wakeup)
                if found or wakeup.is_woken:
                    return found or ()
        return ()

    def _read_each(self, logs: Sequence[str], after: Sequence[str], limit: int, wait: float) -> Sequence[Any]:
        """First without waiting, as that takes one trip to each server. Servers that cannot be used are left out, and
        looked for again soon."""
        places = list(zip(logs, after, strict=True))
        reads = {log: ("XREAD", "COUNT", limit, "STREAMS", log, start) for log, start in places}
        results = self._connection.read_each(reads)
        found = _streams(results)
        failures = [result for result in results if isinstance(result, EnodeError)]
        if len(failures) == len(results) or not all(failure.retriable for failure in failures):
            raise min(failures, key=attrgetter("retriable"))
        if found or wait <= 0:
            return found
        with self._wakes.waiting() as wakeup:
            for block in blocks(wait, LOOK_AGAIN if failures else LONGEST_BLOCK):
                waits = {log: ("XREAD", "COUNT", limit, *block, "STREAMS", log, start) for log, start in places}
                found = read_first(self._connection, waits, wakeup)
                if found or wakeup.is_woken:
                    return found
        return ()

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        queues = range(self.queue_count(topic))
        answers = self._connection.execute_all([("HGET", self._keys.queue(topic, queue), "end") for queue in queues])
        return {queue: int(answer or 0) for queue, answer in zip(queues, answers, strict=True)}

    def offsets_at(self, topic: str, time: float) -> Mapping[int, int]:
        offsets, failures = self._offsets_at(topic, time)
        raise_failure(failures, {})
        return offsets

    def _offsets_at(self, topic: str, time: float) -> tuple[dict[int, int], dict[int, EnodeError]]:
        bounds, failures = self._topics.bounds_each(topic, self.queue_count(topic))
        # Messages that came within a step of the one before have no time of their own.
        since = max(0, int(time * 1000) - CLOCK_STEP + 1)
        commands = [("XRANGE", self._keys.times(topic, queue), since, "+", "COUNT", 1) for queue in bounds]
        found = ByQueue.sorted_out(bounds, self._connection.execute_each(commands))
        offsets: dict[int, int] = {}
        for queue, (entries,) in found.answers.items():
            ((first, end),) = bounds[queue]
            offsets[queue] = max(first, _offset_of(entries[0])) if entries else end
        return offsets, failures | found.failures

    def timelines(self, topic: str) -> Mapping[int, str]:
        """A start of a server, or a replica that took over, begins a timeline."""
        calls = [ScriptCall(TIMELINE, (self._keys.queue(topic, q),)) for q in range(self.queue_count(topic))]
        return {queue: run.decode() for queue, run in enumerate(self._connection.run_all(calls))}

    # -- groups ---------------------------------------------------------------------------------------------------

    def join(self, group: str, topic: str, member: str, session: float) -> Membership:
        return self._groups.join(group, topic, member, session)

    def leave(self, group: str, topic: str, member: str) -> None:
        self._groups.leave(group, topic, member)

    def bury(self, group: str, topic: str, member: str, deaths: Collection[tuple[int, int]] = ()) -> None:
        self._groups.bury(group, topic, member, deaths)

    def acquire(
        self, group: str, topic: str, queue: int, owner: str, lease: float, *, start: Start | int = Start.FIRST
    ) -> Lease:
        self._topics.check(topic, (queue,))
        # First of all, so that no trim can overlook a group that has begun to read.
        self._groups.counts_from_now_on(group, topic, again=True)
        keys = (self._keys.claim(topic, queue, group), self._keys.queue(topic, queue), self._keys.log(topic, queue))
        begin = start.value if isinstance(start, Start) else start
        answer = self._connection.run(ScriptCall(ACQUIRE, keys, (owner, milliseconds(lease), begin)))
        if answer[0] < 0:
            self._topics.revive(topic, (queue,))
            return self.acquire(group, topic, queue, owner, lease, start=start)
        if answer[0] == 0:
            holder = answer[1].decode()
            raise QueueHeld(
                f"queue {queue} of topic {topic!r} is held by {holder!r}; try again when its lease has ended",
                owner=holder,
                seconds=answer[2] / 1000,
            )
        _, epoch, committed, end, previous, deaths = answer
        return Lease(epoch, committed, end, previous.decode() or None, parse_deaths(deaths))

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        calls = {queue: (owner, epoch, milliseconds(lease)) for queue, epoch in epochs.items()}
        return _refused(self._claims(RENEW, topic, group, calls))

    def release(self, group: str, topic: str, owner: str, epochs: Mapping[int, int]) -> None:
        released = self._claims(RELEASE, topic, group, {queue: (owner, epoch) for queue, epoch in epochs.items()})
        raise_failure(released.failures, released.answers)

    def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> AbstractSet[int]:
        self._topics.check(topic, commits)
        queues: list[int] = []
        calls: list[ScriptCall] = []
        for queue, commit in commits.items():
            keys = (self._keys.claim(topic, queue, group), self._keys.receipts(topic, queue, group))
            for step in steps(commit):
                queues.append(queue)
                calls.append(ScriptCall(COMMIT, keys, commit_arguments(step)))
        return _refused(ByQueue.sorted_out(queues, self._connection.run_each(calls, confirmed=True)))

    def receipts(self, group: str, topic: str, queue: int) -> Sequence[bytes]:
        self._topics.check(topic, (queue,))
        key, kept = self._keys.receipts(topic, queue, group), list[bytes]()
        while some := self._connection.execute("LRANGE", key, len(kept), len(kept) + RECEIPTS_PER_CALL - 1):
            kept += some
        return kept

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        (offsets,) = self._topics.committed(topic, self.queue_count(topic), [group])
        return dict(enumerate(offsets))

    def set_offset(self, group: str, topic: str, queue: int, offset: int) -> None:
        self._topics.check(topic, (queue,))
        self._groups.counts_from_now_on(group, topic, again=False)
        keys = (self._keys.claim(topic, queue, group), self._keys.queue(topic, queue), self._keys.log(topic, queue))
        if self._connection.run(ScriptCall(SET_OFFSET, keys, (offset,)), confirmed=True) < 0:
            self._topics.revive(topic, (queue,))
            self.set_offset(group, topic, queue, offset)

    def groups(self, topic: str) -> Mapping[str, GroupState]:
        return self._groups.show(topic)

    def delete_group(self, group: str, topic: str) -> None:
        self._groups.delete(group, topic)

    def retire_group(self, group: str, topic: str) -> None:
        self._groups.retire(group, topic)

    def pause_group(self, group: str, topic: str, *, paused: bool = True) -> None:
        self._groups.pause(group, topic, paused)

    def paused_groups(self, topic: str) -> Sequence[str]:
        return self._groups.paused(topic)

    def set_retention(self, topic: str, max_age: float | None) -> None:
        self._retention.set(topic, max_age)

    def retention(self, topic: str) -> float | None:
        return self._retention.of(topic)

    def trim(self, topic: str) -> None:
        queues = range(self.queue_count(topic))
        groups = self._topics.counting(topic)
        failures: dict[int, EnodeError] = {}
        aged: dict[int, int] | None = None
        own_age = self._retention.of(topic)
        max_age = self._max_age if own_age is None else own_age
        if max_age is not None:
            aged, failures = self._offsets_at(topic, time.time() - max_age)
        if groups:
            consumed, failed = self._topics.consumed(topic, len(queues), groups)
            failures |= failed
            if aged is not None:
                short = self._topics.short_of_memory(topic, list(aged))
                consumed = {queue: at for queue, at in consumed.items() if queue in aged}
                consumed = {queue: at if queue in short else min(at, aged[queue]) for queue, at in consumed.items()}
            failures |= self._cut_before(topic, consumed)
        if not groups or self._delete_unconsumed:
            failures |= self._cut_before(topic, aged or {})
            if self._max_length is not None:
                failures |= self._cut(topic, {queue: ("MAXLEN", str(self._max_length)) for queue in queues})
        raise_failure(failures, {})

    def _cut_before(self, topic: str, offsets: Mapping[int, int]) -> dict[int, EnodeError]:
        return self._cut(topic, {queue: ("MINID", f"{offset + 1}-0") for queue, offset in offsets.items()})

    def mend(self, topic: str) -> Mapping[int, int]:
        """Delete what others have written above the ends of the queues; returns how much, for each queue."""
        calls = {
            queue: ScriptCall(MEND, (self._keys.log(topic, queue), self._keys.queue(topic, queue)), (MENDED_PER_CALL,))
            for queue in range(self.queue_count(topic))
        }
        deleted = dict.fromkeys(calls, 0)
        while calls:
            numbers = dict(zip(calls, self._connection.run_all(list(calls.values())), strict=True))
            deleted = {queue: number + numbers.get(queue, 0) for queue, number in deleted.items()}
            calls = {queue: calls[queue] for queue, number in numbers.items() if number == MENDED_PER_CALL}
        return deleted

    # -- answers --------------------------------------------------------------------------------------------------

    def open_inbox(self) -> RedisInbox:
        address = uuid.uuid4().hex
        return RedisInbox(address, self._keys.inbox(address), self._connection)

    def reply(self, replies: Sequence[tuple[str, bytes]]) -> None:
        calls = replies_as_calls(self._keys, replies)
        results = zip(calls, self._connection.run_each(calls), strict=True)
        errors = {call.keys[0]: result for call, result in results if isinstance(result, EnodeError)}
        keys = [self._keys.inbox(address) for address, _ in replies]
        failures = {place: errors[key] for place, key in enumerate(keys) if key in errors}
        raise_failure(failures, {place: True for place in range(len(replies)) if place not in failures})

    def close(self) -> None:
        self._connection.close()

    def _claims(self, script: Any, topic: str, group: str, arguments: Mapping[int, Sequence[Any]]) -> ByQueue:
        self._topics.check(topic, arguments)
        calls = [ScriptCall(script, (self._keys.claim(topic, q, group),), given) for q, given in arguments.items()]
        return ByQueue.sorted_out(arguments, self._connection.run_each(calls))

    def _cut(self, topic: str, limits: Mapping[int, tuple[str, str]]) -> dict[int, EnodeError]:
        """Cut whole nodes of the streams, in steps that the server does not feel; then the times of what is gone. What
        takes too long is left to the next call: whoever trims may have leases to renew. Returns what has failed."""
        logs = {q: ("XTRIM", self._keys.log(topic, q), kind, "~", at) for q, (kind, at) in limits.items()}
        failures: dict[int, EnodeError] = {}
        until = time.monotonic() + TRIM_SECONDS
        while logs:
            cut = ByQueue.sorted_out(logs, self._connection.execute_each(list(logs.values())))
            failures |= cut.failures
            logs = {queue: logs[queue] for queue, (deleted,) in cut.answers.items() if deleted}
            if time.monotonic() >= until:
                return failures
        calls = {q: ScriptCall(TRIM_TIMES, self._keys.of_queue(topic, q), (TIMES_PER_CALL,)) for q in limits}
        while calls := {queue: call for queue, call in calls.items() if queue not in failures}:
            cut = ByQueue.sorted_out(calls, self._connection.run_each(list(calls.values())))
            failures |= cut.failures
            calls = {queue: calls[queue] for queue, (deleted,) in cut.answers.items() if deleted}
            if time.monotonic() >= until:
                break
        return failures


def _offset_of(entry: Any) -> int:
    return int(entry[1][1])  # its one field's value


def _streams(responses: Iterable[Any]) -> list[Any]:
    """Return what several XREADs have found; errors among the responses are left out."""
    return [stream for one in responses if one and not isinstance(one, EnodeError) for stream in one]


def _refused(answers: ByQueue) -> set[int]:
    """Return the queues that have refused one of their calls."""
    taken = {queue: all(answered) for queue, answered in answers.answers.items()}
    raise_failure(answers.failures, taken)
    return {queue for queue, is_taken in taken.items() if not is_taken}
