"""The relay of one database: it sends the rows of the outbox in the order of their ids, and deletes them.

Order. A transaction that began after another one's commit has the higher ids, and no snapshot shows its rows without
the other's. So the lowest ids of one snapshot come first, always from the lowest on: a position would pass over a row
whose transaction took its id earlier and committed later.

One at a time. A relay holds a lock of its transaction while it reads, sends and deletes. One that lost the lock with
its session may still send. That only repeats what its successor sends, from the same row on in the same order, and a
command takes effect once by its id. So the server may end the session of a relay that stands still.

A crash. Rows are deleted after they are stored in the queue. If the relay ends in between, the deletion is rolled back,
and the rows are sent again. A relay that goes on without its session knows what it has sent, and only deletes it:
otherwise a queue that takes longer than the session may stand still would get the same rows without end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

from django.db import transaction

from enode_django.outbox import rows
from enode_django.outbox.rows import Row

logger = logging.getLogger("enode_django.outbox")

ROWS_AT_ONCE = 1_000
BYTES_AT_ONCE = 16 * 1024 * 1024


class Sender(Protocol):
    """The destination of a relay's rows."""

    def refusal(self, row: Row, /) -> str:
        """Return the reason why a row can never be sent; empty if it can."""

    def send(self, waiting: Sequence[Row], /) -> None:
        """Send the rows in order. Block until they are stored. Raises a retriable `EnodeError` if they are sent again
        later."""


class Schedule(Protocol):
    """Holds commands until they are due."""

    def look(self, alias: str, /) -> tuple[bool, float]:
        """Return whether rows wait in the outbox, and the seconds until a command is due. An idle relay asks this a few
        times a second, so it is one statement."""

    def fire(self, alias: str, /) -> float:
        """Add commands to the outbox that are due, as many as a relay sends before it asks for more. Return the seconds
        until the next one is due."""


class Relay:
    """Relays the outbox of one database to a ``sender``. One thread calls its methods, and owns the connection.

    With ``waits`` it waits for another relay that is at work, and then relays what that one did not see. With
    ``ends_standstill`` its session ends if sending takes very long. Without it, what was sent is undone by a rollback.
    """

    def __init__(
        self,
        alias: str,
        sender: Sender,
        *,
        schedule: Schedule,
        at_once: int = ROWS_AT_ONCE,
        waits: bool = False,
        ends_standstill: bool = True,
    ) -> None:
        self.alias = alias
        self.pause = inf
        """Seconds after the last `run` until a scheduled command is due."""
        self._schedule = schedule
        self._sender = sender
        self._at_once = at_once
        self._waits = waits
        self._ends_standstill = ends_standstill
        self._undeleted: frozenset[tuple[int, str, str]] = frozenset()
        """The rows that were sent, but whose deletion is not known to be committed. An id alone does not name a row: a
        database that fails over may give it away again."""

    def run(self, seconds: float = inf, *, is_stopped: Callable[[], bool] = lambda: False) -> int:
        """Relay the waiting and the due rows, until none is left or another relay is at work. Begins no further batch
        after ``seconds``, or once it ``is_stopped``. Return the number of rows. Blocks; raises the errors of sending,
        and the driver's errors."""
        relayed, until = 0, time.monotonic() + seconds
        while time.monotonic() <= until and not is_stopped():
            waits, self.pause = self._schedule.look(self.alias)
            if self.pause <= 0:
                self.pause, waits = self._schedule.fire(self.alias), True
            batch = self._relay_batch() if waits else 0
            if not batch:
                break
            relayed += batch
        return relayed

    def _relay_batch(self) -> int:
        """Return the number of rows that were sent or rejected; 0 if another relay has taken them."""
        with transaction.atomic(using=self.alias):
            if self._waits:
                rows.lock(self.alias)
            elif not rows.try_lock(self.alias, self._ends_standstill):
                return 0
            batch = rows.waiting(self.alias, self._at_once, BYTES_AT_ONCE)
            refusals = {row.id: reason for row in batch if (reason := self._sender.refusal(row))}
            sent = [row for row in batch if row.id not in refusals]
            if sent:
                self._send(sent)
                rows.delete(self.alias, [row.id for row in sent])
            for id, reason in refusals.items():
                rows.reject(self.alias, id, reason)
        self._undeleted = frozenset()
        for id, reason in refusals.items():
            logger.error("row %d of the outbox of %r is rejected: %s", id, self.alias, reason)
        return len(batch)

    def _send(self, waiting: Sequence[Row]) -> None:
        if unsent := [row for row in waiting if row[:3] not in self._undeleted]:
            self._sender.send(unsent)
        if self._ends_standstill:
            self._undeleted = frozenset(row[:3] for row in waiting)
