"""The port between the queue's clients and what stores the messages.

A topic has queues numbered 0 … n-1; a queue is an ordered list of messages with offsets 0, 1, 2 …. Consumer groups
are independent of one another: each has its own leases, committed offsets and receipts. A receipt is what a group keeps
of a message that it is done with: some bytes, written together with the offset that moves past the message.

A group's members share the queues: `join` tells each what it shall own, and leases say what it does own. So a queue
goes from one to another when the first has drained and released it, or when its lease has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol, runtime_checkable

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
from enode_django.exceptions import QueueError, StaleRoute

__all__ = [
    "DeletesQueues",
    "DeletesTopics",
    "HasReserve",
    "Inbox",
    "Mends",
    "PausesGroups",
    "RetainsByTopic",
    "TellsTimelines",
    "Transport",
    "WakesPulls",
]

LONG_POLL = 15.0
"""Seconds that a pull waits unless it is told otherwise, as EQueue has it."""
KNOWN_SENDS = 100
"""How many sends of a producer can be made again without being stored again."""
PRODUCER_SECONDS = 600.0
"""How long a producer is known that does not announce itself again."""
MOST_PRODUCERS = 1_000
"""Of each topic so many are known, those that announced themselves last."""
LONGEST_AGE = 10 * 365 * 86_400.0
"""Seconds that a topic's messages may be kept for, if it is said of the topic."""
ROOM_AROUND = 64 * 1024
"""Bytes that a message may grow by when it is kept with its place and the reason why nobody could handle it, or with
what was stored beside it. So the largest message that should be sent is so much smaller than `Transport.max_send`."""


@runtime_checkable
class WakesPulls(Protocol):
    """An optional part of a `Transport`, which all drivers of this package have: pulls can be ended early. Pulls from
    a transport without it are short, since the pulling thread has to look by itself whether its queues have changed."""

    def wake(self, thread: int) -> None:
        """End the pull in which the thread with this identifier waits: it returns what has come by then, as a rule
        nothing. If it waits in none, its next pull that may wait does not. Called by any other thread; does not
        block."""


@runtime_checkable
class Mends(Protocol):
    """An optional part of a `Transport`, where others can write into its queues."""

    def mend(self, topic: str) -> Mapping[int, int]:
        """Delete what was written by somebody else and keeps a queue from being used; returns how many entries, for
        each queue of the topic."""


@runtime_checkable
class HasReserve(Protocol):
    """An optional part of a `Transport` that refuses sends by `QueueFull` before it really has no room."""

    def with_reserve(self) -> Transport:
        """The same queue, whose sends may use the reserve. For what has to be sent before something that was consumed
        is done with: as long as it is refused, nobody makes room. Closing it closes both."""


@runtime_checkable
class TellsTimelines(Protocol):
    """An optional part of a `Transport`, which all drivers of this package have: it tells whether offsets may stand
    for other messages than before."""

    def timelines(self, topic: str) -> Mapping[int, str]:
        """Return, for each queue of the topic, the name of its timeline. It is another one after each crash or failover
        in which messages may have been lost that `Transport.pull` had given: their offsets are given to others
        then."""


@runtime_checkable
class DeletesTopics(Protocol):
    """An optional part of a `Transport`, which all drivers of this package have."""

    def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """Delete a topic with its messages, groups, offsets and receipts.

        Raises `QueueError`, and deletes nothing, unless ``force``, while a group has living members or messages left,
        or there are messages and no group. From then on every call with the topic raises `TopicDeleted`, also a pull
        that waits, at the end of its wait at the latest. What is sent by then is deleted, or is not stored.

        `Transport.create_topic` creates it anew. Its offsets go on behind those of the deleted one, and no route, lease
        or offset of that one is taken for one of this.
        """


@runtime_checkable
class DeletesQueues(Protocol):
    """An optional part of a `Transport`, which all drivers of this package have."""

    def delete_queue(self, topic: str, queue: int, *, force: bool = False) -> None:
        """Delete the messages of a queue that is hidden from producers and consumers, and its leases and receipts.

        The queue's number is not given to another one, so no key and no offset moves: it stays hidden, and is empty.
        Shown again it goes on behind its end, for every group. Raises `QueueError`, and deletes nothing, for a queue
        that is not hidden from both; and unless ``force``, while somebody has a lease of it, or it has messages that a
        group has not committed, or that no group consumes.
        """


