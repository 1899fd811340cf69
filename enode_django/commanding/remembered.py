"""Answers that left no row in the store: the queue remembers them, so that whoever consumes it gives them again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from enode_django.commanding.results import CommandResult, decode_result, encode_receipt
from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventstore.base import CommandKey
from enode_django.exceptions import MalformedMessage

logger = logging.getLogger("enode_django.commands")


class _OfLease(NamedTuple):
    window: OffsetWindow
    answers: dict[CommandKey, bytes]


class RememberedAnswers:
    """The newest ``limit`` answers of each queue that this worker owns; with 0 nothing is remembered.

    The pulling thread calls `of` for every window before anything of it is handed on, and `find`; the publishing
    thread calls `add`. ``load`` tells what the transport has kept; it may block, and is called once a lease.
    """

    def __init__(self, limit: int, load: Callable[[OffsetWindow], Sequence[bytes]]) -> None:
        self.are_any = False
        """Whether any queue has some: hardly any command is asked for then."""
        self._limit = limit
        self._load = load
        self._leases: dict[int, _OfLease] = {}

    def of(self, window: OffsetWindow) -> Mapping[CommandKey, bytes]:
        """The encoded answers of a window's queue, the oldest first. Blocks the first time."""
        lease = self._leases.get(window.queue)
        if lease is None or lease.window is not window:
            receipts = self._load(window)[-self._limit :] if self._limit else ()
            lease = _OfLease(window, _by_command(receipts))
            self.are_any = self.are_any or bool(receipts)
            others = {queue: other for queue, other in self._leases.items() if not other.window.closed}
            self._leases = {**others, window.queue: lease}
        return lease.answers

    def find(self, window: OffsetWindow, key: CommandKey) -> CommandResult | None:
        """The answer that a command got before."""
        body = self.of(window).get(key)
        return decode_result(body) if body is not None else None

    def add(self, window: OffsetWindow, offset: int, answer: CommandResult) -> None:
        """Remember an answer that is about to be given to the message at ``offset``, which is not finished yet.

        What was remembered for the command already stays. Of a queue that was lost nothing is remembered: its new
        owner decides.
        """
        lease = self._leases.get(window.queue)
        key = (answer.command_id, answer.aggregate_root_id)
        if not self._limit or lease is None or lease.window is not window or not all(key) or key in lease.answers:
            return
        body = encode_receipt(answer)
        window.keep(offset, body)
        self.are_any = True
        lease.answers[key] = body
        if len(lease.answers) > self._limit:
            del lease.answers[next(iter(lease.answers))]


def _by_command(receipts: Sequence[bytes]) -> dict[CommandKey, bytes]:
    answers: dict[CommandKey, bytes] = {}
    for body in receipts:
        try:
            answer = decode_result(body)
        except MalformedMessage as error:
            logger.error("a remembered answer cannot be read: %s", error)
        else:
            answers.setdefault((answer.command_id, answer.aggregate_root_id), body)
    return answers
