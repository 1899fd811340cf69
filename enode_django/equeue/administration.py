"""Inspect and repair topics, groups and messages. Everything else is a method of the transport."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from enode_django.equeue.messages import GroupState, QueueState, Start
from enode_django.equeue.refusals import check_queues, check_unused, unknown_group
from enode_django.equeue.retrying import dead_letter_topic, retry_topic
from enode_django.equeue.transport import (
    DeletesQueues,
    DeletesTopics,
    Mends,
    PausesGroups,
    RetainsByTopic,
    Transport,
)
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.exceptions import QueueError, TopicDeleted

__all__ = [
    "GroupInfo",
    "OffsetMove",
    "PeekedMessage",
    "ProducerInfo",
    "QueueShare",
    "TopicInfo",
    "back_up",
    "broker_figures",
    "create_topic",
    "delete_failures",
    "delete_group",
    "delete_queue",
    "delete_topic",
    "failure_topics",
    "list_groups",
    "list_producers",
    "list_topics",
    "mend",
    "pause_group",
    "peek",
    "plan_offsets",
    "read_queue",
    "retention",
    "set_offsets",
    "set_retention",
    "tail",
]

PULL_LIMIT = 100
"""Messages per pull; few, because they may be large."""


class TopicInfo(NamedTuple):
    """``messages``: the number of messages in all queues."""

    topic: str
    queues: Mapping[int, QueueState]
    messages: int


class QueueShare(NamedTuple):
    """A group and one queue. ``owner`` has the lease for another ``seconds``; ``shall_own`` is the member that it is
    assigned to. ``backlog``: the number of uncommitted messages. ``committed`` is None if the group never had it."""

    topic: str
    group: str
    queue: int
    committed: int | None
    end: int
    backlog: int
    owner: str | None
    seconds: float
    shall_own: str | None


class GroupInfo(NamedTuple):
    """``members`` has the seconds left of their sessions. ``counts``: messages that the group has not committed are
    kept. ``paused``: its members are assigned no queues."""

    topic: str
    group: str
    generation: int
    members: Mapping[str, float]
    counts: bool
    backlog: int
    shares: Sequence[QueueShare]
    paused: bool = False


class OffsetMove(NamedTuple):
    """``before`` is the consume offset of the group in the queue; None if the group never had the queue."""

    topic: str
    group: str
    queue: int
    before: int | None
    after: int


class PeekedMessage(NamedTuple):
    """A message of a queue, with its place."""

    topic: str
    queue: int
    offset: int
    body: bytes


class ProducerInfo(NamedTuple):
    """``seconds`` since the process last announced that it sends to the topic: every half minute at most, and only
    while it sends."""

    topic: str
    producer: str
    seconds: float


def list_topics(transport: Transport, topics: Sequence[str] = ()) -> list[TopicInfo]:
    """Return all topics, or the given ones.
    Raises `UnknownTopic`::

        assert [(info.topic, info.messages) for info in list_topics(transport)] == [("orders", 1)]
    """
    infos = []
    for topic in topics or transport.topics():
        with _passed_over(topics):
            queues = transport.queues(topic)
            infos.append(TopicInfo(topic, queues, sum(state.end - state.first for state in queues.values())))
    return infos


@contextmanager
def _passed_over(named: Sequence[str]) -> Iterator[None]:
    """Skip a topic that is deleted while all are listed; raise if the topics were named."""
    try:
        yield
    except TopicDeleted:
        if named:
            raise


def create_topic(transport: Transport, topic: str, queues: int) -> None:
    """Create a topic.
    Raises `QueueError` if it exists with another number of queues::

        create_topic(transport, "invoices", 4)
    """
    count = transport.create_topic(topic, queues)
    if count != queues:
        raise QueueError(f"topic {topic!r} exists, with {count} queues; add_queues gives it more")


def list_groups(transport: Transport, topics: Sequence[str] = (), *, group: str | None = None) -> list[GroupInfo]:
    """Return the groups of all topics or of the given ones.
    If ``group`` is given, return only that one::

        assert [(info.group, info.backlog) for info in list_groups(transport)] == [("billing", 1)]
    """
    infos = []
    for topic in topics or transport.topics():
        with _passed_over(topics):
            groups = transport.groups(topic)
            if group is None or group in groups:
                queues = transport.queues(topic)
                paused = transport.paused_groups(topic) if isinstance(transport, PausesGroups) else ()
                names = groups if group is None else [group]
                infos += [_info(topic, name, groups[name], queues)._replace(paused=name in paused) for name in names]
    return infos


def _info(topic: str, group: str, state: GroupState, queues: Mapping[int, QueueState]) -> GroupInfo:
    heirs = {queue: member for member, given in state.division.items() for queue in given}
    shares = []
    for queue, (first, end, _, _) in sorted(queues.items()):
        claim = state.claims.get(queue)
        committed = claim.committed if claim else None
        backlog = max(0, end - max(first, committed or 0))
        owner, seconds = (claim.owner, claim.seconds) if claim else (None, 0.0)
        shares.append(QueueShare(topic, group, queue, committed, end, backlog, owner, seconds, heirs.get(queue)))
    backlog = sum(share.backlog for share in shares)
    return GroupInfo(topic, group, state.generation, state.members, state.counts, backlog, shares)


def list_producers(transport: Transport, topics: Sequence[str] = ()) -> list[ProducerInfo]:
    """Return the recent producers of all topics, or of the given ones.
    Raises `UnknownTopic`::

        assert [info.topic for info in list_producers(transport)] == ["orders"]
    """
    infos = []
    for topic in topics or transport.topics():
        with _passed_over(topics):
            infos += [ProducerInfo(topic, name, seconds) for name, seconds in transport.producers(topic).items()]
    return infos


def broker_figures(transport: Transport) -> Mapping[str, Any]:
    """Return the broker's figures.
    Raises `QueueError` if the queue has no broker::

        print(broker_figures(transport))
    """
    if not isinstance(transport, BrokerTransport):
        raise QueueError(f"the queue has no broker: its driver is {type(transport).__name__}")
    return transport.status()


def back_up(transport: Transport, name: str) -> Mapping[str, Any]:
    """Let the broker copy its directory to ``backups/<name>`` within it. Return the path there and its sizes. Raises
    `QueueError` if the queue has no broker or a backup of that name exists::

        print(back_up(transport, "monday"))
    """
    if not isinstance(transport, BrokerTransport):
        raise QueueError(f"the queue has no broker to be backed up: its driver is {type(transport).__name__}")
    return transport.back_up(name)


def mend(transport: Transport, topics: Sequence[str] = ()) -> Mapping[str, Mapping[int, int]]:
    """Delete foreign entries from the queues of all topics, or of the given ones. Return their number by topic and
    queue. Raises `QueueError` for a transport whose queues only the package writes::

        print(mend(transport, ["orders"]))
    """
    if not isinstance(transport, Mends):
        raise QueueError(
            f"nobody else can write into the queues of {type(transport).__name__}; there is nothing to mend"
        )
    return {topic: transport.mend(topic) for topic in topics or transport.topics()}


def retention(transport: Transport, topic: str) -> float | None:
    """Return the topic's own retention in seconds; None if it has none.
    Raises `UnknownTopic`::

        assert retention(transport, "orders") is None
    """
    if isinstance(transport, RetainsByTopic):
        return transport.retention(topic)
    transport.queue_count(topic)
    return None


def set_retention(transport: Transport, topic: str, seconds: float | None) -> None:
    """Set how long a topic keeps consumed messages, see `RetainsByTopic.set_retention`. Raises `QueueError` for a
    transport that keeps all topics equally long::

        set_retention(transport, "orders", 3600.0)
    """
    if not isinstance(transport, RetainsByTopic):
        raise QueueError(f"{type(transport).__name__} keeps all topics equally long: it is not RetainsByTopic")
    transport.set_retention(topic, seconds)


def plan_offsets(
    transport: Transport,
    group: str,
    topic: str,
    to: int | Start | datetime,
    queues: Sequence[int] = (),
    *,
    new_group: bool = False,
) -> list[OffsetMove]:
    """Return the moves that `set_offsets` would make now.
    Raises the same errors, and changes nothing::

        assert plan_offsets(transport, "billing", "orders", Start.LAST)[0].after == 1
    """
    known = transport.groups(topic)
    if group not in known and not new_group:
        raise unknown_group(topic, group, known)
    states = transport.queues(topic)
    check_queues(topic, queues, len(states))
    targets = _targets(transport, topic, to, states)
    claims = known[group].claims if group in known else {}
    moves = []
    for queue in queues or sorted(states):
        before = claims[queue].committed if queue in claims else None
        after = min(max(targets[queue], states[queue].first), states[queue].end)
        moves.append(OffsetMove(topic, group, queue, before, after))
    return moves


def set_offsets(
    transport: Transport,
    group: str,
    topic: str,
    to: int | Start | datetime,
    queues: Sequence[int] = (),
    *,
    new_group: bool = False,
) -> list[OffsetMove]:
    """Let a group continue from an offset, from an end of the queue, or from the messages stored at a time: in all
    queues of the topic or in the given ones, one after the other. Return the moves.

    An offset is limited to what the queue has. Owners lose their queues for a moment, and their unfinished messages
    are handled again. Raises `QueueError` for a group that the topic does not have, unless ``new_group``::

        set_offsets(transport, "billing", "orders", datetime.now(UTC) - timedelta(hours=1))
    """
    moves = []
    for move in plan_offsets(transport, group, topic, to, queues, new_group=new_group):
        transport.set_offset(group, topic, move.queue, move.after)
        moves.append(move._replace(after=transport.committed(group, topic)[move.queue]))
    return moves


def _targets(
    transport: Transport, topic: str, to: int | Start | datetime, states: Mapping[int, QueueState]
) -> Mapping[int, int]:
    if isinstance(to, datetime):
        return transport.offsets_at(topic, _seconds(to))
    if isinstance(to, Start):
        return {queue: state.first if to is Start.FIRST else state.end for queue, state in states.items()}
    return dict.fromkeys(states, to)


def _seconds(time: datetime) -> float:
    if time.tzinfo is None:
        raise ValueError(f"a time needs a time zone, got {time!r}")
    return time.timestamp()


def peek(
    transport: Transport,
    topic: str,
    queue: int,
    offset: int | None = None,
    limit: int = 10,
    *,
    at: datetime | None = None,
) -> list[PeekedMessage]:
    """Return messages of a queue: from an offset on, from the first one stored ``at`` a time or later (as precisely as
    `Transport.offsets_at` says), or its newest ones. No group is affected. The offset of a deleted message stands for
    the next message left. Raises `ValueError` for a time without a time zone, and for both an offset and a time::

        assert [message.body for message in peek(transport, "orders", 0)] == [b"3 apples"]
    """
    if limit < 1 or (offset or 0) < 0:
        raise ValueError(f"an offset is 0 or more and a limit at least 1, got {offset!r} and {limit!r}")
    if at is not None and offset is not None:
        raise ValueError(f"peek from an offset or from a time, not from both: got {offset!r} and {at!r}")
    state = transport.queues(topic).get(queue)
    if state is None:
        check_queues(topic, (queue,), transport.queue_count(topic))
        return []
    if at is not None:
        offset = transport.offsets_at(topic, _seconds(at))[queue]
    first = state.end - limit if offset is None else offset
    return list(islice(read_queue(transport, topic, queue, max(first, state.first), state.end), limit))


def read_queue(transport: Transport, topic: str, queue: int, offset: int, end: int) -> Iterator[PeekedMessage]:
    """Yield the messages from ``offset`` on and before ``end``.
    No group is affected::

        assert [message.body for message in read_queue(transport, "orders", 0, 0, 1)] == [b"3 apples"]
    """
    while offset < end:
        batches = transport.pull(topic, {queue: offset}, limit=PULL_LIMIT, wait=0)
        if not batches:
            return
        (batch,) = batches
        for at, body in zip(batch.offsets, batch.bodies, strict=True):
            if at >= end:
                return
            yield PeekedMessage(topic, queue, at, bytes(body))
        offset = batch.offsets[-1] + 1


def tail(
    transport: Transport, topic: str, queues: Sequence[int] = (), start: Start = Start.LAST, *, wait: float = 1.0
) -> Iterator[PeekedMessage | None]:
    """Yield messages as they arrive, without end, and None after each ``wait`` seconds without any. No group is
    affected. Queues that are added meanwhile are not seen::

        assert next(tail(transport, "orders", start=Start.FIRST)).body == b"3 apples"
    """
    states = transport.queues(topic)
    check_queues(topic, queues, len(states))
    offsets = {
        queue: states[queue].end if start is Start.LAST else states[queue].first for queue in queues or sorted(states)
    }
    while True:
        batches = transport.pull(topic, offsets, limit=PULL_LIMIT, wait=wait)
        for batch in batches:
            offsets[batch.queue] = batch.offsets[-1] + 1
            for at, body in zip(batch.offsets, batch.bodies, strict=True):
                yield PeekedMessage(topic, batch.queue, at, bytes(body))
        if not batches:
            yield None


def delete_group(transport: Transport, group: str, topics: Sequence[str] = (), *, living: bool = False) -> list[str]:
    """Delete a group from all topics or from the given ones. Return the topics that had it, and the topics of its
    retries and dead letters, which are deleted when no other topic has the group. Raises `QueueError`, and deletes
    nothing, while the group has members, unless ``living``::

        assert delete_group(transport, "billing") == ["orders"]
    """
    infos = list_groups(transport, topics, group=group)
    members = sorted({member for info in infos for member in info.members})
    if members and not living:
        raise QueueError(
            f"group {group!r} has members: {', '.join(members)}; stop them first, or say that they may be living"
        )
    for info in infos:
        transport.delete_group(group, info.topic)
    return sorted({*(info.topic for info in infos), *delete_failures(transport, group)})


def pause_group(transport: Transport, group: str, topics: Sequence[str] = (), *, paused: bool = True) -> list[str]:
    """Pause a group, or resume it (``paused`` False), in all topics that have it (including that of its retries) or in
    the given ones. Return those topics. Raises `QueueError` for a group that none of them has, and for a transport
    that pauses no groups::

        assert pause_group(transport, "billing") == ["orders"]
    """
    if not isinstance(transport, PausesGroups):
        raise QueueError(f"{type(transport).__name__} pauses no groups; it would have to be a PausesGroups")
    having = [info.topic for info in list_groups(transport, topics, group=group)]
    if not having:
        raise QueueError(f"no topic has a group {group!r}; manage.py enode queue groups shows all")
    for topic in having:
        transport.pause_group(group, topic, paused=paused)
    return having


def failure_topics(transport: Transport, group: str) -> list[str]:
    """Return the existing topics of a group's retries and dead letters.
    There are none before a message has failed::

        assert failure_topics(transport, "billing") == []
    """
    known = transport.topics()
    return [topic for topic in (retry_topic(group), dead_letter_topic(group)) if topic in known]


def delete_failures(transport: Transport, group: str) -> list[str]:
    """Delete the topics of a group's retries and dead letters, with their messages, unless another topic still has the
    group. Return the deleted topics; none if the transport deletes no topics::

        assert delete_failures(transport, "billing") == []
    """
    failures = _failures_alone(transport, group)
    if not isinstance(transport, DeletesTopics):
        return []
    for topic in failures:
        transport.delete_topic(topic, force=True)
    return failures


def _failures_alone(transport: Transport, group: str, without: str = "") -> list[str]:
    """Return the topics of a group's failures if only these and ``without`` have the group; else none."""
    failures = failure_topics(transport, group)
    others = [info.topic for info in list_groups(transport, group=group) if info.topic not in (without, *failures)]
    return [] if others else [topic for topic in failures if topic != without]


