"""``python -m benchmarks.batch_peer_process COUNT URL`` prints events per second of ``eventsource-py``, in batches.

It runs in an interpreter that has this library and not this package. It is not exactly once: the checkpoint is saved
after the batch's rows. In its favour, the events are stored before it starts, a batch (``handle_batch`` of 500 events)
is one statement of distinct rows, and the clock runs from the end of the first batch to that of the last, inside its
process.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from uuid import uuid4

import asyncpg  # type: ignore[import-not-found,unused-ignore]
from eventsource import (  # type: ignore[import-not-found,unused-ignore]
    DomainEvent,
    ExpectedVersion,
    InMemoryEventBus,
    PostgreSQLEventStore,
    SQLCheckpointRepository,
    StreamId,
    register_event,
)
from eventsource.adapters.sql.schemas import get_schema  # type: ignore[import-not-found,unused-ignore]
from eventsource.application.subscriptions import (  # type: ignore[import-not-found,unused-ignore]
    BatchAwareSubscriber,
    SubscriptionConfig,
    SubscriptionManager,
)
from sqlalchemy.ext.asyncio import create_async_engine  # type: ignore[import-not-found,unused-ignore]

ACCOUNTS, ROUNDS, BATCH = 500, 10, 500
AMOUNT = Decimal("12.50")

UPSERT = """
    INSERT INTO account_summary SELECT * FROM unnest($1::uuid[], $2::numeric[], $3::int[])
    ON CONFLICT (id) DO UPDATE SET balance = EXCLUDED.balance, version = EXCLUDED.version
"""


@register_event  # type: ignore[misc,unused-ignore]
class Deposited(DomainEvent):  # type: ignore[misc,unused-ignore]
    aggregate_type: str = "Account"
    event_type: str = "Deposited"
    amount: Decimal
    balance: Decimal


class Summaries(BatchAwareSubscriber):  # type: ignore[misc,unused-ignore]
    def __init__(self, pool: Any, expected: int) -> None:
        self._pool = pool
        self._expected = expected
        self.done = asyncio.Event()
        self.handled = self.first_batch = 0
        self.first = self.last = 0.0

    def subscribed_to(self) -> list[type[DomainEvent]]:
        return [Deposited]

    async def handle(self, event: DomainEvent) -> None:
        await self.handle_batch([event])

    async def handle_batch(self, events: Sequence[DomainEvent]) -> None:
        rows = {event.aggregate_id: event for event in events}
        ids, changed = list(rows), list(rows.values())
        balances, versions = [event.balance for event in changed], [event.aggregate_version for event in changed]
        await self._pool.execute(UPSERT, ids, balances, versions)
        self.handled += len(events)
        self.last = time.perf_counter()
        if not self.first:
            self.first, self.first_batch = self.last, len(events)
        if self.handled >= self._expected:
            self.done.set()


async def rate(count: int, url: str) -> float:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    pool = await asyncpg.create_pool(url, min_size=1, max_size=2)
    for name in ("events", "checkpoints"):
        # One of its functions, which is not called here, does not compile.
        await pool.execute("SET check_function_bodies = off;" + get_schema(name))
    await pool.execute("CREATE TABLE account_summary (id uuid PRIMARY KEY, balance numeric, version int)")
    store = PostgreSQLEventStore(engine)
    stored = await _fill(store, count)
    subscriber = Summaries(pool, stored)
    manager = SubscriptionManager(store, InMemoryEventBus(), SQLCheckpointRepository(engine), enable_tracing=False)
    await manager.subscribe(subscriber, SubscriptionConfig(start_from="beginning", batch_size=BATCH))
    started = asyncio.create_task(manager.start())
    await asyncio.wait_for(subscriber.done.wait(), 300)
    total = await pool.fetchval("SELECT sum(balance) FROM account_summary")
    if total != stored * AMOUNT:
        raise AssertionError(f"the balances add up to {total}, not to {stored * AMOUNT}")
    await started
    await manager.stop()
    await engine.dispose()
    await pool.close()
    return (stored - subscriber.first_batch) / (subscriber.last - subscriber.first)


async def _fill(store: Any, count: int) -> int:
    """Store deposits to the accounts in turn, several at once, which is faster. Return their number."""
    each = max(1, count // ACCOUNTS // ROUNDS)
    accounts = [uuid4() for _ in range(ACCOUNTS)]
    for before in range(0, ROUNDS * each, each):
        for id in accounts:
            events = [
                Deposited(aggregate_id=id, aggregate_version=version, amount=AMOUNT, balance=version * AMOUNT)
                for version in range(before + 1, before + each + 1)
            ]
            expected = ExpectedVersion.exact(before) if before else ExpectedVersion.no_stream()
            await store.append(StreamId(id, "Account"), events, expected)
    return ROUNDS * each * ACCOUNTS


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    print(asyncio.run(rate(int(sys.argv[1]), sys.argv[2])))
