"""Consume topics with threads that pull, handle, retry and commit, so that each message is handled at least once.

puller t: pulls topic t (one thread per topic, also for the group's retries)
handler i: takes pulled messages from the worklist and calls the user's function
renewer t, member t: renew the leases of topic t; renew this consumer's membership
keeper: commits and trims on a timer; at the end it drains and releases
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from math import inf
from pathlib import Path

from enode_django.equeue.consumer.failing import FailureTopics
from enode_django.equeue.consumer.handling import Handling, lease_holds
from enode_django.equeue.consumer.subscription import Limits, Mode, Order, Subscription
from enode_django.equeue.consumer.timers import Timers
from enode_django.equeue.consumer.topic_consumer import TopicConsumer
from enode_django.equeue.consumer.worklist import Worklist
from enode_django.equeue.hosts import host_name
from enode_django.equeue.messages import Start
from enode_django.equeue.retrying import Message, RetryPolicy, retry_topic
from enode_django.equeue.threads import Threads
from enode_django.equeue.transport import Transport
from enode_django.exceptions import EnodeError, TopicDeleted, UnknownTopic

__all__ = ["Consumer", "Limits", "Message", "Mode", "Order", "RetryPolicy", "Start", "lease_holds"]

logger = logging.getLogger("enode_django.equeue")

BEATS = 5
"""Renewals within the duration of a lease."""
TRIM_EVERY = 60.0
WARN_EVERY = 10.0
ONE_WAIT = 3600.0
STOP_TIMEOUT = 30.0
BEYOND_STOP = 5.0
"""Seconds that `Consumer.stop` gives the keeper after its timeout, to commit and release."""
NOTHING_FAILED = 1.0
"""Seconds between checks for a topic of retries, which exists once a message of the group has failed."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds between attempts to reach the transport; each pause is twice the one before."""


