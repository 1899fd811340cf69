"""The queue in the broker of this package, over TCP."""

from __future__ import annotations

import logging
import os
import random
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext, suppress
from types import NoneType
from typing import Any, NamedTuple, TypeVar

from enode_django.equeue.frames import MAX_FRAME
from enode_django.equeue.messages import (
    Commit,
    GroupState,
    Lease,
    MalformedBatch,
    Membership,
    Once,
    PulledBatch,
    QueueOwnership,
    QueueState,
    Route,
    Start,
)
from enode_django.equeue.portions import portions
from enode_django.equeue.records import decode_records, is_whole, record_count
from enode_django.equeue.refusals import check_limit, check_size
from enode_django.equeue.transport import AT_ONCE, LONG_POLL
from enode_django.equeue.transports.broker_address import address_of
from enode_django.equeue.transports.broker_batches import batches_of, steps_of
from enode_django.equeue.transports.broker_connection import ConnectionLost, Pool, Wakes, Within, unreachable
from enode_django.equeue.transports.broker_rests import Rests
from enode_django.equeue.transports.options import check_kind, check_seconds
from enode_django.exceptions import MalformedRecords, TransportUnavailable, UnknownRequest

__all__ = ["BrokerTransport"]

logger = logging.getLogger("enode_django.equeue")

Made = TypeVar("Made", bound=NamedTuple)

MAX_SEND = MAX_FRAME - 64 * 1024
BACKUP_SECONDS = 600.0
_LAST = 1 << 62


class BrokerInbox:
    """An inbox at the broker. After a lost connection it asks again for what did not arrive; no answer comes twice."""

    def __init__(self, transport: BrokerTransport) -> None:
        self.address = uuid.uuid4().hex
        self._transport = transport
        self._following = 0
        self._is_closed = False
        transport._call("open_inbox", self.address)

    def receive(self, wait: float) -> Sequence[bytes]:
        if self._is_closed:
            return []
        self._following, bodies, *_ = self._transport._call("receive", self.address, self._following, wait, wait=wait)
        return list(bodies)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(TransportUnavailable):  # the broker forgets it after a while
            self._transport._call("close_inbox", self.address)


