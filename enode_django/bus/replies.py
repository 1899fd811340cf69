"""Waiting for answers and notices: one inbox and one thread per process, opened when first needed."""

from __future__ import annotations

import logging
import threading

from enode_django.bus.notices import NOTICE, Notice, decode_notice
from enode_django.bus.results import CommandResult, decode_result
from enode_django.bus.waiting import AwaitedSubscribers, Wait
from enode_django.concurrency.backoff import until_it_works
from enode_django.concurrency.threads import join_threads, start_thread
from enode_django.equeue.transport import Inbox, Transport
from enode_django.eventstore.base import CommandKey
from enode_django.exceptions import EnodeError, MessageError, TransportUnavailable

logger = logging.getLogger("enode_django.commands")

RECEIVE_WAIT = 5.0


class Replies:
    """The expected answers and notices of this process. Thread-safe. A command is named by both its ids: one command id
    may be used for several aggregates."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._opening = threading.Lock()  # a lock of its own: opening takes time, and `expect` must not wait for it
        self._lock = threading.Lock()
        self._inbox: Inbox | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._expected: dict[CommandKey, list[Wait]] = {}

    @property
    def address(self) -> str:
        """The address for answers. Blocks the first time, to open the inbox. Raises `TransportUnavailable`."""
        with self._opening:
            if self._inbox is None:
                self._inbox = self._transport.open_inbox()
            if self._thread is None or not self._thread.is_alive():
                # Also after an error that ended the thread: otherwise no answer would ever arrive again.
                self._thread = start_thread("enode-replies", self._receive_all)
            return self._inbox.address

    def expect(self, key: CommandKey, awaited: AwaitedSubscribers | None = None) -> Wait:
        """Expect the answer to a command. Call this before the command is sent, and `forget` afterwards in any case."""
        wait = Wait(awaited)
        with self._lock:
            self._expected.setdefault(key, []).append(wait)
        return wait

    def forget(self, key: CommandKey, wait: Wait) -> None:
        """Stop waiting. Safe to call when everything has come. Messages that nobody waits for are dropped."""
        with self._lock:
            waits = self._expected.get(key, [])
            if wait in waits:
                waits.remove(wait)
            if not waits:
                self._expected.pop(key, None)

    def _receive_all(self) -> None:
        inbox = self._inbox
        assert inbox is not None
        while not self._closed:
            until_it_works(lambda: self._receive(inbox))

    def _receive(self, inbox: Inbox) -> None:
        try:
            bodies = inbox.receive(RECEIVE_WAIT)
        except EnodeError:
            if self._closed:
                return
            raise
        if self._closed:
            return
        for body in bodies:
            try:
                self._hand_over(decode_reply(body))
            except MessageError as error:
                logger.error("an answer cannot be read: %s", error)

    def _hand_over(self, reply: CommandResult | Notice) -> None:
        with self._lock:
            waits = list(self._expected.get((reply.command_id, reply.aggregate_root_id), ()))
        for wait in waits:
            if isinstance(reply, Notice):
                wait.take_notice(reply)
            else:
                wait.take_answer(reply)

    def close(self) -> None:
        """Close the inbox, after up to a second for its thread to end. An unreachable inbox is left to expire."""
        self._closed = True
        inbox, thread = self._inbox, self._thread
        if inbox is None or thread is None:
            return
        try:
            self._transport.reply([(inbox.address, b"")])  # wakes the thread
            join_threads([thread], 1.0)
            inbox.close()
        except TransportUnavailable as error:
            logger.debug("inbox %s is not closed: %s", inbox.address, error)


def decode_reply(body: bytes) -> CommandResult | Notice:
    """Decode a message of an inbox. Raises `MalformedMessage`."""
    return decode_notice(body) if body.startswith(NOTICE) else decode_result(body)
