"""``python -m benchmarks.totals_process WAY KEYS COUNT NUMBER``: one of several processes that add up orders.

It prepares itself, answers a line, and answers each further line with the seconds that it took. WAY is how it does so:
``rows``, a `MultiProjection`; ``deltas``, sums that one statement adds to the rows, which only sums can be; ``one``, a
transaction with an update by ``F()`` for each event.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

BATCH = 1_000
_ADD = """
    INSERT INTO benchmarks_customertotal AS known (customer, orders, amount)
    SELECT * FROM unnest(%b::text[], %b::integer[], %b::numeric[]) AS new (customer, orders, amount) ORDER BY customer
    ON CONFLICT (customer) DO UPDATE
    SET orders = known.orders + EXCLUDED.orders, amount = known.amount + EXCLUDED.amount
"""


def main(way: str, keys: int, count: int, number: int) -> None:
    import django

    django.setup()
    from benchmarks.totals import customers, history
    from enode_django.eventing.pending import PendingAggregate

    records = history(count // 20, count, keys, seed=number)
    batches = []
    for start in range(0, count, BATCH):
        works: dict[str, PendingAggregate] = {}
        for record in records[start : start + BATCH]:
            work = PendingAggregate(record.aggregate_root_id, record.aggregate_root_type)
            works.setdefault(record.aggregate_root_id, work).add(record)
        batches.append(list(works.values()))
    events = customers(records)
    run = {"rows": _rows, "deltas": _deltas}.get(way)
    _answer("ready")
    sys.stdin.readline()
    begun = time.perf_counter()
    if run is None:
        _one_by_one(events)
    else:
        apply = run()
        for batch in batches:
            apply(batch)
    _answer(time.perf_counter() - begun)


def _rows() -> Any:
    from benchmarks.totals import CustomerTotals
    from enode_django.concurrency.backoff import once
    from enode_django.eventing.registry import subscribers
    from enode_django.eventing.runner import Runner
    from enode_django.eventstore.postgres import PostgresEventStore
    from enode_django.runtime import make_processor

    processor = make_processor(subscribers.instance(CustomerTotals), PostgresEventStore(), lambda commands: None)
    runner = Runner(processor, once)
    return lambda batch: runner.run(batch, BATCH)


def _deltas() -> Any:
    from django.db import transaction

    from benchmarks.totals import CustomerTotals
    from enode_django.databases import execute
    from enode_django.eventing import checkpoints
    from enode_django.eventing.event_processors import CheckpointProcessor
    from enode_django.eventing.pending import PendingAggregate
    from enode_django.eventing.registry import subscribers
    from enode_django.eventstore.postgres import PostgresEventStore

    class Deltas(CheckpointProcessor):
        @property
        def limit(self) -> int:
            return 10**9  # each call handles its whole batch

        def apply(self, works: Sequence[PendingAggregate], portion: int, *, even_parked: bool) -> Any:
            ids = sorted(work.aggregate_root_id for work in works)
            orders: Counter[str] = Counter()
            amounts: dict[str, Decimal] = {}
            with transaction.atomic(using=self.alias):
                positions, begun = self._lock(ids, even_parked)
                streams = self._next_batch(works, positions, begun, portion).streams
                for id in ids:
                    for record in streams[id]:
                        for event, _ in self._followed.of(record):
                            customer, amount = event.customer, event.amount
                            orders[customer] += 1
                            amounts[customer] = amounts.get(customer, Decimal(0)) + amount
                execute(self.alias, _ADD, (list(orders), list(orders.values()), [amounts[one] for one in orders]))
                checkpoints.save(self.alias, self.key, {id: streams[id][-1].version or 0 for id in ids})
            return {}

    projection: Any = subscribers.instance(CustomerTotals)
    processor = Deltas(projection, PostgresEventStore())
    return lambda batch: processor.apply(batch, BATCH, even_parked=False)


def _one_by_one(events: Sequence[Any]) -> None:
    from django.db.models import F

    from benchmarks.totals import CustomerTotal

    for event in events:
        found = CustomerTotal._default_manager.filter(pk=event.customer)
        assert found.update(orders=F("orders") + 1, amount=F("amount") + event.amount)


def _answer(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    way, *numbers = sys.argv[1:]
    main(way, *map(int, numbers))