@runtime_checkable
class PausesGroups(Protocol):
    """An optional part of a `Transport`, which all drivers of this package have."""

    def pause_group(self, group: str, topic: str, *, paused: bool = True) -> None:
        """Give the queues of the topic to no member of the group until it is told so with ``paused`` False. Survives
        restarts.

        Members stay members. Each hears of it when it joins next: it pulls nothing more, finishes what it has pulled,
        and releases its queues. What the group has not committed is kept. Raises `QueueError` for a group that the
        topic does not have. Safe to call twice.
        """

    def paused_groups(self, topic: str) -> Sequence[str]:
        """Their names, sorted."""


@runtime_checkable
class RetainsByTopic(Protocol):
    """An optional part of a `Transport`, which all drivers of this package have."""

    def set_retention(self, topic: str, max_age: float | None) -> None:
        """Let the messages of a topic be kept for ``max_age`` seconds after all groups have consumed them, instead of
        for as long as the driver was told; None: as long as that. It is a wish, as `Transport.trim` is: a driver may
        keep more, and delete earlier for want of room. Raises `QueueError` for a negative number."""

    def retention(self, topic: str) -> float | None:
        """Return the retention of the topic, in seconds."""


class Inbox(Protocol):
    """The inbox of one process for answers to what it sent. ``address`` travels in the messages it sends."""

    @property
    def address(self) -> str: ...

    def receive(self, wait: float) -> Sequence[bytes]:
        """Answers that came in; blocks up to ``wait`` seconds for the first one, then may return none."""

    def close(self) -> None:
        """Forget this inbox; answers sent to it later are dropped. Safe to call twice."""


