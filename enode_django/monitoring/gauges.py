"""Measure dead letters, parked aggregates and the lag of subscribers, from the tables and the queue.

These figures survive restarts: they describe the present, not the time since a process began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from django.db import DatabaseError

from enode_django.conf import conf
from enode_django.equeue.dead_letters import groups_with_dead_letters, letters_by_error
from enode_django.equeue.retrying import dead_letter_topic
from enode_django.equeue.transport import Transport
from enode_django.eventstore.dead_letters import DeadLetters
from enode_django.exceptions import QueueError
from enode_django.monitoring.lags import lags_of
from enode_django.monitoring.work import OutboxRow, ask_parked, outbox_of
from enode_django.outbox.rows import has_table
from enode_django.runtime import outbox_databases


class Gauges:
    """Called by one thread. Each call blocks, uses that thread's connections, and raises the databases' errors. While
    the queue is away, ``dead_letters`` lacks its messages; while it or a shard is away, there are no lags."""

    def __init__(self, transport: Transport, letters_of_commands: Sequence[DeadLetters]) -> None:
        self._transport = transport
        self._letters_of_commands = letters_of_commands
        self._counted: dict[str, tuple[tuple[int, int], int]] = {}

    def __call__(self) -> dict[str, Any]:
        """Return ``dead_letters`` by consumer group, ``parked_aggregates`` and ``subscriber_lags`` (seconds) by
        subscriber; by database ``outbox_commands`` that wait, ``outbox_age`` of the oldest (seconds), and
        ``outbox_rejected``."""
        lags, problems = lags_of(self._transport)
        parked = {lag.subscriber: lag.parked for lag in lags} | {
            row.subscriber: row.aggregates for row in ask_parked().rows
        }
        figures: dict[str, Any] = {"dead_letters": self._dead_letters(), "parked_aggregates": parked}
        outboxes = list(_outboxes())
        figures["outbox_commands"] = {row.database: row.waiting for row in outboxes}
        figures["outbox_age"] = {row.database: row.seconds for row in outboxes}
        figures["outbox_rejected"] = {row.database: row.rejected for row in outboxes}
        if not problems:
            known = {lag.subscriber: lag.seconds for lag in lags}
            figures["subscriber_lags"] = {name: seconds for name, seconds in known.items() if seconds is not None}
        return figures

    def _dead_letters(self) -> Mapping[str, int]:
        counts = {conf().COMMANDS.CONSUMER_GROUP: sum(letters.count() for letters in self._letters_of_commands)}
        with suppress(QueueError):
            for group in groups_with_dead_letters(self._transport):
                counts[group] = counts.get(group, 0) + self._of_group(group)
        return counts

    def _of_group(self, group: str) -> int:
        """Return the number of a group's letters. They are read again only when the topic has changed."""
        first, end, *_ = self._transport.queues(dead_letter_topic(group))[0]
        known = self._counted.get(group)
        if known is None or known[0] != (first, end):
            known = ((first, end), sum(one.many for one in letters_by_error(self._transport, group).values()))
            self._counted[group] = known
        return known[1]


def _outboxes() -> Iterator[OutboxRow]:
    """Yield the outboxes that answer: databases of the project that are away hide no other figure."""
    for alias in outbox_databases():
        with suppress(DatabaseError):
            if has_table(alias):
                yield outbox_of(alias)
