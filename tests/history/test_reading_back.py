"""Aggregates and their events, read back by their class."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from enode_django import (
    AggregateRoot,
    Command,
    CommandContext,
    DomainEvent,
    applies,
    command_handler,
    execute_command,
    send_commands,
    try_command,
)
from enode_django.domain.provided import provided
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import (
    AggregateNotFound,
    AggregateReadOnly,
    AggregateTypeMismatch,
    ConfigurationError,
    DefinitionError,
    InvalidField,
    InvalidId,
    UnknownMessageType,
)
from enode_django.history import state_at
from enode_django.repository.state import snapshot_of
from enode_django.runtime import make_snapshots, make_store
from enode_django.serialization.codec import STREAM, encode_stream
from enode_django.serialization.plain import pack
from enode_django.testing import inline
from sample_project.bank.domain import BankAccount, Deposit, Deposited, MoneyTransfer, OpenAccount

DAY = timedelta(days=1)
NOTHING = STREAM + pack(([], None))


class Create(Command):
    type_name = "reading_back.Create"


class Add(Command):
    type_name = "reading_back.Add"


class LoadInside(Command):
    type_name = "reading_back.LoadInside"


class ReadHistoryInside(Command):
    type_name = "reading_back.ReadHistoryInside"


class Counted(DomainEvent):
    type_name = "reading_back.Counted"


class Counter(AggregateRoot):
    type_name = "reading_back.Counter"
    count: int = 0

    @applies(Counted)
    def _counted(self, event: Counted) -> None:
        self.count += 1


@command_handler(Create)
def create(command: Create, context: CommandContext) -> None:
    counter = Counter(command.aggregate_root_id)
    counter.apply(Counted())
    context.add(counter)


@command_handler(Add)
def add(command: Add, context: CommandContext) -> None:
    context.get(Counter).apply(Counted())


@command_handler(LoadInside)
def load_inside(command: LoadInside, context: CommandContext) -> None:
    Counter.load("c")


@command_handler(ReadHistoryInside)
def read_history_inside(command: ReadHistoryInside, context: CommandContext) -> None:
    Counter.history("c")


@pytest.fixture
def account(db: None) -> str:
    with inline(followed_by=[]):
        execute_command(OpenAccount("a", owner="Ada"))
        send_commands([Deposit("a", amount=Decimal(amount)) for amount in (1, 2, 3)])
    return "a"


@pytest.fixture
def in_memory() -> Iterator[MemoryEventStore]:
    store = MemoryEventStore()
    with inline(store):
        yield store


def test_an_aggregate_is_read_as_it_is_and_as_it_was_at_each_version(account: str) -> None:
    now = BankAccount.load(account)
    assert (now.id, now.owner, now.version, now.balance) == ("a", "Ada", 4, 6)
    assert [BankAccount.load(account, version=version).balance for version in (1, 2, 3, 4)] == [0, 1, 3, 6]


def test_a_version_before_the_newest_snapshot_is_read_without_it(account: str) -> None:
    (last,) = make_store().load_ranges({account: (3, 4)})[account]
    snapshots = make_snapshots(make_store())
    assert snapshots is not None
    snapshots.save([snapshot_of(BankAccount.load(account), last.command_id)])
    assert BankAccount.load(account).balance == 6
    assert BankAccount.load(account, version=3).balance == 3


def test_an_aggregate_is_read_as_it_was_at_a_time(in_memory: MemoryEventStore) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    execute_command(Create("c"))
    send_commands([Add("c") for _ in range(9)])
    copies = MemoryEventStore()
    moved = [record._replace(created_at=begin + (record.version or 0) * DAY) for record in in_memory.load("c")]
    copies.append(moved)
    with inline(copies):
        for version in range(1, 11):
            for seconds in (0, 5):
                at = begin + version * DAY + timedelta(seconds=seconds)
                assert Counter.load("c", at=at).version == version
        assert Counter.load("c", at=datetime.now(UTC) + 10_000 * DAY).version == 10
        with pytest.raises(AggregateNotFound, match="no Counter with the id 'c' at 2026-01-01"):
            Counter.load("c", at=begin)


@pytest.mark.parametrize(
    "wrong",
    [
        {"at": datetime(2026, 1, 1)},
        {"at": "yesterday"},
        {"at": datetime.now(UTC), "version": 1},
    ],
)
def test_a_time_without_a_zone_or_beside_a_version_is_refused(account: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidField):
        BankAccount.load(account, **wrong)


def test_what_is_not_stored_is_not_found(account: str) -> None:
    for version in (0, 5, -1, 10**30, "1", True):
        with pytest.raises(AggregateNotFound):
            BankAccount.load(account, version=version)  # type: ignore[arg-type]
    for read in (BankAccount.load, BankAccount.history):
        with pytest.raises(AggregateNotFound, match="nobody"):
            read("nobody")
        with pytest.raises(InvalidId):
            read("\0")


def test_an_id_of_another_type_is_refused_and_one_of_a_subclass_is_not(account: str) -> None:
    for read in (MoneyTransfer.load, MoneyTransfer.history):
        with pytest.raises(AggregateTypeMismatch, match="'a' is of the class BankAccount, not MoneyTransfer"):
            read(account)
    assert isinstance(AggregateRoot.load(account), BankAccount)


def test_what_was_read_takes_no_event(account: str) -> None:
    ada = BankAccount.load(account)
    with pytest.raises(AggregateReadOnly, match="BankAccount 'a' was loaded for reading"):
        ada.deposit(Deposit(account, amount=Decimal(1)))
    assert (ada.balance, ada.uncommitted_events) == (6, ())


def test_a_history_is_the_events_in_order(account: str) -> None:
    events = list(BankAccount.history(account))
    assert [type(event).__name__ for event in events] == ["AccountOpened", *["Deposited"] * 3]
    assert [event.version for event in events] == [1, 2, 3, 4]
    assert list(BankAccount.history(account, after_version=2)) == events[2:]
    assert list(BankAccount.history(account, after_version=4)) == []
    with pytest.raises(InvalidField, match="after_version=-1"):
        BankAccount.history(account, after_version=-1)


class Watched(MemoryEventStore):
    """Counts the streams that were asked for."""

    streams = 0

    def load(self, aggregate_root_id: str, *, after: int = 0, until: int | None = None) -> Iterator[StreamRecord]:
        for record in super().load(aggregate_root_id, after=after, until=until):
            self.streams += 1
            yield record


def test_a_history_is_read_as_it_is_asked_for() -> None:
    store = Watched()
    with inline(store):
        execute_command(Create("c"))
        send_commands([Add("c") for _ in range(50)])
        store.streams = 0
        events = Counter.history("c")
        assert [next(events).version for _ in range(3)] == [1, 2, 3]
        assert store.streams == 3


def test_a_corrected_event_is_read_as_it_was_corrected(account: str) -> None:
    store = make_store()
    (stored,) = store.load_ranges({account: (1, 2)})[account]
    corrected = Deposited(amount=Decimal(1), balance=Decimal(100))
    store.correct(account, 2, encode_stream([corrected]), by="clerk", reason="a wrong balance", last=0)
    assert list(BankAccount.history(account))[1] == corrected
    assert BankAccount.load(account, version=2).balance == 100
    assert stored.events != encode_stream([corrected])


def test_asynchronous_code_reads_the_same(in_memory: MemoryEventStore) -> None:
    execute_command(Create("c"))
    send_commands([Add("c") for _ in range(120)])

    async def read() -> tuple[Counter, list[int]]:
        return await Counter.aload("c"), [event.version async for event in Counter.ahistory("c", after_version=1)]

    counter, versions = asyncio.run(read())
    assert counter.version == 121
    assert versions == list(range(2, 122))


def test_the_store_of_the_block_is_read_and_then_that_of_the_settings_again(account: str) -> None:
    with inline(MemoryEventStore()), pytest.raises(AggregateNotFound):
        BankAccount.load(account)
    assert BankAccount.load(account).version == state_at(account).version == 4


@pytest.mark.parametrize("command", [LoadInside, ReadHistoryInside])
def test_a_command_handler_reads_by_its_context(in_memory: MemoryEventStore, command: type[Command]) -> None:
    execute_command(Create("c"))
    result = try_command(command(aggregate_root_id="c"))
    assert result.error_type == DefinitionError.__name__
    assert "context.get(Counter, 'c')" in result.error_message


def test_a_class_that_is_gone_is_named(in_memory: MemoryEventStore) -> None:
    gone = StreamRecord("x", 1, "c", "gone.Type", "gone.Do", datetime.now(UTC), NOTHING, pack({}))
    in_memory.append([gone])
    for read in (Counter.load, Counter.history):
        with pytest.raises(UnknownMessageType, match=r"gone\.Type"):
            read("x")


def test_without_django_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provided, "make_reader", None)
    with pytest.raises(ConfigurationError, match=r"call django\.setup\(\)"):
        Counter.load("c")
