"""The thread that pulls commands and gives them to the command mailboxes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, MutableMapping, Sequence
from weakref import WeakKeyDictionary

from enode_django.commanding.command_processor import CommandProcessor
from enode_django.commanding.intake import Intake
from enode_django.commanding.remembered_answers import RememberedAnswers
from enode_django.concurrency.backoff import delays, until_it_works
from enode_django.concurrency.outages import Attempts
from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventstore.base import EventStore
from enode_django.exceptions import StoreUnavailable, TransportUnavailable
from enode_django.processors.mail import Taken
from enode_django.processors.mailboxes import Mailboxes
from enode_django.processors.measuring import BatchMeter
from enode_django.processors.threads import PULL_WAIT

logger = logging.getLogger("enode_django.worker")


class Puller:
    """Pulls commands; `run` is the thread. ``progress`` is set when the publisher or the puller has done something."""

    def __init__(
        self,
        consumer: QueueConsumer,
        intake: Intake,
        remembered: RememberedAnswers,
        mailboxes: Mailboxes,
        processors: Sequence[CommandProcessor],
        store: EventStore,
        *,
        backlogs: ShardBacklogs,
        meter: BatchMeter,
        max_batch: int,
        progress: threading.Event,
    ) -> None:
        self._consumer = consumer
        self._intake = intake
        self._remembered = remembered
        self._mailboxes = mailboxes
        self._processors = processors
        self._store = store
        self._backlogs = backlogs
        self._meter = meter
        self._max_batch = max_batch
        self._progress = progress
        self.stopping = threading.Event()

    def run(self) -> None:
        waits, attempts = delays(), Attempts()
        while not self.stopping.is_set():
            try:
                self._pull_once()
                waits = delays()
                attempts.worked()
            except (TransportUnavailable, StoreUnavailable) as error:
                attempts.failed(error)
                self.stopping.wait(next(waits))
            self._progress.set()

    def _pull_once(self) -> None:
        for window, previous_owner, deaths in self._consumer.acquire_missing():
            self._intake.suspect(window.queue, deaths)
            if previous_owner is not None:
                logger.warning("took %s/%d from %s", window.topic, window.queue, previous_owner)
            for box in self._mailboxes.commands:
                box.post(Taken(window.queue, previous_owner))
        # Commands of an unknown type are left to the next owner, which may know the type. So are commands that wait for
        # their next attempt.
        self._consumer.release_drained(self.left_in)
        self._store.place_of("")  # raises while the shard map is unknown: nothing must be pulled then
        self._mailboxes.post_received(self._intake.retry())
        paused = self.paused()
        if paused and paused >= self._consumer.owned:
            self._wait_for_room()
            return
        # Delayed commands become due by the clock, and paused queues go on when there is room.
        wait = PULL_WAIT if paused or self._intake.delayed else self._consumer.pull_wait
        pulled = self._consumer.pull(self._max_batch, wait, without=paused)
        if pulled:
            until_it_works(self._remembered.heed_route)
        for window, offsets, bodies in pulled:
            self._meter.pulled(window, offsets)
            received = self._intake.receive(window, offsets, bodies)
            self._backlogs.note(window, self._mailboxes.post_received(received))

    def _wait_for_room(self) -> None:
        self._progress.clear()
        if self.paused() >= self._consumer.owned:
            self._progress.wait(PULL_WAIT)

    def left_in(self, window: OffsetWindow) -> int:
        """Return how many commands of this lease are delayed or postponed. Any thread may call it."""
        return self._intake.delayed_in(window) + sum(one.postponed_in(window) for one in self._processors)

    def paused(self) -> frozenset[int]:
        """Return the queues that are not pulled from, because too many of their commands are unfinished."""
        return self._backlogs.paused(self._consumer.open_windows)


class ShardBacklogs:
    """Limits the unfinished commands of each shard to its share of ``max_unfinished``; a large one counts for several.
    Beyond it, the queues that bring the shard more pause, and the others go on. Used by the pulling thread.

    A queue with commands of several shards counts for each: it is not known which of them are unfinished.
    """

    def __init__(self, shards: int, max_unfinished: int) -> None:
        self._share = max(1, max_unfinished // shards)
        self._served: MutableMapping[OffsetWindow, set[int]] = WeakKeyDictionary()

    def note(self, window: OffsetWindow, places: Collection[int]) -> None:
        """Note that the window has brought commands of the shards at these indexes."""
        if places:
            self._served.setdefault(window, set()).update(places)

    def paused(self, windows: Iterable[OffsetWindow]) -> frozenset[int]:
        """Return the queues of these windows that pause."""
        unfinished: dict[int, int] = {}
        windows = list(windows)
        for window in windows:
            for place in self._served.get(window, ()):
                unfinished[place] = unfinished.get(place, 0) + window.weight
        full = {place for place, count in unfinished.items() if count >= self._share}
        return frozenset(
            window.queue
            for window in windows
            # A queue that reaches the share by itself may have brought only commands that wait for a newer worker.
            if window.weight >= self._share or not full.isdisjoint(self._served.get(window, ()))
        )
