"""The port between the queue's clients and the store of the messages.

A topic has queues numbered 0 … n-1. A queue is an ordered list of messages with offsets 0, 1, 2 …. Consumer groups are
independent of one another: each has its own leases, committed offsets and receipts. A receipt is some bytes that a
group keeps of a finished message; it is written together with the offset that moves past the message.

The members of a group share the queues. `join` tells a member which queues it shall own; leases say which it does own.
A queue changes hands when its owner has drained and released it, or when its lease has ended.
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

__all__ = [
    "DeletesQueues",
    "DeletesTopics",
    "HasReserve",
    "Inbox",
    "Mends",
    "PausesGroups",
    "RetainsByTopic",
    "TellsHazards",
    "TellsTimelines",
    "Transport",
    "WakesPulls",
]

LONG_POLL = 15.0
"""Seconds that a pull waits by default, as in EQueue."""
AT_ONCE = 0.001
"""The ``wait`` of a pull that takes only what can be read now; with 0 it could wait for an index."""
KNOWN_SENDS = 100
"""The number of a producer's latest sends that can be repeated without being stored twice."""
PRODUCER_SECONDS = 600.0
"""Seconds for which a producer is known after its last announcement."""
MOST_PRODUCERS = 1_000
"""The most producers known per topic; the most recently announced ones are kept."""
LONGEST_AGE = 10 * 365 * 86_400.0
"""The upper limit, in seconds, of a topic's own retention."""
ROOM_AROUND = 64 * 1024
"""Bytes that a message may grow by when it is set aside with its place and the error of its handler, or with other
stored data. The largest message that should be sent is smaller than `Transport.max_send` by this much."""


@runtime_checkable
class WakesPulls(Protocol):
    """An optional part of a `Transport`, which all drivers of this package have: pulls can be ended early. Without it
    pulls are short, because the pulling thread has to check by itself whether its queues have changed."""

    def wake(self, thread: int) -> None:
        """End the pull in which the thread with this identifier waits: it returns what has arrived, usually nothing.
        If the thread is in no such pull, its next pull that may wait returns without waiting. Called by any other
        thread; does not block."""


@runtime_checkable
class TellsHazards(Protocol):
    """An optional part of a `Transport` on servers that others configure."""

    def hazards(self) -> Sequence[str]:
        """Return how the servers may lose messages that they have accepted, each as the rest of a sentence about the
        queue. Asks the servers; leaves out those that do not answer, and all if this user may not ask."""


@runtime_checkable
class Mends(Protocol):
    """An optional part of a `Transport` whose queues can be written to by other programs."""

    def mend(self, topic: str) -> Mapping[int, int]:
        """Delete foreign entries that make a queue unusable. Return the number of deleted entries for each queue of
        the topic."""


@runtime_checkable
class HasReserve(Protocol):
    """An optional part of a `Transport` that raises `QueueFull` before all of its room is used."""

    def with_reserve(self) -> Transport:
        """Return the same queue with sends that may use the reserve. For messages that must be sent before a consumed
        message can be finished: while they are refused, no room is made. Closing it closes both."""


@runtime_checkable
class TellsTimelines(Protocol):
    """An optional part of a `Transport`, which all drivers of this package have: it says whether offsets may now stand
    for other messages."""

    def timelines(self, topic: str) -> Mapping[int, str]:
        """Return the name of each queue's timeline. The name changes with each crash or failover that may have lost
        messages which `Transport.pull` had returned: their offsets are given to other messages."""


@runtime_checkable
class DeletesTopics(Protocol):
    """An optional part of a `Transport`, which all drivers of this package have."""

    def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """Delete a topic with its messages, groups, offsets and receipts.

        Raises `QueueError`, and deletes nothing, unless ``force``, while a group has living members or messages left,
        or while there are messages but no group. Afterwards every call with the topic raises `TopicDeleted`, a waiting
        pull at the end of its wait at the latest. Messages sent meanwhile are deleted or not stored.

        `Transport.create_topic` creates the topic again. Its offsets continue behind those of the deleted topic, and no
        route, lease or offset of the deleted topic is valid for the new one.
        """


@runtime_checkable
class DeletesQueues(Protocol):
    """An optional part of a `Transport`, which all drivers of this package have."""

    def delete_queue(self, topic: str, queue: int, *, force: bool = False) -> None:
        """Delete the messages of a queue that is hidden from producers and consumers, and its leases and receipts.

        The number of the queue is not reused, so no key and no offset moves: the queue stays hidden, and is empty.
        Shown again, it continues behind its end, for every group. Raises `QueueError`, and deletes nothing, for a
        queue that is not hidden from both; and, unless ``force``, while it is leased, or has messages that a group has
        not committed or that no group consumes.
        """


