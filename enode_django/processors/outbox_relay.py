"""The threads of a supervisor that relay the outboxes, one for each database."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from enode_django.concurrency.backoff import delays
from enode_django.concurrency.outages import Attempts
from enode_django.concurrency.threads import join_threads, start_thread
from enode_django.conf import conf
from enode_django.databases import execute, healthy_connection
from enode_django.equeue.transport import Transport
from enode_django.eventstore.sqlstates import DATABASE_ERRORS
from enode_django.exceptions import EnodeError, StoreUnavailable, error_text
from enode_django.outbox.relay import Relay
from enode_django.outbox.rows import CHANNEL, has_table
from enode_django.processors.wakeup import Wakeup
from enode_django.runtime import make_relay, outbox_databases

logger = logging.getLogger("enode_django.outbox")

LOOK_FOR_TABLE = 30.0
"""Seconds between checks for the table in a database that has none, or is a standby."""
STOP_SECONDS = 5.0
LISTENING = 5
"""The number of intervals between two looks of a relay that senders wake. They only find commands that a killed sender
has committed without waking the relay."""


class OutboxThread:
    """Relays the outbox of one database until `stop`. After any error it waits and goes on."""

    def __init__(self, relay: Relay, interval: float) -> None:
        self._relay = relay
        self._interval = interval
        self._longest_wait = interval
        self._session: Any = None
        """The driver's connection that listens."""
        self._stopping = threading.Event()
        self._wakeup = Wakeup()
        self.thread = start_thread(f"enode-outbox-{relay.alias}", self._run)

    def stop(self) -> None:
        """Ask the thread to end. Does not block."""
        self._stopping.set()
        self._wakeup.wake()

    def _run(self) -> None:
        attempts, pauses = Attempts(), delays()
        try:
            while not self._stopping.is_set():
                try:
                    for _ in self._turns():
                        attempts.worked()
                        pauses = delays()
                except Exception as error:  # the rows wait until the database and the queue are there again
                    attempts.failed(_outage(self._relay.alias, error))
                    self._stopping.wait(next(pauses))
        finally:
            connections.close_all()

    def _turns(self) -> Iterator[None]:
        """Relay what waits, and wait for more. Yield after each success."""
        if not has_table(self._relay.alias):
            yield
            self._stopping.wait(LOOK_FOR_TABLE)
            return
        while not self._stopping.is_set():
            self._listen()
            self._relay.run(is_stopped=self._stopping.is_set)
            yield
            self._wait()

    def _listen(self) -> None:
        """Listen for the senders' wake-ups, if they arrive: behind a pooler of transactions they would go astray. A
        lost session may have been replaced since the last time."""
        connection = healthy_connection(self._relay.alias)
        if connection.connection is self._session:
            return
        if connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
            self._longest_wait = self._interval
        else:
            execute(self._relay.alias, f"LISTEN {CHANNEL}", None)
            self._longest_wait = LISTENING * self._interval
        self._session = connection.connection

    def _wait(self) -> None:
        if not self._is_notified():
            raw: Any = connections[self._relay.alias].connection
            self._wakeup.wait([raw.fileno()], min(self._longest_wait, self._relay.pause))
            self._is_notified()

    def _is_notified(self) -> bool:
        """Take all notifications, also those that the last statement has collected. Return True if there were any."""
        raw: Any = connections[self._relay.alias].connection
        return len(list(raw.notifies(timeout=0))) > 0


def _outage(alias: str, error: Exception) -> EnodeError:
    if isinstance(error, EnodeError):
        return error
    logger.debug("the outbox of %r cannot be relayed", alias, exc_info=error)
    kind = StoreUnavailable if isinstance(error, DATABASE_ERRORS) else EnodeError
    return kind(f"the outbox of {alias!r} cannot be relayed: {type(error).__name__}: {error_text(error)}")


@contextmanager
def relayed_outboxes(transport: Transport) -> Iterator[None]:
    """Relay the outboxes of all databases in threads until the block ends."""
    interval = conf().OUTBOX.INTERVAL
    threads = [OutboxThread(make_relay(alias, transport), interval) for alias in outbox_databases()]
    try:
        yield
    finally:
        for one in threads:
            one.stop()
        join_threads([one.thread for one in threads], STOP_SECONDS)
