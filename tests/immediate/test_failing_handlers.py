"""Handlers in whose hands a transaction of the database breaks, and that are called again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest
from django.db import OperationalError, connection, transaction

from enode_django import (
    AggregateRoot,
    Command,
    CommandContext,
    CommandStatus,
    DomainEvent,
    Projection,
    Retry,
    applies,
    command_handler,
    handles,
    send_command,
    try_command,
)
from enode_django.bus.results import CommandResult
from enode_django.concurrency import backoff
from enode_django.eventstore.base import Appended, StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import StoreUnavailable
from enode_django.immediate.bus import ImmediateCommandBus
from enode_django.immediate.memory import MemorySubscribers
from enode_django.models import EventStream
from enode_django.runtime import use_bus
from enode_django.signals import command_finished
from tests.immediate.conftest import NewProcess
from tests.immediate.domain import Behaviour, Fill, Filled, JarEntry, JarRow, JarRows


class Pay(Command):
    type_name = "immediate.Pay"
    to: str
    by_context: bool = True
    attempts: int = 1


class Book(Command):
    """Fails by an error of the database, ``broken`` even with its connection."""

    type_name = "immediate.Book"
    works: bool = True
    broken: bool = False


class Paid(DomainEvent):
    type_name = "immediate.Paid"


class Booked(DomainEvent):
    type_name = "immediate.Booked"


class Purse(AggregateRoot):
    type_name = "immediate.Purse"

    @applies
    def _paid(self, event: Paid | Booked) -> None: ...


attempts: list[str] = []


@command_handler
def pay(command: Pay, context: CommandContext) -> None:
    attempts.append(context.command_id)
    purse = context.find(Purse) or Purse(command.aggregate_root_id)
    purse.apply(Paid())
    context.add(purse)
    if command.by_context:
        context.send(Book(command.to, works=False, broken=command.attempts == 0))
    else:
        send_command(Book(command.to))
    if len(attempts) < command.attempts:
        raise Retry("not yet", after=0.001)


@command_handler
def book(command: Book, context: CommandContext) -> None:
    purse = context.find(Purse) or Purse(command.aggregate_root_id)
    purse.apply(Booked())
    context.add(purse)
    if not command.works:
        with connection.cursor() as cursor:
            if command.broken:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            cursor.execute("INSERT INTO immediate_jarrow (aggregate_root_id) VALUES (NULL)")


class Broken(Projection):
    """Breaks the transaction that it is part of."""

    name = "immediate.broken"
    abstract = True
    models = (JarEntry,)

    @handles
    def filled(self, event: Filled) -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO immediate_jarrow (aggregate_root_id) VALUES (NULL)")


def stored() -> list[tuple[str, int | None]]:
    return [*EventStream.objects.order_by("sequence").values_list("aggregate_root_id", "version")]


@pytest.fixture(autouse=True)
def no_attempts() -> None:
    attempts.clear()


def test_an_error_of_the_database_in_what_was_sent_by_the_context_is_not_the_senders(new_process: NewProcess) -> None:
    new_process(JarRows)
    results: list[CommandResult] = []

    def note(result: CommandResult, **_: object) -> None:
        results.append(result)

    command_finished.connect(note)
    try:
        assert try_command(Pay("a", to="b")).status is CommandStatus.SUCCESS
    finally:
        command_finished.disconnect(note)
    assert stored() == [("a", 1)]
    assert [(result.aggregate_root_id, result.error_type) for result in results] == [("a", ""), ("b", "IntegrityError")]


def test_an_error_of_the_database_in_a_handler_leaves_the_callers_transaction_usable(new_process: NewProcess) -> None:
    new_process(JarRows)
    with transaction.atomic():
        try_command(Fill("a"))
        assert try_command(Book("a2", works=False)).error_type == "IntegrityError"
        try_command(Fill("a"))
    assert JarRow.objects.get().total == 2


def test_a_subscriber_that_breaks_a_transaction_leaves_the_callers_usable(new_process: NewProcess) -> None:
    new_process(Broken, JarRows)
    with transaction.atomic():
        try_command(Fill("a"))
        try_command(Fill("a"))
    assert JarRow.objects.get().total == 2


def test_a_connection_that_is_lost_between_the_two_is_store_unavailable_and_nothing_is_stored(
    new_process: NewProcess,
) -> None:
    new_process(JarRows)
    with pytest.raises(StoreUnavailable):
        send_command(Pay("a", to="b", attempts=0))
    assert stored() == []
    send_command(Fill("a"))
    assert stored() == [("a", 1)]


def test_in_the_callers_transaction_what_fails_for_the_moment_is_not_tried_again(
    new_process: NewProcess, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction is lost, and the caller hears why."""
    new_process()
    handled, paused = list[str](), list[float]()

    def lose_session(id: str) -> None:
        handled.append(id)
        with suppress(OperationalError), connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    monkeypatch.setattr(behaviour, "lose_session", lose_session)
    monkeypatch.setattr(backoff, "pause", paused.append)
    with pytest.raises(StoreUnavailable), transaction.atomic():
        send_command(Fill("a"))
    assert (handled, paused) == (["a"], [])


class Failing(MemoryEventStore):
    """Refuses to store once."""

    fails = 1

    def append(self, records: Sequence[StreamRecord], *, doubtful: bool = False) -> Sequence[Appended]:
        if self.fails:
            self.fails -= 1
            raise StoreUnavailable("a deadlock")
        return super().append(records, doubtful=doubtful)


@pytest.mark.parametrize(("store", "count"), [(Failing(), 1), (MemoryEventStore(), 2)])
def test_what_a_handler_sends_is_handled_once_though_the_handler_is_called_again(
    store: MemoryEventStore, count: int
) -> None:
    with use_bus(ImmediateCommandBus(store, MemorySubscribers)):
        try_command(Pay("a", to="b", by_context=False, attempts=count))
    assert len(attempts) == 2
    assert [record.version for record in store.load("b")] == [1]