def delete_topic(transport: Transport, topic: str, *, force: bool = False) -> list[str]:
    """Delete a topic with its messages and groups, and the topics of retries and dead letters of groups that no other
    topic has. Return the deleted topics. Raises as `DeletesTopics.delete_topic` does, for any of them, and
    `QueueError` for a transport that deletes no topics::

        assert delete_topic(transport, "orders", force=True) == ["orders"]
    """
    if not isinstance(transport, DeletesTopics):
        raise QueueError(f"{type(transport).__name__} deletes no topics; it would have to be a DeletesTopics")
    failures = {name for group in transport.groups(topic) for name in _failures_alone(transport, group, topic)}
    if not force:
        for name in sorted(failures):
            bounds = {queue: (state.first, state.end) for queue, state in transport.queues(name).items()}
            check_unused(name, transport.groups(name), bounds)
    deleted = [topic, *sorted(failures)]
    for name in deleted:
        transport.delete_topic(name, force=force)
    return deleted


def delete_queue(transport: Transport, topic: str, queue: int, *, force: bool = False) -> None:
    """Delete a hidden queue, see `DeletesQueues.delete_queue`. Raises `QueueError` for a transport that deletes no
    queues::

        delete_queue(transport, "orders", 3)
    """
    if not isinstance(transport, DeletesQueues):
        raise QueueError(f"{type(transport).__name__} deletes no queues; it would have to be a DeletesQueues")
    transport.delete_queue(topic, queue, force=force)
