"""The port between the queue's clients and what stores the messages.

A topic has queues numbered 0 … n-1; a queue is an ordered list of messages with offsets 0, 1, 2 …. Consumer groups
are independent of one another: each has its own leases and committed offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from enode_django.equeue.messages import Commit, Lease, PulledBatch


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
    cannot be reached. It is then unknown whether a send was stored: sending again may store it twice."""

    def create_topic(self, topic: str, queues: int) -> int:
        """Create the topic unless it exists; returns how many queues it has (maybe not ``queues``)."""

    def queue_count(self, topic: str) -> int:
        """How many queues the topic has; raises `UnknownTopic` if there is none."""

    def send(self, topic: str, bodies: Mapping[int, Sequence[bytes]]) -> Mapping[int, int]:
        """Append bodies to queues, each queue's in order; returns per queue the offset of its first one.

        The offsets of one queue's bodies are contiguous. Returns when the transport has stored them. Raises
        `UnknownTopic`, or `QueueError` for a queue number that the topic does not have, before anything is stored.
        """

    def pull(self, topic: str, offsets: Mapping[int, int], *, limit: int, wait: float) -> Sequence[PulledBatch]:
        """Messages at and after an offset, per queue, at most ``limit`` of each queue.

        With nothing to deliver it blocks up to ``wait`` seconds (long polling) and is answered the moment a message
        arrives in any of the queues. Queues without messages are left out.
        """

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        """Per queue the offset that the next message will get."""

    def acquire(self, group: str, topic: str, queue: int, owner: str, lease: float) -> Lease:
        """Take a queue for ``lease`` seconds, raising its epoch; raises `QueueHeld` while another owner's lease runs.

        An owner that acquires what it holds itself gets a new epoch too.
        """

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        """Prolong leases by ``lease`` seconds from now; returns the queues that were lost (another epoch rules).

        A lease that ran out and was taken by nobody is prolonged.
        """

    def release(self, group: str, topic: str, owner: str, epochs: Mapping[int, int]) -> None:
        """Give queues back. A queue whose epoch has moved on is left alone."""

    def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> AbstractSet[int]:
        """Store consume offsets; returns the queues refused because their epoch is stale. Offsets never go back."""

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        """Per queue the committed offset (0 where nothing was committed)."""

    def trim(self, topic: str) -> None:
        """Delete what every group that ever acquired a queue of the topic has committed; may keep a little more."""

    def open_inbox(self) -> Inbox: ...

    def reply(self, replies: Sequence[tuple[str, bytes]]) -> None:
        """Deliver (address, body) pairs. An address whose inbox is gone swallows its reply."""

    def close(self) -> None:
        """Let go of connections. Safe to call twice."""
