"""Queues on Redis Streams: one server, a master behind Sentinels, or a cluster; Redis 6.2 or later.

Keys, all under ``prefix`` (``enode``); keys of one script share a hash tag:

* ``enode:topics`` set: the names of all topics
* ``enode:{topic}:topic`` hash: queues (their number), unproduced and unconsumed (the hidden ones), version, round and
  until (see `enode_django.equeue.redis.topic_scripts`; version and round stay when the topic is deleted)
* ``enode:{topic}:groups`` hash: the groups that ever joined or acquired a queue, and whether trimming waits for them;
  ``enode:{topic}:group:<group>`` hash: sessions, division
* ``enode:{topic}:producers`` sorted set: the producers, by the time of their last announcement in ms since 1970
* ``enode:{topic:3}:log`` the stream, where offset n is the entry ``n+1-0``; ``enode:{topic:3}:queue`` hash: end (the
  next offset), largest (an upper bound of the bytes of a message), largest_since (the same from mark on), route and
  round (copies of the topic's), epoch (the last one issued) and run (under which)
* ``enode:{topic:3}:times`` stream: entry ids are ms since 1970, each with the offset of the first message of that time
* ``enode:{topic:3}:sent:<producer>`` hash: the offsets of a producer's newest sends
* ``enode:{topic:3}:claim:<group>`` hash: epoch, offset (committed), deaths; while leased also owner, until (ms since
  1970) and previous (the earlier owner, until the owner has shown that it knows); run, the server's time as a
  master in which it was acquired: after a restart or a failover writes may be lost, so leases of another run are lost
* ``enode:{topic:3}:receipts:<group>`` list: the group's receipts of finished messages, the oldest first
* ``enode:inbox:{address}`` the answers to one process, deleted ten minutes after the last one

Acknowledged writes survive a crash of the server according to its persistence: none with ``appendonly no``, all but
the last second with ``appendfsync everysec``, all with ``always``. Replication is asynchronous: a failover may lose
writes acknowledged just before. ``wait_replicas`` makes that rare, not impossible.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import NoneType
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
from enode_django.equeue.redis.batches import milliseconds
from enode_django.equeue.redis.claim_scripts import TIMELINE
from enode_django.equeue.redis.claims import RedisClaims
from enode_django.equeue.redis.connection import Confirmation, RedisConnection, ScriptCall
from enode_django.equeue.redis.groups import RedisGroups
from enode_django.equeue.redis.inbox import RedisInbox, replies_as_calls
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.redis.partly import raise_failure
from enode_django.equeue.redis.reading import RedisReader
from enode_django.equeue.redis.scripts import SEND_WITH_RESERVE
from enode_django.equeue.redis.sending import RedisSender
from enode_django.equeue.redis.topics import RedisTopics
from enode_django.equeue.redis.trimming import RedisTrimmer
from enode_django.equeue.refusals import check_size
from enode_django.equeue.transport import LONG_POLL
from enode_django.equeue.transports.options import check_count, check_function, check_kind, check_seconds
from enode_django.exceptions import EnodeError

__all__ = ["RedisStreamsTransport"]


class RedisStreamsTransport:
    """Implements `Transport` on Redis.

    ``location`` is ``redis://``, ``rediss://`` or ``unix://`` for one server, ``redis+sentinel://`` or
    ``redis+cluster://`` (see `enode_django.equeue.redis.location`). Options: ``prefix`` of all keys; ``timeout``,
    seconds for connecting and for an answer; ``max_age``, seconds for which `trim` keeps what all groups have
    committed (None: not at all), unless memory is nearly full; ``max_length`` (messages) and ``max_age``, above which
    it cuts the queues of a topic that no group ever acquired, and with ``delete_unconsumed`` all queues (None: never);
    ``wait_replicas``, the number of replicas that must have what was sent or committed before the call returns, and
    ``wait_timeout``, their seconds for it; ``client``, further keyword arguments for redis-py's connections
    (certificates); ``allocate``, which divides the queues among the members of a group (None: evenly). ``allocate``
    must be the same in all processes: any of them may divide.

    For example::

        transport = RedisStreamsTransport("redis://127.0.0.1:6379/0", prefix="shop", max_age=86_400)
        producer = Producer(transport, queues=4)
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
        check_kind("prefix", prefix, str, "a text")
        check_kind("client", client, (Mapping, NoneType), "a dictionary of keyword arguments, or None")
        check_kind("delete_unconsumed", delete_unconsumed, bool, "True or False")
        check_function("allocate", allocate)
        check_count("wait_replicas", wait_replicas)
        check_seconds("wait_timeout", wait_timeout)
        check_seconds("timeout", timeout)
        if max_age is not None:
            check_seconds("max_age", max_age)
        if max_length is not None:
            check_count("max_length", max_length)
        confirmation = Confirmation(wait_replicas, milliseconds(wait_timeout)) if wait_replicas else None
        self._keys = Keys(prefix)
        self._connection = RedisConnection(location, timeout=timeout, client=client or {}, confirmation=confirmation)
        self._topics = RedisTopics(self._keys, self._connection, timeout)
        self._groups = RedisGroups(self._keys, self._connection, self._topics, allocate or divide)
        self._sender = RedisSender(self._keys, self._connection, self._topics)
        self._reader = RedisReader(self._keys, self._connection, self._topics)
        self._claims = RedisClaims(self._keys, self._connection, self._topics, self._groups)
        self._trimmer = RedisTrimmer(
            self._keys,
            self._connection,
            self._topics,
            max_age=max_age,
            max_length=max_length,
            delete_unconsumed=delete_unconsumed,
        )

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
        return self._topics.read(topic).route

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
        """Return this transport with sends that are stored even above the server's ``maxmemory``, unless one queue's
        messages take several steps: a full Redis refuses transactions."""
        other = copy.copy(self)
        other._sender = RedisSender(self._keys, self._connection, self._topics, SEND_WITH_RESERVE)
        return other

    def pull(
        self, topic: str, offsets: Mapping[int, int], *, limit: int, wait: float = LONG_POLL
    ) -> Sequence[PulledBatch]:
        return self._reader.pull(topic, offsets, limit=limit, wait=wait)

    def look(self, topic: str, offsets: Mapping[int, int]) -> Sequence[PulledBatch]:
        return self._reader.pull(topic, offsets, limit=1, wait=0)

    def wake(self, thread: int) -> None:
        self._reader.wake(thread)

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        queues = range(self.queue_count(topic))
        answers = self._connection.execute_all([("HGET", self._keys.queue(topic, queue), "end") for queue in queues])
        return {queue: int(answer or 0) for queue, answer in zip(queues, answers, strict=True)}

    def offsets_at(self, topic: str, time: float) -> Mapping[int, int]:
        return self._trimmer.offsets_at(topic, time)

    def timelines(self, topic: str) -> Mapping[int, str]:
        """Return the timelines. Each start of a server, and each failover to a replica, begins a new one."""
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
        return self._claims.acquire(group, topic, queue, owner, lease, start)

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        return self._claims.renew(group, topic, owner, epochs, lease)

    def release(self, group: str, topic: str, owner: str, epochs: Mapping[int, int]) -> None:
        self._claims.release(group, topic, owner, epochs)

    def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> AbstractSet[int]:
        return self._claims.commit(group, topic, commits)

    def receipts(self, group: str, topic: str, queue: int) -> Sequence[bytes]:
        return self._claims.receipts(group, topic, queue)

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        (offsets,) = self._topics.committed(topic, self.queue_count(topic), [group])
        return dict(enumerate(offsets))

    def set_offset(self, group: str, topic: str, queue: int, offset: int) -> None:
        self._claims.set_offset(group, topic, queue, offset)

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
        self._topics.set_retention(topic, max_age)

    def retention(self, topic: str) -> float | None:
        return self._topics.read(topic).max_age

    def trim(self, topic: str) -> None:
        self._trimmer.trim(topic)

    def mend(self, topic: str) -> Mapping[int, int]:
        return self._trimmer.mend(topic)

    def hazards(self) -> Sequence[str]:
        return self._topics.hazards()

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