@runtime_checkable
class PausesGroups(Protocol):
    """An optional part of a `Transport`, which all drivers of this package have."""

    def pause_group(self, group: str, topic: str, *, paused: bool = True) -> None:
        """Assign the group's members no queues of the topic until a call with ``paused`` False. Survives restarts.

        Members stay members. Each learns of the pause at its next `join`: it stops pulling, finishes what it has
        pulled, and releases its queues. Uncommitted messages are kept. Raises `QueueError` for a group that the topic
        does not have. Safe to call twice.
        """

    def paused_groups(self, topic: str) -> Sequence[str]:
        """Return the names of the paused groups, sorted."""


@runtime_checkable
class RetainsByTopic(Protocol):
    """An optional part of a `Transport`, which all drivers of this package have."""

    def set_retention(self, topic: str, max_age: float | None) -> None:
        """Set how many seconds a topic's messages are kept after all groups have consumed them. None restores the
        driver's own retention. As with `Transport.trim`, a driver may keep more; it may also delete earlier for want
        of room. Raises `QueueError` for a negative number and for `LONGEST_AGE` or more."""

    def retention(self, topic: str) -> float | None:
        """Return the topic's own retention in seconds; None if it has none."""


class Inbox(Protocol):
    """A process's inbox for answers to its messages, which carry the ``address``."""

    @property
    def address(self) -> str: ...

    def receive(self, wait: float) -> Sequence[bytes]:
        """Return the answers that arrived; block up to ``wait`` seconds for the first one. May return none."""

    def close(self) -> None:
        """Delete this inbox; later answers to it are dropped. Safe to call twice."""


