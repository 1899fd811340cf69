"""Asking what may not answer: in threads, with a deadline for all, and never a second time while the first is out."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from django.db import connections

from enode_django.concurrency.threads import start_thread
from enode_django.monitoring.parts import Finding, bad

logger = logging.getLogger("enode_django.status")

Ask = Callable[[], Finding]
Key = TypeVar("Key", bound=Hashable)

PATIENCE = 5
"""Seconds for connecting to a database, and for its host to take what is sent: so long, or little more, a thread is
left waiting for one that has vanished."""


class _Flight:
    """Some questions on their way, one after the other, in a thread and with database connections of its own. Whoever
    asks the same meanwhile waits for these answers: however often an unreachable server is asked about, and by
    however many, one thread waits for it."""

    def __init__(self, name: str, questions: Sequence[tuple[str, Ask]], landed: Callable[[], None]) -> None:
        self.answers: dict[str, tuple[Finding, float]] = {}
        self.done = threading.Event()
        self._questions = questions
        self._landed = landed
        start_thread(f"enode-status-{name}", self._run)

    def _run(self) -> None:
        try:
            _be_patient_with_databases()
            for part, ask in self._questions:
                began = time.monotonic()
                self.answers[part] = (_answer(part, ask), time.monotonic() - began)
        finally:
            connections.close_all()
            self._landed()
            self.done.set()


def _answer(part: str, ask: Ask) -> Finding:
    try:
        return ask()
    except Exception as error:  # of drivers, of backends that are not ours: whatever it is, it is what is to be told
        logger.info("%s cannot be told: %s", part, error, exc_info=True)
        first_line, *_ = [*str(error).strip().splitlines(), ""]  # a database's further lines quote the statement
        return Finding((), (bad(f"{type(error).__name__}: {first_line}"),))


def _be_patient_with_databases() -> None:
    """Limit the waits of this thread's connections: a host that has vanished says nothing, and TCP alone would wait for
    hours."""
    for alias in connections:
        connection = connections[alias].copy(alias)
        if connection.vendor == "postgresql":
            ours = {"connect_timeout": PATIENCE, "tcp_user_timeout": PATIENCE * 1000, "keepalives_idle": PATIENCE}
            connection.settings_dict["OPTIONS"] = {**ours, **connection.settings_dict["OPTIONS"]}
        connections[alias] = connection


class _Out:
    """The flights of this process that have not landed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.flights: dict[Hashable, _Flight] = {}


_out = _Out()


def ask_all(
    lanes: Mapping[Key, Sequence[tuple[str, Ask]]], timeout: float
) -> Mapping[Key, Mapping[str, tuple[Finding, float]]]:
    """Ask each lane's questions, the lanes beside each other; returns per lane what was answered in time, by part,
    with the seconds that it took. Blocks up to ``timeout`` seconds. Safe for threads."""
    deadline = time.monotonic() + timeout
    flights = {key: _flight(key, questions) for key, questions in lanes.items()}
    for flight in flights.values():
        flight.done.wait(max(0.0, deadline - time.monotonic()))
    return {key: dict(flight.answers) for key, flight in flights.items()}


def _flight(key: Hashable, questions: Sequence[tuple[str, Ask]]) -> _Flight:
    """The one that is out with these questions, or a new one."""
    place = (key, tuple(part for part, _ in questions))
    with _out.lock:
        flight = _out.flights.get(place)
        if flight is None:
            flight = _out.flights[place] = _Flight(str(key), questions, lambda: _land(place))
        return flight


def _land(place: Hashable) -> None:
    with _out.lock:
        del _out.flights[place]


os.register_at_fork(after_in_child=_out.__init__)  # type: ignore[misc]  # the threads are the parent's
