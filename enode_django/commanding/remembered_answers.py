"""Answers without a row in the store. The queue remembers them, so that its next consumer gives them again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from enode_django.bus.results import CommandResult, Receipt, decode_receipt, encode_receipt
from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventstore.base import CommandKey
from enode_django.exceptions import MalformedMessage

logger = logging.getLogger("enode_django.commands")


class _OfLease(NamedTuple):
    window: OffsetWindow
    answers: dict[CommandKey, bytes]


_FIRST_ROUTE = 1
"""The version of a topic's route until its queues are changed."""


class EarlierAnswers(Protocol):
    """Access to answers that were given while the topic had another route. Both methods block."""

    def route_version(self) -> int: ...

    def receipts_of_all(self) -> Iterable[bytes]:
        """Return the receipts of every queue of the topic, hidden queues included."""


class RememberedAnswers:
    """The newest ``limit`` answers of each queue that this worker owns; none if ``limit`` is 0.

    The pulling thread calls `heed_route` after each pull, `of` for every window before any of its messages is passed
    on, and `find`; the publishing thread calls `add`. ``load`` returns what the transport has kept; it may block, and
    is called once per lease. ``earlier`` is None if the queues of the topic never change.
    """

    def __init__(
        self,
        limit: int,
        load: Callable[[OffsetWindow], Sequence[bytes]],
        earlier: EarlierAnswers | None = None,
    ) -> None:
        self.are_any = False
        """True if any queue has remembered answers. Usually none has, and commands need not be looked up."""
        self._limit = limit
        self._load = load
        self._leases: dict[int, _OfLease] = {}
        self._earlier = earlier
        self._route = _FIRST_ROUTE
        self._of_all: Mapping[CommandKey, bytes] = {}

    def heed_route(self) -> None:
        """Load the answers given in other queues, if queues were added, hidden or shown since the last call.

        All queues were finished when the new route began, so every earlier answer has its receipt. A message sent by
        the new route is pulled after it began. Blocks; raises what ``earlier`` raises.
        """
        if not self._limit or self._earlier is None or (version := self._earlier.route_version()) == self._route:
            return
        self._of_all = _by_command(self._earlier.receipts_of_all())
        self.are_any = self.are_any or bool(self._of_all)
        self._route = version

    def of(self, window: OffsetWindow) -> Mapping[CommandKey, bytes]:
        """Return the encoded answers of a window's queue, the oldest first. Block on the first call for a lease."""
        lease = self._leases.get(window.queue)
        if lease is None or lease.window is not window:
            receipts = self._load(window)[-self._limit :] if self._limit else ()
            lease = _OfLease(window, _by_command(receipts))
            self.are_any = self.are_any or bool(receipts)
            others = {queue: other for queue, other in self._leases.items() if not other.window.closed}
            self._leases = {**others, window.queue: lease}
        return lease.answers

    def find(self, window: OffsetWindow, key: CommandKey) -> Receipt | None:
        """Return the receipt of the answer that a command got before, or None."""
        body = self.of(window).get(key) or self._of_all.get(key)
        return decode_receipt(body) if body is not None else None

    def add(self, window: OffsetWindow, offset: int, answer: CommandResult, content: str = "") -> None:
        """Remember the answer that is about to be given to the message at ``offset``, which is not finished yet.
        ``content`` is its `identity.content_of`.

        An answer remembered earlier for the command stays. A queue that was lost remembers nothing: its new owner
        decides.
        """
        lease = self._leases.get(window.queue)
        key = (answer.command_id, answer.aggregate_root_id)
        if not self._limit or lease is None or lease.window is not window or not all(key) or key in lease.answers:
            return
        body = encode_receipt(answer, content)
        window.keep(offset, body)
        self.are_any = True
        lease.answers[key] = body
        if len(lease.answers) > self._limit:
            del lease.answers[next(iter(lease.answers))]


def _by_command(receipts: Iterable[bytes]) -> dict[CommandKey, bytes]:
    answers: dict[CommandKey, bytes] = {}
    for body in receipts:
        try:
            answer, _ = decode_receipt(body)
        except MalformedMessage as error:
            logger.error("a remembered answer cannot be read: %s", error)
        else:
            answers.setdefault((answer.command_id, answer.aggregate_root_id), body)
    return answers