class Transport(Protocol):
    """All methods block, are thread-safe, and raise `TransportUnavailable` (retriable) when the queue cannot be
    reached. It is then unknown whether a send was stored: sending again may store it twice.

    A driver with several servers makes a call at every usable one, and then raises `PartlyUnavailable` if one is not
    usable. Its ``answers`` tell by queue what was done: for `send` the offset of the first body, for `renew` and
    `commit` True if the queue was not lost. For `release` they are the released queues, for `reply` the indexes of the
    delivered replies. A pull omits the queues of an unusable server, unless all of its queues are there.

    Every method that names a topic raises `UnknownTopic` if it does not exist, and `UnknownQueue` for a queue number
    that the topic does not have.
    """

    max_send: int
    """The bytes that one `send` takes, all bodies together. Other calls have no limit: a driver divides large ones
    into steps. A constant of the driver's class, which system checks read."""

    # Topics

    def topics(self) -> Sequence[str]:
        """Return the names of the topics, sorted."""

    def create_topic(self, topic: str, queues: int) -> int:
        """Create the topic unless it exists. Return its number of queues, which may differ from ``queues``."""

    def queue_count(self, topic: str) -> int:
        """Return the number of the topic's queues, including hidden ones."""

    def queues(self, topic: str) -> Mapping[int, QueueState]:
        """Return the state of every queue of the topic."""

    def route(self, topic: str) -> Route:
        """Return the queues that messages may be sent to, for `send`."""

    def add_queues(self, topic: str, queues: int, *, unordered: bool = False) -> int:
        """Let the topic have at least ``queues`` queues. Return their number.

        New queues change the queue of a key, so messages of one key could overtake one another. Therefore this raises
        `QueueBacklog`, and adds none, unless ``unordered``, while a group has messages left, or while there are
        messages but no group. Senders with the old route get `StaleRoute`.
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
        """Hide a queue or show it again; None leaves that side unchanged.

        A queue that is hidden from producers is in no `Route`: keys move, so this raises `QueueBacklog` as
        `add_queues` does. A queue that is hidden from consumers is assigned to no member of a group. Raises
        `QueueError` for the last queue that producers see.
        """

    def announce(self, topic: str, producer: str) -> None:
        """Note that a process sends to the topic, under a name for people. May be repeated at any time. Nothing
        depends on the note, so a restart of the queue may lose it."""

    def producers(self, topic: str) -> Mapping[str, float]:
        """Return the names announced within the last ten minutes (1,000 at most), with the seconds since."""

    # Messages

    def send(
        self, topic: str, bodies: Mapping[int, Sequence[bytes]], *, route: int | None = None, once: Once | None = None
    ) -> Mapping[int, int]:
        """Append bodies to queues, each queue's in order. Return the offset of the first body of each queue.

        The offsets of one queue's bodies are contiguous. Returns when the transport has stored them. Queues without
        bodies are left out of the answer. Before anything is stored, raises `UnknownTopic`, `UnknownQueue`, or
        `QueueError` for more than `max_send` bytes. Raises `StaleRoute` if ``route`` is given and is not the version of
        the topic's route; each queue has then stored all of its bodies or none, and the error says which. Raises
        `QueueFull` when there is no room.

        With ``once`` the same send may be repeated after `TransportUnavailable`: queues that have stored their bodies
        do not store them again, and the answer is the same, even if the route has changed since. A producer's newest
        100 sends are known, for ten minutes.
        """

    def pull(
        self, topic: str, offsets: Mapping[int, int], *, limit: int, wait: float = LONG_POLL
    ) -> Sequence[PulledBatch]:
        """Return messages from the given offset of each queue on, at most ``limit`` of each queue.

        Without messages it blocks up to ``wait`` seconds (long polling) and returns the moment a message arrives in
        any of the queues. Queues without messages are left out. The offset of a deleted message stands for the next
        message left. Without queues it returns at once. With a ``wait`` of 0 no message is left out: the broker first
        rebuilds a damaged index, which may take longer than the client's timeout. Raises `ValueError` for a ``limit``
        below 1.
        """

    def look(self, topic: str, offsets: Mapping[int, int]) -> Sequence[PulledBatch]:
        """Return the first message of each queue from the given offset on, as a `pull` without waiting does, to a
        caller that pulls nothing behind it. Does not slow down the pulls of others."""

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        """Return for each queue the offset that its next message will get."""

    def offsets_at(self, topic: str, time: float) -> Mapping[int, int]:
        """Return for each queue an offset from which on all messages were stored at or after ``time`` (seconds since
        1970), or the end of the queue. A few messages at that offset may be older."""

    # Groups

    def join(self, group: str, topic: str, member: str, session: float) -> Membership:
        """Become or stay a member of the group for ``session`` seconds. Return the queues that the member shall own.

        Members whose session has ended are dropped. Every queue that consumers may see is assigned to one member.
        Unless the driver has another allocation, no member has two queues more than another, and as few as possible
        move.
        """

    def leave(self, group: str, topic: str, member: str) -> None:
        """End the membership. The member still has to release the queues it owns. Safe to call twice."""

    def bury(self, group: str, topic: str, member: str, deaths: Collection[tuple[int, int]] = ()) -> None:
        """Declare a member's process dead: end its membership and its leases now.

        ``deaths`` are the queue and the offset of each message that it was working on. They are counted in the same
        step that ends the lease of that queue, and reported to the next owner as long as the message is not committed.
        An offset may be any number of 48 bits. Safe to call twice: a member's death counts once per message.
        """

    def acquire(
        self, group: str, topic: str, queue: int, owner: str, lease: float, *, start: Start | int = Start.FIRST
    ) -> Lease:
        """Lease a queue for ``lease`` seconds, under a new epoch. Raises `QueueHeld` while another owner's lease runs.

        An owner that acquires a queue which it holds, or held until its lease ran out, gets a new epoch, too. It gets
        the same ``previous_owner`` until it has renewed or committed, since the first answer may have been lost. A
        group that never had the queue begins at ``start``, an offset or one end of the queue.
        """

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        """Prolong leases by ``lease`` seconds from now. Return the queues that were lost (another epoch is current).

        A lease that ran out and was not taken over is prolonged. A queue that was released counts as lost.
        """

    def release(self, group: str, topic: str, owner: str, epochs: Mapping[int, int]) -> None:
        """Give queues back. A queue with a newer epoch is left alone."""

    def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> AbstractSet[int]:
        """Store consume offsets and receipts. Return the queues that were refused because their epoch is stale.

        Each queue's offset and receipts are stored together or not at all, even if the process or the transport stops.
        (A driver may store many receipts in several steps; each step moves the offset just past its own receipts.)
        Offsets never go back. A receipt below the stored offset is not stored again, so a commit with an unknown
        outcome can be repeated. The epoch decides, not the lease: a commit after the lease ran out or was released is
        accepted until another owner acquires the queue.
        """

    def receipts(self, group: str, topic: str, queue: int) -> Sequence[bytes]:
        """Return the receipts of the queue's finished messages, the oldest first.

        Complete for the owner of the queue: an earlier owner can store none after it has acquired the queue.
        """

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the committed offset of each queue (0 where nothing was committed)."""

    def set_offset(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Let the group continue from ``offset``, forwards or back, limited to the messages that the queue has. The
        owner of the queue loses it, and continues there after acquiring it again. Receipts stay."""

    def groups(self, topic: str) -> Mapping[str, GroupState]:
        """Return the groups that ever joined or acquired a queue of the topic and were not deleted."""

    def delete_group(self, group: str, topic: str) -> None:
        """Delete a group's members, offsets, receipts and leases. Owners lose their queues. Safe to call for a group
        that never existed."""

    def retire_group(self, group: str, topic: str) -> None:
        """Exclude a group that no longer exists from the groups that `trim` waits for. Its committed offsets stay, and
        it is included again when it acquires a queue. Safe to call twice, and for a group that never existed."""

    def trim(self, topic: str) -> None:
        """Delete messages that are committed by every group that ever acquired a queue of the topic; may keep more.

        A topic keeps everything until a group has acquired one of its queues.
        """

    # Answers

    def open_inbox(self) -> Inbox: ...

    def reply(self, replies: Sequence[tuple[str, bytes]]) -> None:
        """Deliver (address, body) pairs. A reply to an inbox that is gone is dropped."""

    def close(self) -> None:
        """Close the connections; a call under way may raise `TransportUnavailable`. Safe to call twice."""


def with_reserve(transport: Transport) -> Transport:
    """Return the transport's reserve as `HasReserve` says, or the transport itself if it has none."""
    return transport.with_reserve() if isinstance(transport, HasReserve) else transport
