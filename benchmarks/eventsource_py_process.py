"""``python -m benchmarks.eventsource_py_process spread|hot COUNT ACCOUNTS URL`` prints commands per second.

It runs in an interpreter that has ``eventsource-py`` and not this package. As its documentation recommends: aggregates
in its decider style, its repository on its PostgreSQL event store, and snapshots for a long stream only. It has no
cache of aggregates, so each command loads one. In its favour, a lock for each account keeps commands from being
retried, nothing is published or written to its outbox, tracing is off, and the clock runs inside its process.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import asyncpg  # type: ignore[import-not-found,unused-ignore]
from eventsource import (  # type: ignore[import-not-found,unused-ignore]
    AggregateRepository,
    DeciderAggregate,
    DomainCommand,
    DomainEvent,
    PostgreSQLEventStore,
    register_event,
)
from eventsource.adapters.postgresql import (  # type: ignore[import-not-found,unused-ignore]
    PostgreSQLSnapshotStore,
)
from eventsource.adapters.sql.schemas import get_schema  # type: ignore[import-not-found,unused-ignore]
from pydantic import BaseModel  # type: ignore[import-not-found,unused-ignore]
from sqlalchemy.ext.asyncio import (  # type: ignore[import-not-found,unused-ignore]
    async_sessionmaker,
    create_async_engine,
)

TASKS = 8
AMOUNT = Decimal("12.50")
SNAPSHOT_EVERY = 100
"""As in its guide."""


@register_event  # type: ignore[misc,unused-ignore]
class Opened(DomainEvent):  # type: ignore[misc,unused-ignore]
    aggregate_type: str = "Account"
    owner: str


@register_event  # type: ignore[misc,unused-ignore]
class Deposited(DomainEvent):  # type: ignore[misc,unused-ignore]
    aggregate_type: str = "Account"
    amount: Decimal
    balance: Decimal


class Open(DomainCommand):  # type: ignore[misc,unused-ignore]
    account: UUID
    owner: str


class Deposit(DomainCommand):  # type: ignore[misc,unused-ignore]
    account: UUID
    amount: Decimal


class State(BaseModel):  # type: ignore[misc,unused-ignore]
    model_config = {"frozen": True}

    owner: str = ""
    balance: Decimal = Decimal(0)


class Account(DeciderAggregate[State, Open | Deposit]):  # type: ignore[misc,unused-ignore]
    aggregate_type = "Account"

    @staticmethod
    def initial_state() -> State:
        return State()

    @staticmethod
    def decide(command: Open | Deposit, state: State) -> list[DomainEvent]:
        if isinstance(command, Open):
            return [Opened(aggregate_id=command.account, owner=command.owner)]
        if command.amount <= 0:
            raise ValueError(command.amount)
        balance = state.balance + command.amount
        return [Deposited(aggregate_id=command.account, amount=command.amount, balance=balance)]

    @staticmethod
    def evolve(state: State, event: DomainEvent) -> State:
        if isinstance(event, Opened):
            return state.model_copy(update={"owner": event.owner})  # type: ignore[no-any-return,unused-ignore]
        return state.model_copy(update={"balance": event.balance})  # type: ignore[no-any-return,unused-ignore]


async def rate(load: str, count: int, accounts: int, url: str) -> float:
    connection = await asyncpg.connect(url)
    for name in ("events", "snapshots"):
        # One of its functions, which is not called here, does not compile.
        await connection.execute("SET check_function_bodies = off;" + get_schema(name))
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"), pool_size=TASKS)
    bank = _repository(engine, with_snapshots=load == "hot")
    opened = await _opened(bank, accounts if load == "spread" else 1)
    handled, seconds = await _timed(bank, opened, count)
    stored = await connection.fetchval("SELECT count(*) FROM events WHERE event_type = 'Deposited'")
    if stored != handled:
        raise AssertionError(f"{stored} deposits are stored, {handled} should be")
    await connection.close()
    await engine.dispose()
    return handled / seconds


def _repository(engine: Any, *, with_snapshots: bool) -> Any:
    options: dict[str, Any] = {}
    if with_snapshots:
        snapshots = PostgreSQLSnapshotStore(async_sessionmaker(engine, expire_on_commit=False), enable_tracing=False)
        options = {"snapshot_store": snapshots, "snapshot_threshold": SNAPSHOT_EVERY}
    return AggregateRepository(PostgreSQLEventStore(engine), Account, enable_tracing=False, **options)


async def _opened(bank: Any, count: int) -> list[UUID]:
    accounts = [uuid4() for _ in range(count)]
    waiting = iter(enumerate(accounts))

    async def work() -> None:
        for number, id in waiting:
            account = bank.create_new(id)
            account.execute(Open(account=id, owner=f"owner {number}"))
            await bank.save(account)

    await asyncio.gather(*(work() for _ in range(TASKS)))
    return accounts


async def _timed(bank: Any, accounts: Sequence[UUID], count: int) -> tuple[int, float]:
    """Return the number of deposits, and the seconds that they took."""
    locks = {id: asyncio.Lock() for id in accounts}

    async def work(chosen: Sequence[UUID]) -> None:
        for id in chosen:
            async with locks[id]:
                await bank.execute(id, Deposit(account=id, amount=AMOUNT), create_if_missing=False)

    choose, each = random.Random(1).choice, count // TASKS
    chosen = [[choose(accounts) for _ in range(each)] for _ in range(TASKS)]
    started = time.perf_counter()
    await asyncio.gather(*map(work, chosen))
    return each * TASKS, time.perf_counter() - started


def main(load: str, count: str, accounts: str, url: str) -> None:
    logging.disable(logging.WARNING)
    print(asyncio.run(rate(load, int(count), int(accounts), url)))


if __name__ == "__main__":
    main(*sys.argv[1:])
