"""Between immediate mode and a queue nothing is migrated, lost or handled twice."""

from __future__ import annotations

import time
from collections.abc import Sequence

from enode_django import send_command
from enode_django.concurrency.backoff import once
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventing import parking
from enode_django.eventing.in_flight import FIRST_QUEUE
from enode_django.eventing.registry import subscribers
from enode_django.runtime import make_store, make_subscription
from tests.immediate.conftest import NewProcess
from tests.immediate.domain import Behaviour, Fill, JarEntries, JarEntry, JarRow, JarRows, mails


def work_as_event_workers(*ids: str) -> None:
    """Let followers, as event workers have them, hear of these aggregates; of none, look for themselves."""
    store, transport = make_store(), MemoryTransport()
    transport.create_topic("events", 1)
    records = [record for id in ids for record in store.load(id)]
    for subscriber in subscribers.all():
        subscription = make_subscription(subscriber, transport, store, persist=once)
        subscription.begin()
        subscription.follow(records)
        while not records and (subscription.next_retry is None or subscription.next_retry <= time.monotonic()):
            subscription.tick(frozenset({FIRST_QUEUE}))


def rows() -> Sequence[tuple[str, int, int]]:
    return sorted(JarRow.objects.values_list("pk", "total", "version"))


def test_event_workers_go_on_where_callers_were(new_process: NewProcess, behaviour: Behaviour) -> None:
    new_process(JarRows, JarEntries, mails())
    send_command(Fill("a"))
    with subscribers.only():
        send_command(Fill("a"))
        send_command(Fill("b"))
    work_as_event_workers("a")
    work_as_event_workers()
    assert rows() == [("a", 2, 2), ("b", 1, 1)]
    assert JarEntry.objects.count() == 3
    assert sorted(behaviour.calls) == [("mails", "a", 1), ("mails", "a", 2), ("mails", "b", 1)]


def test_callers_go_on_where_event_workers_were(new_process: NewProcess, behaviour: Behaviour) -> None:
    new_process(JarRows, JarEntries, mails("beginning"))
    with subscribers.only():
        send_command(Fill("a"))
        send_command(Fill("b"))
    work_as_event_workers("a")
    new_process(JarRows, JarEntries, mails("beginning"))
    send_command(Fill("a"))
    assert rows() == [("a", 2, 2), ("b", 1, 1)]
    assert JarEntry.objects.count() == 3
    assert sorted(behaviour.calls) == [("mails", "a", 1), ("mails", "a", 2), ("mails", "b", 1)]


def test_what_callers_have_parked_event_workers_try_again(new_process: NewProcess, behaviour: Behaviour) -> None:
    new_process(JarRows)
    behaviour.failing.add(("rows", "a"))
    send_command(Fill("a"))
    behaviour.failing.clear()
    parking.hurry("default", "immediate.rows", "a")
    work_as_event_workers()
    assert rows() == [("a", 1, 1)]
