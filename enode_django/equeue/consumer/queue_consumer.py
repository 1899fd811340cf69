"""Consume the queues that a process is assigned: leases, windows, pulling, committing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from enode_django.equeue.clocks import boot_time
from enode_django.equeue.messages import Commit, PulledBatch, Start
from enode_django.equeue.offsets import OffsetWindow
from enode_django.equeue.transport import LONG_POLL, Transport
from enode_django.equeue.waking import PullingThread
from enode_django.exceptions import PartlyUnavailable, QueueHeld, TransportUnavailable, UnknownQueue

logger = logging.getLogger("enode_django.equeue")

RETRY_ACQUIRE = 0.1
"""Seconds between attempts to acquire a queue that another worker is about to release."""
RETRY_UNAVAILABLE = 1.0
"""Seconds between attempts to acquire a queue of an unusable server, while others are owned or being released."""
NOTHING_TO_PULL = 0.05
"""Seconds that `QueueConsumer.pull` takes while it may pull from none of its queues."""
LOOK_AGAIN = 0.2
"""Seconds of one pull of a thread that has to check by itself whether its queues have changed."""
WORKING_PULL = 1.0
"""Seconds of one pull of a thread that is woken for changes, while some of its messages are unfinished: a queue with a
full window is left out until the next pull."""


class PulledMessages(NamedTuple):
    window: OffsetWindow
    offsets: list[int]
    bodies: list[bytes]


class Acquired(NamedTuple):
    """``previous_owner`` is set when that owner's lease ran out: it may be alive, and hold database sessions.
    ``deaths`` counts, by the offset of a message, the owners that died while they worked on it."""

    window: OffsetWindow
    previous_owner: str | None
    deaths: Mapping[int, int]


class QueueConsumer:
    """One consumer group's share of one topic in one process.

    `join` fetches the queues to own from the group, or `assign` sets them. The pulling thread then calls
    `acquire_missing` and `pull`; another thread calls `join`, `renew` and `commit` on a timer. A queue that is no
    longer assigned is drained (its messages are finished) and released by `release_drained`. Errors of the transport
    are raised, except `UnknownQueue` if a topic was made again with fewer queues: the missing ones are lost.

    In the window's ``weight`` a message counts 1, plus 1 for each full ``heavy`` bytes (None: never). The transport
    keeps the newest ``keep_receipts`` of each queue's receipts. ``start`` is for queues that the group never had.
    ``long_poll``: seconds that a pull may wait while there is nothing else to do.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        group: str,
        topic: str,
        owner: str,
        lease: float,
        max_held: int = 100_000,
        heavy: int | None = None,
        keep_receipts: int = 0,
        start: Start | Callable[[int], int] = Start.FIRST,
        long_poll: float = LONG_POLL,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self._transport = transport
        self.group = group
        self._topic = topic
        self._owner = owner
        self._lease = lease
        self._max_held = max_held
        self._heavy = heavy
        self._keep_receipts = keep_receipts
        self._clock = clock
        self._assigned: frozenset[int] = frozenset()
        self._start = start
        self._has_left = False
        self.has_ended = False
        """True when the pulling thread has noticed `leave`: it pulls no more."""
        self._joining = threading.Lock()
        self._long_poll = long_poll
        self._puller = PullingThread(transport)
        self._windows: dict[int, OffsetWindow] = {}
        self._draining: list[OffsetWindow] = []
        self._releasing: Sequence[OffsetWindow] = ()
        self._routes: set[int | None] = set()
        self._next_try = 0.0
        self._warned: dict[int, float] = {}
        self._committing = threading.Lock()

    def assign(self, queues: Iterable[int]) -> None:
        """Set the queues to own from now on."""
        assigned = frozenset(queues)
        has_changed = assigned != self._assigned
        self._assigned = assigned
        self._next_try = 0.0
        if has_changed:
            self.wake()

    def join(self) -> None:
        """Join the group, or stay a member, and own the queues that it assigns; do nothing after `leave`. To be called
        repeatedly, several times per lease."""
        if self._has_left:
            return
        membership = self._transport.join(self.group, self._topic, self._owner, self._lease)
        with self._joining:
            if not self._has_left:
                self.assign(membership.queues)
                return
        self._transport.leave(self.group, self._topic, self._owner)  # `leave` was called meanwhile

    def leave(self) -> None:
        """Own nothing from now on, and leave the group. Other members get the queues once they are released."""
        with self._joining:
            self.assign(())
            self._has_left = True  # last: a thread that sees it owns nothing more
        self.wake()
        self._transport.leave(self.group, self._topic, self._owner)

    def wake(self) -> None:
        """Make the pulling thread return from its pull; without a pull, the next one does not wait."""
        self._puller.wake()

    @property
    def pull_wait(self) -> float:
        """Return the seconds that the next pull may wait: few while queues have to be taken or released, and if the
        transport cannot wake the pulling thread when its queues change."""
        if not self._is_settled or not self._puller.can_be_woken:
            return min(self._long_poll, LOOK_AGAIN)
        is_working = any(window.held for window in self._all_windows())
        return min(self._long_poll, WORKING_PULL) if is_working else self._long_poll

    @property
    def _is_settled(self) -> bool:
        return not self._has_left and not self._draining and self._assigned == self._windows.keys()

    @property
    def owned(self) -> frozenset[int]:
        return frozenset(self._windows)

    @property
    def open_windows(self) -> list[OffsetWindow]:
        """Return the windows that may get messages or have unfinished ones."""
        return [window for window in self._all_windows() if not window.closed]

    @property
    def is_idle(self) -> bool:
        """Return True if no queue is owned or being drained."""
        return not self._windows and not self._draining

    @property
    def unfinished(self) -> int:
        """Return the number of unfinished messages in all open windows."""
        return sum(window.unfinished for window in self.open_windows)

    def _all_windows(self) -> list[OffsetWindow]:
        return [*self._windows.values(), *self._draining]

    def acquire_missing(self) -> list[Acquired]:
        """Acquire assigned queues that are not owned yet, unless another owner holds them. Called by the pulling
        thread. Raises `TransportUnavailable` only if there is no queue to pull from or to release meanwhile."""
        has_left = self._has_left
        for queue, window in list(self._windows.items()):
            if window.closed:
                del self._windows[queue]
            elif queue not in self._assigned:
                # In this order: other threads always find the window in at least one place.
                self._draining.append(window)
                del self._windows[queue]
        self.has_ended = has_left
        missing = self._assigned - self._windows.keys() - {window.queue for window in self._draining}
        if not missing or self._clock() < self._next_try:
            return []
        self._next_try = self._clock() + RETRY_ACQUIRE
        acquired, failure = self._acquire_all(missing)
        if failure is not None:
            if self.is_idle:
                raise failure
            self._next_try = self._clock() + RETRY_UNAVAILABLE  # owned queues are pulled or released meanwhile
        if acquired:
            queues = ", ".join(str(one.window.queue) for one in acquired)
            logger.info("acquired %s/%s for %s", self._topic, queues, self.group)
        return acquired

    def _acquire_all(self, missing: Collection[int]) -> tuple[list[Acquired], TransportUnavailable | None]:
        """Return the acquired queues, and the error of the others, which are left to the next call."""
        acquired: list[Acquired] = []
        failure: TransportUnavailable | None = None
        for queue in sorted(missing):
            try:
                with self._losing_gone():
                    acquired += filter(None, [self._acquire(queue)])
            except PartlyUnavailable as error:
                failure = error  # other queues lie elsewhere
            except TransportUnavailable as error:
                return acquired, error
        return acquired, failure

    def _acquire(self, queue: int) -> Acquired | None:
        started = self._clock()
        try:
            start = self._start if isinstance(self._start, Start) else self._start(queue)
            lease = self._transport.acquire(self.group, self._topic, queue, self._owner, self._lease, start=start)
        except QueueHeld as held:
            self._warn(queue, held)
            return None
        window = OffsetWindow(
            self._topic,
            queue,
            epoch=lease.epoch,
            committed=lease.committed,
            deadline=started + self._lease,
            backlog_end=lease.end,
            clock=self._clock,
        )
        self._windows[queue] = window
        self._warned.pop(queue, None)
        logger.debug(
            "%s/%d is ours for %s from offset %d on, epoch %d",
            *(self._topic, queue, self.group, lease.committed, lease.epoch),
        )
        return Acquired(window, lease.previous_owner, lease.deaths)

    def _warn(self, queue: int, held: QueueHeld) -> None:
        """Warn once per lease, and only if it lasts: a hand-over takes a moment."""
        now = self._clock()
        if now < self._warned.setdefault(queue, now + self._lease / 2):
            return
        self._warned[queue] = now + self._lease
        logger.warning(
            "%s/%d is to be ours, but %s holds it for another %.1f s; does it not drain?",
            self._topic,
            queue,
            held.owner,
            held.seconds,
        )

    def pull(self, limit: int, wait: float, *, without: Collection[int] = ()) -> list[PulledMessages]:
        """Return new messages of the owned queues, ``without`` some; block up to ``wait`` seconds. Called by the
        pulling thread.

        A queue whose window holds ``max_held`` messages is left out until its first unfinished one is finished.
        """
        wait = self._puller.wait_of(wait)
        windows = {queue: window for queue, window in self._windows.items() if not window.closed}
        offsets = {
            queue: window.next_offset
            for queue, window in windows.items()
            if window.held < self._max_held and queue not in without
        }
        if not offsets:
            # A thread that owns nothing, and shall own nothing, is woken when that changes.
            self._puller.rest(wait if self._is_settled and not windows else min(wait, NOTHING_TO_PULL))
            return []
        pulled: list[PulledMessages] = []
        batches: Sequence[PulledBatch] = ()
        try:
            batches = self._transport.pull(self._topic, offsets, limit=limit, wait=wait)
        except UnknownQueue:
            self._lose_gone()
            self._puller.rest(min(wait, NOTHING_TO_PULL))  # not at all if queues were lost, which has woken it
        self._routes = {batch.route for batch in batches}
        for batch in batches:
            window = windows[batch.queue]
            if window.add(batch.offsets, self._extra(batch)):
                pulled.append(PulledMessages(window, list(batch.offsets), list(batch.bodies)))
        return pulled

    def _extra(self, batch: PulledBatch) -> dict[int, int]:
        heavy = self._heavy
        if heavy is None or max(map(len, batch.bodies)) <= heavy:
            return {}
        extra = zip(batch.offsets, (len(body) // heavy for body in batch.bodies), strict=True)
        return {offset: more for offset, more in extra if more}

    def renew(self) -> None:
        """Prolong all leases; close the windows of lost queues."""
        open_windows = {window.queue: window for window in self.open_windows}
        if not open_windows:
            return
        started = self._clock()
        epochs = {queue: window.epoch for queue, window in open_windows.items()}
        with self._losing_gone():
            try:
                lost = self._transport.renew(self.group, self._topic, self._owner, epochs, self._lease)
            except PartlyUnavailable as some:
                self._renewed(open_windows, some.answers, started)
                raise
            self._renewed(open_windows, {queue: queue not in lost for queue in epochs}, started)

    def _renewed(self, windows: Mapping[int, OffsetWindow], answers: Mapping[int, bool], started: float) -> None:
        for queue, is_ours in answers.items():
            if is_ours:
                windows[queue].deadline = started + self._lease
            else:
                self._lose(windows[queue])

    def commit(self) -> None:
        """Commit the offset and the receipts of each window. Safe to call from several threads."""
        with self._committing:
            moved = [w for w in self._all_windows() if not w.closed and w.committable > w.committed]
            if not moved:
                return
            commits = {window.queue: window.next_commit(self._keep_receipts) for window in moved}
            windows = {window.queue: window for window in moved}
            with self._losing_gone():
                try:
                    refused = self._transport.commit(self.group, self._topic, commits)
                except PartlyUnavailable as some:
                    self._committed(windows, commits, some.answers)
                    raise
                self._committed(windows, commits, {queue: queue not in refused for queue in commits})

    def commit_some(self) -> None:
        """Commit where servers are usable; other queues wait for the next call. Raises if no server is usable."""
        with suppress(PartlyUnavailable):
            self.commit()

    def _committed(
        self, windows: Mapping[int, OffsetWindow], commits: Mapping[int, Commit], answers: Mapping[int, bool]
    ) -> None:
        for queue, is_taken in answers.items():
            if is_taken:
                windows[queue].commit_taken(commits[queue].offset)
            else:
                self._lose(windows[queue])

    def receipts(self, window: OffsetWindow) -> Sequence[bytes]:
        """Return the receipts of the queue's messages from before this lease, the oldest first."""
        return self._receipts(window.queue)

    def _receipts(self, queue: int) -> Sequence[bytes]:
        found: Sequence[bytes] = ()
        with self._losing_gone():
            found = self._transport.receipts(self.group, self._topic, queue)
        return found

    def route_version(self) -> int:
        """Return a version of the topic's route that is not older than any message of the last pull. Called by the
        pulling thread; asks the transport unless its pull has told."""
        told = [route for route in self._routes if route is not None]
        return max(told) if told and None not in self._routes else self._transport.route(self._topic).version

    def receipts_of_all(self) -> list[bytes]:
        """Return the receipts of every queue of the topic, including hidden ones."""
        queues = range(self._transport.queue_count(self._topic))
        return [body for queue in queues for body in self._receipts(queue)]

    def _lose(self, window: OffsetWindow) -> None:
        # The transport may have released a queue, and refuse to renew it, before its call returns.
        if not window.closed and window not in self._releasing:
            told = "lost %s/%d for %s: its lease has ended, by a restart of the message queue or for another worker"
            logger.warning(told, window.topic, window.queue, self.group)
            window.close()
            self.wake()

    @contextmanager
    def _losing_gone(self) -> Iterator[None]:
        """End a call without effect if the topic was made again without some of its queues, and lose these: the next
        call has the others. For any thread."""
        try:
            yield
        except UnknownQueue:
            self._lose_gone()

    def _lose_gone(self) -> None:
        count = self._transport.queue_count(self._topic)
        with self._joining:
            self.assign(queue for queue in self._assigned if queue < count)
        for window in self.open_windows:
            if window.queue >= count:
                logger.warning("lost %s/%d: the topic has only %d queues now", window.topic, window.queue, count)
                window.close()
                self.wake()

    def lose_all(self) -> None:
        """Own nothing, without telling the transport: the topic is deleted."""
        self.assign(())
        for window in self.open_windows:
            window.close()

    def trim(self) -> None:
        """Let the transport delete what every group has committed."""
        self._transport.trim(self._topic)

    def release_drained(self, held: Callable[[OffsetWindow], int] = lambda window: 0) -> None:
        """Commit and release the drained queues. Called by the pulling thread.

        ``held`` returns the number of a window's messages that no thread works on: they are left to the next owner. A
        queue on an unusable server is left to the next call while other servers are usable.
        """
        done = [window for window in self._draining if window.closed or window.unfinished <= held(window)]
        if not done:
            return
        self.commit_some()
        self._release([window for window in done if not window.closed and window.committed >= window.committable])
        self._draining = [window for window in self._draining if not window.closed]

    def _release(self, windows: Sequence[OffsetWindow]) -> None:
        """Release queues, and close the windows of the released ones."""
        if not windows:
            return
        self._releasing = windows
        try:
            with self._losing_gone():
                for window in self._released(windows):
                    window.close()
        finally:
            self._releasing = ()

    def _released(self, windows: Sequence[OffsetWindow]) -> Sequence[OffsetWindow]:
        """Let the transport release the queues of these windows. Return those that it could reach."""
        epochs = {window.queue: window.epoch for window in windows}
        try:
            self._transport.release(self.group, self._topic, self._owner, epochs)
        except PartlyUnavailable as some:
            return [window for window in windows if window.queue in some.answers]
        return windows

    def abandon(self) -> None:
        """Commit what is finished and release every queue at once; unfinished messages are delivered again elsewhere.
        Raises `PartlyUnavailable` after all usable servers have been called."""
        failures: list[PartlyUnavailable] = []
        try:
            self.commit()
        except PartlyUnavailable as error:
            failures.append(error)
        windows = self.open_windows
        for window in windows:
            window.close()
        epochs = {window.queue: window.epoch for window in windows}
        try:
            with self._losing_gone():
                self._transport.release(self.group, self._topic, self._owner, epochs)
        except PartlyUnavailable as error:
            failures.append(error)
        self._windows.clear()
        self._draining.clear()
        if failures:
            raise failures[0]