class Consumer:
    """Calls ``handle`` for each message of ``topics``, at least once, in ``threads`` threads.

    A message whose handler raises an `Exception` is tried again after the delays of ``retry``, and becomes a dead
    letter after the last one; the messages behind it continue meanwhile. A long-running handler can call `lease_holds`.
    ``start`` is for queues from which the group has consumed nothing yet. A topic that does not exist is created with
    ``queues`` queues, or raises `UnknownTopic` if that is None; a deleted topic raises `TopicDeleted`.
    `Mode.BROADCASTING` needs a ``directory`` for the offsets. With ``trim`` the transport is asked once a minute to
    delete the messages that all groups of the topics have consumed.

    A consumer is started once. All methods may be called from any thread except its handlers' threads.

    For example::

        received = Queue()
        consumer = Consumer(transport, group="billing", topics=["orders"], handle=received.put, queues=4)
        consumer.start()
        Producer(transport).send("orders", key="ada", body=b"3 apples")
        assert received.get(timeout=30).body == b"3 apples"
        consumer.stop()
    """

    def __init__(
        self,
        transport: Transport,
        *,
        group: str,
        topics: Sequence[str],
        handle: Callable[[Message], object],
        mode: Mode = Mode.CLUSTERING,
        order: Order = Order.LINEAR,
        threads: int = 4,
        retry: RetryPolicy | None = None,
        start: Start | datetime = Start.FIRST,
        queues: int | None = None,
        limits: Limits | None = None,
        directory: str | Path | None = None,
        trim: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if threads < 1:
            raise ValueError(f"a consumer needs at least one thread, got {threads!r}")
        self.name = f"{host_name()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._transport = transport
        self._group = group
        self._retries = retry_topic(group)
        self._queues = queues
        self._limits = limits or Limits()
        self._trims = trim
        self._worklist = Worklist(linear=order is Order.LINEAR, clock=clock)
        retry = retry or RetryPolicy()
        subscription = Subscription(
            group=group,
            owner=self.name,
            topics=topics,
            mode=mode,
            start=start,
            limits=self._limits,
            delays=len(retry.delays),
            directory=directory,
        )
        self._consumers = subscription.consumers(transport, self._worklist)
        for_all = mode is Mode.BROADCASTING
        failures = FailureTopics(transport, group, retry, for_all=for_all, clock=clock)
        self._handling = Handling(handle, self._worklist, self._consumers, failures)
        self._thread_count = threads
        self._ending = threading.Event()
        self._error: BaseException | None = None
        self._end_by = inf
        self._is_drained = False
        self._next_warning = 0.0
        self._pullers, self._handlers, self._holders, self._keeper = (Threads(self._fail) for _ in range(4))
        self._ended = threading.Event()

    # -- called by the owner --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to consume, and return. Raises errors of the topics. If the transport cannot be reached, retry in the
        background; ``Start.LAST`` is then the end at the time when it is reached."""
        for topic, consumer in self._consumers.items():
            if topic != self._retries:
                self._once(partial(self._prepare, consumer))
        self._keeper.start(f"equeue-keeper-{self._group}", self._keep)
        for number in range(self._thread_count):
            self._handlers.start(f"equeue-handler-{self._group}-{number}", self._handling.run)
        for consumer in self._consumers.values():
            # Threads of their own: leases and sessions run out while another call waits for its answer.
            self._holders.start(f"equeue-renewer-{consumer.topic}", partial(self._beat, consumer, TopicConsumer.renew))
            self._holders.start(f"equeue-member-{consumer.topic}", partial(self._beat, consumer, TopicConsumer.join))
            self._pullers.start(f"equeue-puller-{consumer.topic}", partial(self._pull, consumer))

    def stop(self, timeout: float = STOP_TIMEOUT) -> bool:
        """Stop pulling, handle what was pulled, commit, and release the queues. Blocks up to ``timeout`` seconds and a
        few more. Return True if every pulled message was handled; the others are delivered again."""
        self._end_by = min(self._end_by, time.monotonic() + timeout)
        self._ending.set()
        self._keeper.ended_within(self._end_by + 2 * BEYOND_STOP - time.monotonic())
        return self._is_drained

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the consumer has stopped. Return False if it has not within ``timeout`` seconds. Raises the error
        that has ended it, if one has."""
        while not self._keeper.ended_within(ONE_WAIT if timeout is None else timeout):
            if timeout is not None:
                return False
        if self._error is not None:
            raise self._error
        return True

    def run(self) -> None:
        """Consume until another thread or a signal handler calls `stop`, or until Ctrl-C. Raises as `join` does."""
        self.start()
        try:
            self.join()
        finally:
            self.stop()

    # -- the pullers ----------------------------------------------------------------------------------------------

    def _pull(self, consumer: TopicConsumer) -> None:
        pause = FIRST_PAUSE
        while not self._ending.is_set():
            if self._once_of(consumer, self._pull_once):
                pause = FIRST_PAUSE
            else:
                self._ending.wait(pause)
                pause = min(LONGEST_PAUSE, pause * 2)

    def _pull_once(self, consumer: TopicConsumer) -> None:
        try:
            self._prepare(consumer)
        except UnknownTopic:
            if consumer.topic != self._retries:
                raise
            self._ending.wait(min(NOTHING_FAILED, self._limits.pull_wait))
        else:
            consumer.pull()

    def _prepare(self, consumer: TopicConsumer) -> None:
        try:
            consumer.prepare()
        except UnknownTopic as unknown:
            if self._queues is None or isinstance(unknown, TopicDeleted) or consumer.topic == self._retries:
                raise
            self._transport.create_topic(consumer.topic, self._queues)
            consumer.prepare()

    # -- renewers and members -------------------------------------------------------------------------------------

    def _beat(self, consumer: TopicConsumer, call: Callable[[TopicConsumer], None]) -> None:
        """Run until the keeper has ended: leases are held while the last messages are handled."""
        while not self._ended.wait(self._limits.lease / BEATS):
            self._once_of(consumer, call)

    # -- the keeper -----------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        timers = Timers(
            [(self._limits.commit_interval, partial(self._each, TopicConsumer.commit)), (TRIM_EVERY, self._trim)]
        )
        try:
            while not self._ending.wait(timers.until_due()):
                timers.run_due()
        except BaseException as error:
            self._fail(error)
        try:
            self._end(timers)
        finally:
            self._ended.set()

    def _trim(self) -> None:
        for consumer in self._consumers.values():
            if self._trims or consumer.topic == self._retries:
                self._once_of(consumer, TopicConsumer.trim)

    def _end(self, timers: Timers) -> None:
        """Handle what is due until `_end_by`, and commit meanwhile. Nothing new is pulled."""
        self._each(TopicConsumer.wake)
        pulls_ended = timers.tend_until(self._pullers.ended_within, self._give_up_at)
        self._each(TopicConsumer.leave)
        self._each(TopicConsumer.withdraw)
        is_idle = timers.tend_until(self._worklist.wait_idle, lambda: self._end_by)
        self._handling.close()
        handlers_ended = timers.tend_until(self._handlers.ended_within, self._give_up_at)
        self._is_drained = pulls_ended and is_idle and handlers_ended and self._error is None
        stuck = [*self._pullers.alive, *self._handlers.alive]
        if stuck:
            logger.error("threads that did not stop: %s", ", ".join(stuck))
        if pulls_ended:
            self._each(TopicConsumer.release)  # except queues of stuck handlers: their leases keep others out

    def _give_up_at(self) -> float:
        return self._end_by + BEYOND_STOP

    # -- called by all threads ------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """Note the error of a dying thread. The other threads end, and handle nothing more."""
        self._error = self._error or error
        self._end_by = min(self._end_by, time.monotonic())
        self._ending.set()
        self._handling.close()

    def _warn(self, error: EnodeError) -> None:
        """Log an error that several threads repeat while the transport is unreachable, but only now and then."""
        if time.monotonic() >= self._next_warning:
            self._next_warning = time.monotonic() + WARN_EVERY
            logger.warning("%s of group %s goes on trying: %s", self.name, self._group, error)

    def _each(self, call: Callable[[TopicConsumer], None]) -> None:
        for consumer in self._consumers.values():
            self._once_of(consumer, call)

    def _once_of(self, consumer: TopicConsumer, call: Callable[[TopicConsumer], None]) -> bool:
        """Call `_once`. Prepare the retries again if they were deleted with their group."""
        try:
            return self._once(partial(call, consumer))
        except UnknownTopic:
            if consumer.topic != self._retries:
                raise
            consumer.begin_anew()
            return False

    def _once(self, call: Callable[[], None]) -> bool:
        """Return True if the call has worked. Raises errors that are not retriable, except while the consumer ends."""
        try:
            call()
        except EnodeError as error:
            if not error.retriable and not self._ending.is_set():
                raise
            self._warn(error)
            return False
        return True
