"""Ask servers that may not answer: in threads, with one deadline, and never again while an earlier question is open."""

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
"""Seconds for connecting to a database, and for its host to acknowledge data. A thread waits for a vanished host little
longer than this."""


class _Flight:
    """Questions that a thread of their own asks one after the other, with its own database connections. Callers that
    ask the same questions meanwhile share the answers, so that only one thread waits for an unreachable server."""

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
    except Exception as error:  # a driver or a foreign backend may raise anything; the status shows it
        logger.info("%s cannot be read for the status: %s", part, error, exc_info=True)
        first_line, *_ = [*str(error).strip().splitlines(), ""]  # a database's further lines quote the statement
        return Finding((), (bad(f"{type(error).__name__}: {first_line}"),))


def _be_patient_with_databases() -> None:
    """Limit the waits of this thread's connections. Without limits TCP waits for a vanished host for hours."""
    for alias in connections:
        connection = connections[alias].copy(alias)
        if connection.vendor == "postgresql":
            ours = {"connect_timeout": PATIENCE, "tcp_user_timeout": PATIENCE * 1000, "keepalives_idle": PATIENCE}
            connection.settings_dict["OPTIONS"] = {**ours, **connection.settings_dict["OPTIONS"]}
        connections[alias] = connection


class _Out:
    """The flights of this process that have not ended."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.flights: dict[Hashable, _Flight] = {}


_out = _Out()


def ask_all(
    lanes: Mapping[Key, Sequence[tuple[str, Ask]]], timeout: float
) -> Mapping[Key, Mapping[str, tuple[Finding, float]]]:
    """Ask the questions of all lanes, in one thread for each lane. Return the answers that came in time, by lane and
    part, each with the seconds it took. Blocks up to ``timeout`` seconds. Safe for threads."""
    deadline = time.monotonic() + timeout
    flights = {key: _flight(key, questions) for key, questions in lanes.items()}
    for flight in flights.values():
        flight.done.wait(max(0.0, deadline - time.monotonic()))
    return {key: dict(flight.answers) for key, flight in flights.items()}


def _flight(key: Hashable, questions: Sequence[tuple[str, Ask]]) -> _Flight:
    """Return the flight that asks these questions now, or start one."""
    place = (key, tuple(part for part, _ in questions))
    with _out.lock:
        flight = _out.flights.get(place)
        if flight is None:
            flight = _out.flights[place] = _Flight(str(key), questions, lambda: _land(place))
        return flight


def _land(place: Hashable) -> None:
    with _out.lock:
        del _out.flights[place]


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_out.__init__)  # type: ignore[misc]  # the threads are the parent's
