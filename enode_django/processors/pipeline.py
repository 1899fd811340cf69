"""The threads of one command worker, and the data that they pass to each other.

    puller ─► command mailbox i ─► event mailbox j ─► publisher
                     ▲──────────────────┘
    keepers: renew leases, join the group, commit offsets, on timers
    pruner: deletes old refusals, and may wait for the store
    states: gives what command mailboxes have encoded to the shared states, if there are any

They pass lists of messages that no thread changes. `enode_django.processors.wiring` builds all of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from enode_django.commanding.publisher import EventPublisher
from enode_django.concurrency.in_flight import InFlightMarker
from enode_django.concurrency.threads import join_threads, join_until
from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.exceptions import EnodeError, TransportUnavailable
from enode_django.processors.exit_statuses import status_of_death
from enode_django.processors.housekeeping import Housekeeper
from enode_django.processors.mailbox_threads import CommandMailboxThread, EventMailboxThread, PublisherThread
from enode_django.processors.mailboxes import Mailboxes
from enode_django.processors.puller import Puller
from enode_django.processors.threads import start_worker_thread
from enode_django.repository.writing_behind import WriteBehind

logger = logging.getLogger("enode_django.worker")

JOIN_TIMEOUT = 5.0
"""Seconds for all of the puller and the keepers to end."""
LOOK_AGAIN = 0.2
"""Seconds after which `Pipeline.drain` looks again if nothing wakes it: a lease that runs out wakes nobody."""


class Pipeline:
    """A command worker's threads. Its main thread calls `start`, `drain` and `close`; the rest runs in the threads.

    ``markers`` has one for each command mailbox, where it notes which command it is handling. ``progress`` is set
    whenever the puller or the publisher has done something.
    """

    def __init__(
        self,
        consumer: QueueConsumer,
        mailboxes: Mailboxes,
        publisher: EventPublisher,
        *,
        puller: Puller,
        commands: Sequence[CommandMailboxThread],
        events: Sequence[EventMailboxThread],
        publishing: PublisherThread,
        keepers: Mapping[str, Housekeeper],
        pruner: Housekeeper,
        states: WriteBehind | None,
        markers: Sequence[InFlightMarker],
        progress: threading.Event,
    ) -> None:
        self.consumer = consumer
        self.mailboxes = mailboxes
        self.puller = puller
        self._publisher = publisher
        self._commands = commands
        self._events = events
        self._publishing = publishing
        self._keepers = keepers
        self._pruner = pruner
        self._states = states
        self._markers = markers
        self._progress = progress
        self._stopping = puller.stopping
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        runs: list[tuple[str, Callable[[], None]]] = [(self._publishing.name, self._publishing.run)]
        runs += [(one.name, one.run) for one in self._events]
        runs += [("enode-puller", self.puller.run)]
        keepers = {**self._keepers, "enode-pruner": self._pruner}
        runs += [(name, partial(keeper.run, self._stopping)) for name, keeper in keepers.items()]
        if self._states is not None:
            runs += [(self._states.name, self._states.run)]
        self._threads = [start_worker_thread(name, run) for name, run in runs]
        for one, marker in zip(self._commands, self._markers, strict=True):
            self._threads.append(start_worker_thread(one.name, one.run, partial(status_of_death, marker)))

    def drain(self, timeout: float) -> bool:
        """Stop pulling, finish what was pulled, release the queues. Return True if all of it was done in time.

        Commands of an unknown type, and those that wait to be handled again, stay in the queue.
        """
        self._leave()
        deadline = time.monotonic() + timeout
        drained = self._wait_until(self._is_drained, deadline)
        self._stopping.set()
        self._let_nobody_wait()
        join_until(
            time.monotonic() + JOIN_TIMEOUT,
            [thread for thread in self._threads if thread.name in ("enode-puller", *self._keepers)],
        )
        try:
            self.consumer.abandon()
        except TransportUnavailable as error:
            logger.warning("%s; the queues are kept until their leases end", error)
            return False
        self._wait_until(lambda: not self._publisher.waiting, deadline)
        return drained

    def _wait_until(self, is_done: Callable[[], bool], deadline: float) -> bool:
        while True:
            self._progress.clear()  # before the check, so that progress during the check ends the wait
            if is_done():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._progress.wait(min(left, LOOK_AGAIN))

    def _is_drained(self) -> bool:
        # Checked first: until the puller has noticed the end, it may pull messages that are not counted yet.
        if not self.consumer.has_ended:
            return False
        windows = self.consumer.open_windows
        return sum(window.unfinished for window in windows) <= sum(self.puller.left_in(window) for window in windows)

    def _leave(self) -> None:
        try:
            self.consumer.leave()
        except EnodeError as error:
            logger.warning("%s; the group learns when the session ends that this worker has left", error)

    def close(self, timeout: float) -> None:
        """End the threads of a drained pipeline, waiting up to ``timeout`` seconds for each."""
        self._let_nobody_wait()
        for box in self.mailboxes:
            box.close()
        if self._states is not None:
            join_threads([thread for thread in self._threads if thread.name != self._states.name], timeout)
            self._states.close()
        join_threads(self._threads, timeout)

    def _let_nobody_wait(self) -> None:
        self._progress.set()
        self.mailboxes.close_rooms()