class Transport(Protocol):
    """All methods block, may be called from any thread, and raise `TransportUnavailable` (retriable) when the queue
    cannot be reached. It is then unknown whether a send was stored: sending again may store it twice.

    A driver whose queues lie on several servers makes a call at all of them that can be used, and then raises
    `PartlyUnavailable` if one cannot. Its ``answers`` say by queue what was done: of `send` the offset of the first
    body, of `renew` and `commit` True if the queue was not lost. Those of `release` are the queues that were given
    back, those of `reply` the places of the replies that were delivered. A pull leaves out the queues of a server that
    cannot be used, unless it is that of all queues.

    Every method that names a topic raises `UnknownTopic` if there is none, and `QueueError` for a queue number that
    the topic does not have."""

    max_send: int
    """How many bytes one `send` takes, all its bodies together. Everything else may be of any size: a driver divides
    by itself what is too much for one step. A constant of the driver's class, which system checks read."""

    # Topics

    def topics(self) -> Sequence[str]:
        """Their names, sorted."""

    def create_topic(self, topic: str, queues: int) -> int:
        """Create the topic unless it exists; returns how many queues it has (maybe not ``queues``)."""

    def queue_count(self, topic: str) -> int:
        """Return how many queues the topic has, hidden ones too."""

    def queues(self, topic: str) -> Mapping[int, QueueState]:
        """All queues of the topic, as they are."""

    def route(self, topic: str) -> Route:
        """The queues that messages may be sent to, for `send`."""

    def add_queues(self, topic: str, queues: int, *, unordered: bool = False) -> int:
        """Let the topic have ``queues`` queues if it has fewer; returns how many it has.

        From then on keys go to other queues than before, so messages of a key could overtake one another: raises
        `QueueBacklog`, and adds none, while a group has messages left (or there are some and no group at all), unless
        ``unordered`` says that it does not matter. Senders that do not know of it get `StaleRoute`.
        """

    def show(
        self,
        topic: str,
        queue: int,
        *,
        to_producers: bool | None = None,
        to_consumers: bool | None = None,
        unordered: bool = False,
    ) -> None:
        """Hide a queue, or show it again; None leaves that as it is.

        What is hidden from producers is in no `Route`: keys move, so this raises `QueueBacklog` as `add_queues` does.
        What is hidden from consumers is given to no member of a group. Raises `QueueError` for the last queue that
        producers see.
        """

    def announce(self, topic: str, producer: str) -> None:
        """Note that a process sends to the topic, under a name for people; it may be said again and again. Nobody
        depends on it, so it may be lost when the queue restarts."""

    def producers(self, topic: str) -> Mapping[str, float]:
        """The names announced within the last ten minutes (1,000 at most), with the seconds since."""

    # Messages

    def send(
        self, topic: str, bodies: Mapping[int, Sequence[bytes]], *, route: int | None = None, once: Once | None = None
    ) -> Mapping[int, int]:
        """Append bodies to queues, each queue's in order; returns per queue the offset of its first one.

        The offsets of one queue's bodies are contiguous. Returns when the transport has stored them. Raises
        `UnknownTopic`, or `QueueError` for a queue number that the topic does not have or for more than `max_send`
        bytes, before anything is stored;
        `StaleRoute` if ``route`` is given and not the version of the topic's route any more (a queue has then stored
        all of its bodies or none, and the error says which); `QueueFull` when there is no room. A queue with no bodies
        is left out of the answer.

        With ``once`` the same send may be made again after `TransportUnavailable`: what was stored of it already is
        not stored again, and the answer is the same, also if the route has changed since. The newest 100 sends of a
        producer are known, for ten minutes.
        """

    def pull(
        self, topic: str, offsets: Mapping[int, int], *, limit: int, wait: float = LONG_POLL
    ) -> Sequence[PulledBatch]:
        """Messages at and after an offset, per queue, at most ``limit`` of each queue.

        With nothing to deliver it blocks up to ``wait`` seconds (long polling) and is answered the moment a message
        arrives in any of the queues. Queues without messages are left out. An offset whose message was deleted
        stands for the next one that is left. With no queues at all it returns at once. Raises `ValueError` for a
        ``limit`` below 1.
        """

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        """Per queue the offset that the next message will get."""

    def offsets_at(self, topic: str, time: float) -> Mapping[int, int]:
        """Per queue the offset of a message from which on all were stored at or after ``time`` (seconds since 1970);
        it may be of a few messages that were stored before. The end of the queue if there is none."""

    # Groups

    def join(self, group: str, topic: str, member: str, session: float) -> Membership:
        """Become a member of the group for ``session`` seconds, or stay one; tells which queues it shall own.

        Members whose session has ended are dropped. Every queue that consumers may see is given to one member. Unless
        the driver was told to divide in another way, no member has two more than another, and as few as possible move.
        """

    def leave(self, group: str, topic: str, member: str) -> None:
        """Be no member any more. What the member owns it still has to release. Safe to call twice."""

    def bury(self, group: str, topic: str, member: str, deaths: Collection[tuple[int, int]] = ()) -> None:
        """Say that a member's process is dead: it is not a member, and its leases end now.

        ``deaths``: queue and offset of each message that it was at. They are counted, in the same step as the lease
        of that queue ends, and the next owner is told, as long as the message is not committed. An offset may be any
        number of 48 bits. Safe to call twice: a member dies once at a message.
        """

    def acquire(
        self, group: str, topic: str, queue: int, owner: str, lease: float, *, start: Start | int = Start.FIRST
    ) -> Lease:
        """Take a queue for ``lease`` seconds, raising its epoch; raises `QueueHeld` while another owner's lease runs.

        An owner that acquires what it holds itself, or held until its lease ran out, gets a new epoch too, and is told
        the same ``previous_owner`` again until it has renewed or committed: the first answer may have been lost. A
        group that never had the queue begins at ``start``, an offset or one end of the queue.
        """

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        """Prolong leases by ``lease`` seconds from now; returns the queues that were lost (another epoch rules).

        A lease that ran out and was taken by nobody is prolonged. A queue that was released counts as lost.
        """

    def release(self, group: str, topic: str, owner: str, epochs: Mapping[int, int]) -> None:
        """Give queues back. A queue whose epoch has moved on is left alone."""

    def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> AbstractSet[int]:
        """Store consume offsets and receipts; returns the queues refused because their epoch is stale.

        Of each queue both are stored, or neither, whenever the process or the transport may stop. (A driver may take
        many receipts in several steps, each of which moves the offset just past its own.) Offsets never go back; a
        receipt below the offset that is stored already is not stored again, so a commit whose outcome is unknown can
        be repeated. The epoch decides, not the lease: as long as nobody else acquired the queue, a commit after the
        lease ran out or was released is taken.
        """

    def receipts(self, group: str, topic: str, queue: int) -> Sequence[bytes]:
        """Return the receipts of the queue's finished messages, the oldest first.

        Complete for who has acquired the queue: an owner before it can store none any more.
        """

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        """Per queue the committed offset (0 where nothing was committed)."""

    def set_offset(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Let the group go on from ``offset``, forwards or back, limited to what the queue has. Whoever owns the queue
        loses it, and acquires it anew from there. Receipts stay."""

    def groups(self, topic: str) -> Mapping[str, GroupState]:
        """The groups that ever joined or acquired a queue of the topic and were not deleted."""

    def delete_group(self, group: str, topic: str) -> None:
        """Forget all about a group: members, offsets, receipts, leases. Whoever still owns a queue loses it. Safe to
        call for a group that never was."""

    def retire_group(self, group: str, topic: str) -> None:
        """Let `trim` no longer wait for a group that does not exist any more. What it has committed stays, and a
        group that acquires a queue again counts again. Safe to call twice, and for a group that never was."""

    def trim(self, topic: str) -> None:
        """Delete what every group that ever acquired a queue of the topic has committed; may keep more.

        A topic that no group ever acquired keeps everything.
        """

    # Answers

    def open_inbox(self) -> Inbox: ...

    def reply(self, replies: Sequence[tuple[str, bytes]]) -> None:
        """Deliver (address, body) pairs. An address whose inbox is gone swallows its reply."""

    def close(self) -> None:
        """Let go of connections; a call under way may raise `TransportUnavailable`. Safe to call twice."""


def with_reserve(transport: Transport) -> Transport:
    """As `HasReserve` says; a transport that has none as it is."""
    return transport.with_reserve() if isinstance(transport, HasReserve) else transport


def check_new_topic(topic: str, queues: int) -> None:
    """For drivers: raise `QueueError` for a topic that cannot be made."""
    if not topic or not topic.isprintable() or any(sign in topic for sign in "{} /"):
        raise QueueError(f"{topic!r} cannot name a topic; use letters, digits, '.', '-' and '_'")
    if queues < 1:
        raise QueueError(f"topic {topic!r} cannot have {queues!r} queues; give it at least one")


def check_age(max_age: float | None) -> None:
    """For drivers: raise `QueueError` for an age that `RetainsByTopic.set_retention` does not take."""
    if max_age is not None and not 0 <= max_age < LONGEST_AGE:
        raise QueueError(f"messages are kept for 0 to {LONGEST_AGE:.0f} seconds, got {max_age!r}")


def check_queues(topic: str, queues: Collection[int], count: int) -> None:
    """For drivers: raise `QueueError` for a queue number that a topic of ``count`` queues does not have."""
    if queues and (min(queues) < 0 or max(queues) >= count):
        wrong = sorted(queue for queue in queues if not 0 <= queue < count)
        raise QueueError(f"topic {topic!r} has no queue {wrong[0]!r}; its queues are 0 to {count - 1}")


def check_size(bodies: Mapping[int, Sequence[bytes]], limit: int) -> None:
    """For drivers: raise `QueueError` for a send that takes more bytes than their ``max_send``."""
    size = sum(sum(map(len, some)) for some in bodies.values())
    if size > limit:
        raise QueueError(f"a send of {size} bytes is above the limit of {limit}; send fewer messages at once")


def check_limit(limit: int) -> None:
    """For drivers: raise `ValueError` for a ``limit`` of `Transport.pull` that asks for nothing."""
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit!r}")


def check_route(topic: str, route: int | None, version: int) -> None:
    """For drivers: raise `StaleRoute` for a send that was routed by another version than the topic has."""
    if route is not None and route != version:
        raise StaleRoute(f"topic {topic!r} has other queues than those of route {route}; ask for its route again")
