"""Set messages aside on the queue when their handler has failed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from enode_django.equeue.refusals import check_new_topic
from enode_django.equeue.retrying import (
    Failed,
    Message,
    RetryPolicy,
    dead_letter_topic,
    encode_failed,
    retry_queue,
    retry_topic,
)
from enode_django.equeue.transport import Transport, with_reserve
from enode_django.exceptions import EnodeError, QueueError, UnknownTopic

logger = logging.getLogger("enode_django.equeue")

UNREACHABLE_DELAY = 1.0
"""Seconds before a message is handled again that could not be sent to the dead letters."""


class FailureTopics:
    """A group's topics of retries and of dead letters, created when they are first needed. Thread-safe.

    ``for_all``: each consumer gets all messages, so there is no topic of retries.
    """

    def __init__(
        self, transport: Transport, group: str, policy: RetryPolicy, *, for_all: bool, clock: Callable[[], float]
    ) -> None:
        self._transport = with_reserve(transport)
        self._policy = policy
        self._for_all = for_all
        self._clock = clock
        self._retries = retry_topic(group)
        self._dead_letters = dead_letter_topic(group)
        self._made: dict[str, int] = {}
        self._making = threading.Lock()
        check_new_topic(self._retries, 1)

    def set_aside(self, message: Message, error: str, *, for_good: bool = False) -> float | None:
        """Send a failed message to the retries, or to the dead letters after the last delay and if ``for_good``.
        Return None if it was sent, else the time (in seconds since 1970) to handle it again here."""
        now = self._clock()
        delay = None if for_good else self._policy.delay_after(message.attempt)
        if delay is not None and self._for_all:
            return now + delay
        failed = Failed(message, error, now, now + (delay or 0.0), self._for_all)
        try:
            if delay is None:
                self._send(self._dead_letters, 0, failed)
            else:
                self._send(self._retries, retry_queue(message, len(self._policy.delays)), failed)
        except EnodeError as unreachable:
            # After any error only this process has the message.
            logger.error("a failed message stays here until it can be set aside: %s", unreachable)
            return now + (UNREACHABLE_DELAY if delay is None else delay)
        return None

    def _send(self, topic: str, queue: int, failed: Failed) -> None:
        self._make(topic, queue, failed.message.topic)
        try:
            self._transport.send(topic, {queue: [encode_failed(failed)]})
        except QueueError as error:
            if not error.retriable:  # the topic may be deleted, or made again with fewer queues
                self._made.pop(topic, None)
            raise

    def _make(self, topic: str, queue: int, origin: str) -> None:
        """Ensure that the topic has the queue. Queues of retries are made for all queues of ``origin`` at once."""
        with self._making:
            if queue < self._made.get(topic, 0):
                return
            queues = queue + 1
            if topic == self._retries:
                with suppress(UnknownTopic):  # the topic was deleted, but its message is still here
                    queues = max(queues, self._transport.queue_count(origin) * len(self._policy.delays))
            has = self._transport.create_topic(topic, queues)
            if has < queues:  # no key moves: a message's queue and its delay select its queue here
                has = self._transport.add_queues(topic, queues, unordered=True)
            self._made[topic] = has