class BrokerTransport:
    """Implements `Transport` over a broker. Thread-safe, and usable after a fork; starts no thread.

    ``location`` is ``tcp://host:port``. ``timeout``: seconds for connecting and for an answer; a send whose connection
    is lost is repeated for as long. ``tls``: True, or paths of PEM files: ``ca`` (of the authority that signed the
    broker's certificate; by default the system's), and, if the broker asks for one, ``certificate`` and ``key`` of
    this client. The first call connects. Raises `ConfigurationError`; for a wrong secret at the first call.

    For example::

        transport = BrokerTransport("tcp://127.0.0.1:7625", timeout=2.0, secret="a secret")
        producer = Producer(transport, queues=4)
    """

    max_send = MAX_SEND

    def __init__(
        self,
        location: str,
        *,
        timeout: float = 5.0,
        secret: str | None = None,
        tls: Mapping[str, str] | bool | None = None,
    ) -> None:
        check_seconds("timeout", timeout)
        check_kind("secret", secret, (str, NoneType), "a text, or None")
        check_kind("tls", tls, (Mapping, bool, NoneType), "True, a dictionary of paths, or None")
        self._address = address_of(location, secret, tls)
        self.location = self._address.location
        self._timeout = timeout
        self._pool = Pool(self._address, timeout)
        self._rests = Rests()
        self._wakes = Wakes()

    # -- topics ---------------------------------------------------------------------------------------------------

    def topics(self) -> Sequence[str]:
        return list(self._call("topics"))

    def create_topic(self, topic: str, queues: int) -> int:
        return int(self._call("create_topic", topic, queues))

    def queue_count(self, topic: str) -> int:
        return int(self._call("queue_count", topic))

    def queues(self, topic: str) -> Mapping[int, QueueState]:
        return {queue: _known(QueueState, values) for queue, values in self._call("queues", topic).items()}

    def route(self, topic: str) -> Route:
        version, queues, *_ = self._call("route", topic)
        return Route(version, tuple(queues))

    def add_queues(self, topic: str, queues: int, *, unordered: bool = False) -> int:
        return int(self._call("add_queues", topic, queues, unordered))

    def show(
        self,
        topic: str,
        queue: int,
        *,
        to_producers: bool | None = None,
        to_consumers: bool | None = None,
        unordered: bool = False,
    ) -> None:
        self._call("show", topic, queue, to_producers, to_consumers, unordered)

    def delete_topic(self, topic: str, *, force: bool = False) -> None:
        self._call("delete_topic", topic, force)
        self._rests = Rests()

    def delete_queue(self, topic: str, queue: int, *, force: bool = False) -> None:
        self._call("delete_queue", topic, queue, force)

    def announce(self, topic: str, producer: str) -> None:
        self._call("announce", topic, producer)

    def producers(self, topic: str) -> Mapping[str, float]:
        return dict(self._call("producers", topic))

    # -- messages -------------------------------------------------------------------------------------------------

    def send(
        self, topic: str, bodies: Mapping[int, Sequence[bytes]], *, route: int | None = None, once: Once | None = None
    ) -> Mapping[int, int]:
        check_size(bodies, MAX_SEND)
        batches = list(batches_of(bodies))
        if once is not None:
            return self._send(topic, batches, route, uuid.UUID(once.producer).bytes, once.sequence)
        with self._current().sender() as sender:
            return self._send(topic, batches, route, sender.producer, next(sender.sequences))

    def pull(
        self, topic: str, offsets: Mapping[int, int], *, limit: int, wait: float = LONG_POLL
    ) -> Sequence[PulledBatch]:
        check_limit(limit)
        self._current()  # drops messages that a parent process kept
        return self._pulled(self._rests, topic, offsets, limit, wait)

    def look(self, topic: str, offsets: Mapping[int, int]) -> Sequence[PulledBatch]:
        """Return the first messages. Rests of batches are neither kept for later pulls nor taken from them."""
        return self._pulled(Rests(), topic, offsets, 1, 0.0)

    def _pulled(
        self, rests: Rests, topic: str, offsets: Mapping[int, int], limit: int, wait: float
    ) -> Sequence[PulledBatch]:
        pulled = [batch for queue, at in offsets.items() if (batch := rests.take(topic, queue, at, limit))]
        known = {batch.queue for batch in pulled}
        missing = {queue: at for queue, at in offsets.items() if queue not in known}
        if offsets and not missing:
            return pulled
        found, run = self._pull(topic, missing, limit, AT_ONCE if pulled else wait)
        for queue, batches, *more in found:
            decoded = [self._decoded(topic, queue, first, body) for first, body, *_ in batches]
            route = more[0] if more else None  # a broker of an earlier version does not give it
            batch = rests.cut(topic, queue, missing[queue], limit, decoded, route, run=run)
            if batch.bodies:
                pulled.append(batch)
        return pulled

    def _decoded(self, topic: str, queue: int, first: int, body: bytes) -> tuple[int, list[bytes]]:
        """Return a batch's first offset and its messages. A batch of an earlier broker that cannot be decoded is
        returned as one message, a `MalformedBatch` at its last offset, so that a consumer gets past it. Raises
        `TransportUnavailable` for a batch that was damaged on its way and has to be pulled again."""
        try:
            return first, decode_records(body)
        except MalformedRecords as error:
            if not is_whole(body):
                raise unreachable(self.location, error) from error
            last = first + record_count(body) - 1
            logger.error("%s/%d, offsets %d to %d, given as one message: %s", topic, queue, first, last, error)
            return last, [MalformedBatch(body, str(error))]

    def _pull(self, topic: str, offsets: Mapping[int, int], limit: int, wait: float) -> tuple[Any, int]:
        """Pull; return what is found, and the run of the broker. Return nothing if `wake` ends the pull. That closes
        the connection and drops the answer on its way."""
        if not wait:
            return self._call_run("pull", topic, offsets, limit, wait)
        try:
            return self._call_run("pull", topic, offsets, limit, wait, wait=wait, within=self._wakes.waiting)
        except TransportUnavailable:
            if not self._wakes.has_woken():
                raise
            return [], 0
        finally:
            self._wakes.forget()

    def wake(self, thread: int) -> None:
        self._current()
        self._wakes.wake(thread)

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        return dict(self._call("end_offsets", topic))

    def offsets_at(self, topic: str, time: float) -> Mapping[int, int]:
        return dict(self._call("offsets_at", topic, time))

    def timelines(self, topic: str) -> Mapping[int, str]:
        """Return the timelines; empty if the broker's version has none."""
        return dict(self._call_if_known("timelines", topic, {}))

    # -- groups ---------------------------------------------------------------------------------------------------

    def join(self, group: str, topic: str, member: str, session: float) -> Membership:
        generation, queues, members, *_ = self._call("join", group, topic, member, session)
        return Membership(generation, frozenset(queues), tuple(members))

    def leave(self, group: str, topic: str, member: str) -> None:
        self._call("leave", group, topic, member)

    def bury(self, group: str, topic: str, member: str, deaths: Collection[tuple[int, int]] = ()) -> None:
        self._call("bury", group, topic, member, list(deaths))

    def acquire(
        self, group: str, topic: str, queue: int, owner: str, lease: float, *, start: Start | int = Start.FIRST
    ) -> Lease:
        at = (0 if start is Start.FIRST else _LAST) if isinstance(start, Start) else start
        return _known(Lease, self._call("acquire", group, topic, queue, owner, lease, at))

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        return set(self._call("renew", group, topic, owner, dict(epochs), lease))

    def release(self, group: str, topic: str, owner: str, epochs: Mapping[int, int]) -> None:
        self._call("release", group, topic, owner, dict(epochs))

    def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> AbstractSet[int]:
        refused: set[int] = set()
        for step in steps_of(commits):
            step = {queue: commit for queue, commit in step.items() if queue not in refused}
            refused.update(self._call("commit", group, topic, step))
        return refused

    def receipts(self, group: str, topic: str, queue: int) -> Sequence[bytes]:
        kept: list[bytes] = []
        while some := self._call("receipts_from", group, topic, queue, len(kept)):
            kept += some
        return kept

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        return dict(self._call("committed", group, topic))

    def set_offset(self, group: str, topic: str, queue: int, offset: int) -> None:
        self._call("set_offset", group, topic, queue, offset)

    def groups(self, topic: str) -> Mapping[str, GroupState]:
        return {group: _group_state(*values) for group, values in self._call("groups", topic).items()}

    def delete_group(self, group: str, topic: str) -> None:
        self._call("delete_group", group, topic)

    def retire_group(self, group: str, topic: str) -> None:
        self._call("retire_group", group, topic)

    def pause_group(self, group: str, topic: str, *, paused: bool = True) -> None:
        self._call("pause_group", group, topic, paused)

    def paused_groups(self, topic: str) -> Sequence[str]:
        """Return the paused groups; empty if the broker's version cannot pause."""
        return list(self._call_if_known("paused_groups", topic, []))

    def set_retention(self, topic: str, max_age: float | None) -> None:
        """Set the retention, if the broker deletes by age. A file is deleted when no topic in it needs it."""
        self._call("set_retention", topic, max_age)

    def retention(self, topic: str) -> float | None:
        """Return the retention; None if the broker's version has none for topics."""
        max_age: float | None = self._call_if_known("retention", topic, None)
        return max_age

    def trim(self, topic: str) -> None:
        """Let the broker delete now the messages that it would delete soon anyway, by its own retention."""
        self._call("trim", topic)

    # -- answers --------------------------------------------------------------------------------------------------

    def open_inbox(self) -> BrokerInbox:
        return BrokerInbox(self)

    def reply(self, replies: Sequence[tuple[str, bytes]]) -> None:
        for some in portions(replies, lambda reply: len(reply[1])):
            self._call("reply", some)

    def status(self) -> Mapping[str, Any]:
        """Return figures about the broker for people."""
        return dict(self._call("status"))

    def figures(self) -> Mapping[str, Any]:
        """Return figures about the broker for monitoring: see `enode_django.equeue.broker.measuring`."""
        return dict(self._call("figures"))

    def back_up(self, name: str) -> Mapping[str, Any]:
        """Let the broker copy its directory to ``backups/<name>`` within it. Return the path there and its sizes.

        Raises `QueueError` if a backup of that name exists or another one is being made. Raises `TransportUnavailable`
        if it takes longer than `BACKUP_SECONDS`; the backup is made all the same.
        """
        return dict(self._call("back_up", name, wait=BACKUP_SECONDS))

    def close(self) -> None:
        pool, self._pool = self._pool, Pool(self._address, self._timeout)
        if pool.pid == os.getpid():
            pool.close()

    # -- calls ----------------------------------------------------------------------------------------------------

    def _current(self) -> Pool:
        pool = self._pool
        if pool.pid != os.getpid():  # a fork: those connections are the parent's
            self._rests = Rests()
            self._wakes = Wakes()
            pool = self._pool = Pool(self._address, self._timeout)  # last: a thread that finds it finds the others, too
        return pool

    def _call(self, name: str, *arguments: Any, wait: float = 0.0) -> Any:
        return self._call_run(name, *arguments, wait=wait)[0]

    def _call_if_known(self, name: str, topic: str, otherwise: Any) -> Any:
        try:
            return self._call(name, topic)
        except UnknownRequest:  # a broker of an earlier version
            return otherwise

    def _call_run(self, name: str, *arguments: Any, wait: float = 0.0, within: Within = nullcontext) -> tuple[Any, int]:
        """Return the answer, and the run of the broker that gave it."""
        try:
            return self._call_noting_run(self._current(), name, arguments, wait=wait, within=within)
        except ConnectionLost as lost:
            raise unreachable(self.location, lost) from lost

    def _call_noting_run(self, pool: Pool, name: str, arguments: Sequence[Any], **options: Any) -> tuple[Any, int]:
        rests, known = self._rests, self._rests.run
        answer, run = pool.call(name, arguments, **options)
        # For every call: a later pull must return nothing of an earlier run. The run known before the call is no news,
        # and over if another thread has called the next one meanwhile.
        if run != known:
            rests.of_run(run)
        return answer, run

    def _send(self, *arguments: Any) -> Mapping[int, int]:
        """Send, and repeat that once it may have arrived, until it is answered or the time is over: the broker knows
        the newest sends."""
        pool = self._current()
        deadline = time.monotonic() + self._timeout
        may_have_arrived = False
        while True:
            try:
                return dict(self._call_noting_run(pool, "send", arguments)[0])
            except ConnectionLost as lost:
                may_have_arrived |= lost.connected
                pause = random.uniform(0.02, 0.1)  # noqa: S311 - so that not all come back at one moment
                if not may_have_arrived or pool.is_closed or time.monotonic() + pause >= deadline:
                    raise unreachable(self.location, lost) from lost
                time.sleep(pause)


def _known(kind: type[Made], values: Sequence[Any]) -> Made:
    """Return a named tuple from an answer, without fields that a later broker has added."""
    return kind(*values[: len(kind._fields)])


def _group_state(generation: int, members: Any, division: Any, claims: Any, counts: bool, *_: Any) -> GroupState:
    return GroupState(
        generation,
        members,
        {member: frozenset(queues) for member, queues in division.items()},
        {queue: _known(QueueOwnership, claim) for queue, claim in claims.items()},
        counts,
    )
