"""The port between the queue's clients and what stores the messages.

A topic has queues numbered 0 … n-1; a queue is an ordered list of messages with offsets 0, 1, 2 …. Consumer groups
are independent of one another: each has its own leases, committed offsets and receipts. A receipt is what a group keeps
of a message that it is done with: some bytes, written together with the offset that moves past the message.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from enode_django.equeue.messages import Commit, Lease, PulledBatch
from enode_django.exceptions import QueueError


class Inbox(Protocol):
    """Where one process receives the answers to what it sent. ``address`` travels in the messages it sends."""

    @property
    def address(self) -> str: ...

    def receive(self, wait: float) -> Sequence[bytes]:
        """Answers that came in; blocks up to ``wait`` seconds for the first one, then may return none."""

    def close(self) -> None:
        """Forget this inbox; answers sent to it later are dropped. Safe to call twice."""


class Transport(Protocol):
    """All methods block, may be called from any thread, and raise `TransportUnavailable` (retriable) when the queue
    cannot be reached. It is then unknown whether a send was stored: sending again may store it twice.

    Every method that names a topic raises `UnknownTopic` if there is none, and `QueueError` for a queue number that
    the topic does not have."""

    def create_topic(self, topic: str, queues: int) -> int:
        """Create the topic unless it exists; returns how many queues it has (maybe not ``queues``)."""

    def queue_count(self, topic: str) -> int:
        """How many queues the topic has; raises `UnknownTopic` if there is none."""

    def send(self, topic: str, bodies: Mapping[int, Sequence[bytes]]) -> Mapping[int, int]:
        """Append bodies to queues, each queue's in order; returns per queue the offset of its first one.

        The offsets of one queue's bodies are contiguous. Returns when the transport has stored them. Raises
        `UnknownTopic`, or `QueueError` for a queue number that the topic does not have, before anything is stored.
        A queue with no bodies is left out of the answer.
        """

    def pull(self, topic: str, offsets: Mapping[int, int], *, limit: int, wait: float) -> Sequence[PulledBatch]:
        """Messages at and after an offset, per queue, at most ``limit`` of each queue.

        With nothing to deliver it blocks up to ``wait`` seconds (long polling) and is answered the moment a message
        arrives in any of the queues. Queues without messages are left out. An offset whose message was deleted
        stands for the next one that is left. With no queues at all it returns at once. Raises `ValueError` for a
        ``limit`` below 1.
        """

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        """Per queue the offset that the next message will get."""

    def acquire(
        self, group: str, topic: str, queue: int, owner: str, lease: float, *, replaces: Collection[str] = ()
    ) -> Lease:
        """Take a queue for ``lease`` seconds, raising its epoch; raises `QueueHeld` while another owner's lease runs.

        An owner that acquires what it holds itself, or held until its lease ran out, gets a new epoch too (and no
        ``previous_owner``: that was itself). Owners in ``replaces`` are known to be dead: what they hold is taken at
        once, and they are named as ``previous_owner``.
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
        """What the group keeps of the queue's finished messages, the oldest first.

        Complete for who has acquired the queue: an owner before it can store none any more.
        """

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        """Per queue the committed offset (0 where nothing was committed)."""

    def trim(self, topic: str) -> None:
        """Delete what every group that ever acquired a queue of the topic has committed; may keep a little more.

        A topic that no group ever acquired keeps everything.
        """

    def retire_group(self, group: str, topic: str) -> None:
        """Let `trim` no longer wait for a group that does not exist any more. What it has committed stays, and a
        group that acquires a queue again counts again. Safe to call twice, and for a group that never was."""

    def open_inbox(self) -> Inbox: ...

    def reply(self, replies: Sequence[tuple[str, bytes]]) -> None:
        """Deliver (address, body) pairs. An address whose inbox is gone swallows its reply."""

    def close(self) -> None:
        """Let go of connections; a call under way may raise `TransportUnavailable`. Safe to call twice."""


def check_new_topic(topic: str, queues: int) -> None:
    """For drivers: raise `QueueError` for a topic that cannot be made."""
    if not topic or not topic.isprintable() or any(sign in topic for sign in "{} /"):
        raise QueueError(f"{topic!r} cannot name a topic; use letters, digits, '.', '-' and '_'")
    if queues < 1:
        raise QueueError(f"topic {topic!r} cannot have {queues!r} queues; give it at least one")


def check_queues(topic: str, queues: Collection[int], count: int) -> None:
    """For drivers: raise `QueueError` for a queue number that a topic of ``count`` queues does not have."""
    if queues and (min(queues) < 0 or max(queues) >= count):
        wrong = sorted(queue for queue in queues if not 0 <= queue < count)
        raise QueueError(f"topic {topic!r} has no queue {wrong[0]!r}; its queues are 0 to {count - 1}")


def check_limit(limit: int) -> None:
    """For drivers: raise `ValueError` for a ``limit`` of `Transport.pull` that asks for nothing."""
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit!r}")
