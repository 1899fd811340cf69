"""Check the read side when the system is quiet. It runs by itself, with the settings of the processors under test.

Prints ``{"problems": [sentences], "figures": {…}}``. Options: ``--parked``, some aggregates are parked, so transfers
may be unfinished; ``--lost``, commands were lost on their way, with the same consequence; ``--no-cache``, two workers
handled one account at once, which the cache does not tolerate.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from decimal import Decimal
from itertools import groupby
from typing import Any

import django
from django.db import DEFAULT_DB_ALIAS, connections, models, transaction

Row = tuple[Any, ...]
DELETE_FROM = "DELETE FROM enode_django_eventstream WHERE aggregate_root_id = %s AND version >= %s"


def main(options: Sequence[str]) -> None:
    django.setup()
    reading = Reading()
    problems = list(reading.problems(options))
    print(json.dumps({"problems": problems, "figures": reading.figures}))


class Reading:
    """Looks at the databases, once. What each method yields are problems, as sentences."""

    def __init__(self) -> None:
        from enode_django.conf import conf
        from enode_django.eventing.parking import list_parked
        from enode_django.eventing.registry import subscribers
        from enode_django.eventstore.base import StreamRecord
        from enode_django.models import EventStream
        from enode_django.repository.loading import replay_records
        from sample_project.bank.domain import BankAccount, MoneyTransfer

        self.shards = conf().EVENT_STORE.DATABASES
        streams = [EventStream.objects.using(alias).order_by("aggregate_root_id", "version") for alias in self.shards]
        records = [StreamRecord(*row) for rows in streams for row in rows.values_list(*StreamRecord._fields)]
        self.stored = {record.aggregate_root_id for record in records}
        self.streams = [record for record in records if record.version is not None]
        self.heads = {record.aggregate_root_id: record for record in self.streams}
        self.subscribers = subscribers.all()
        self.parked = {(row.subscriber, row.aggregate_root_id): row for row in reversed(list_parked("default"))}
        aggregates = [replay_records(list(group)) for _, group in groupby(self.streams, lambda r: r.aggregate_root_id)]
        self.accounts = {one.id: one for one in aggregates if isinstance(one, BankAccount)}
        self.transfers = {one.id: one for one in aggregates if isinstance(one, MoneyTransfer)}
        self.figures: dict[str, Any] = {
            "streams": len(self.streams),
            "refusals": len(records) - len(self.streams),
            "accounts": len(self.accounts),
            "parked": len(self.parked),
            **Counter(f"transfers {one.status.value}" for one in self.transfers.values()),
        }

    def problems(self, options: Sequence[str]) -> Iterator[str]:
        yield from self.checkpoints()
        yield from self.projections()
        yield from self.tables()
        if "--parked" not in options:
            yield from self.money(may_stand_still="--lost" in options)
            yield from self.summaries()
        if "--no-cache" not in options:
            yield from self.cache()

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def checkpoints(self) -> Iterator[str]:
        """Check that each checkpoint is at the store's version, or at the version where its aggregate is parked."""
        from enode_django.eventing.subscribers import follows

        for subscriber in self.subscribers:
            followed = [id for id, head in self.heads.items() if follows(subscriber, head.aggregate_root_type)]
            positions = _processor(subscriber).positions(followed)
            self.figures[f"followed by {subscriber.name}"] = len(followed)
            for id in followed:
                allowed = self._positions_of(subscriber.name, id)
                if positions.get(id, 0) not in allowed:
                    yield f"{subscriber.name} has {id} at version {positions.get(id)}, which is not in {allowed}"

    def _positions_of(self, subscriber: str, id: str) -> Sequence[int]:
        head = self.heads[id].version or 0
        parked = self.parked.get((subscriber, id))
        if parked is None:
            return [head]
        return [parked.version - 1] if parked.version is not None else range(head + 1)

    def tables(self) -> Iterator[str]:
        """Check that each checkpoint and each parked event belongs to a stored aggregate."""
        from enode_django.models import Checkpoint, ParkedEvent

        for model in (Checkpoint, ParkedEvent):
            for row in model.objects.all():
                if row.aggregate_root_id not in self.stored:
                    yield f"of nothing that is stored: {row}"

    # -- projections ----------------------------------------------------------------------------------------------

    def projections(self) -> Iterator[str]:
        """Compare each projection row by row with a replay of the store; that of a parked aggregate ends where it is
        parked."""
        for subscriber in self.subscribers:
            written = _models_of(subscriber)
            if not written:
                continue
            found = {model: _rows(model) for model in written}
            replayed = self._replayed(subscriber, written)
            for model in written:
                self.figures[f"rows of {model.__name__}"] = found[model].total()
                yield from _differences(f"{subscriber.name}: {model.__name__}", found[model], replayed[model])

    def _replayed(self, subscriber: Any, written: Sequence[type[models.Model]]) -> Mapping[Any, Counter[Row]]:
        from enode_django.runtime import replay

        aliases = {DEFAULT_DB_ALIAS, *self.shards}
        with ExitStack() as stack:
            for alias in aliases:
                stack.enter_context(transaction.atomic(using=alias))
            for table in ("checkpoint", "parkedevent", "subscription"):
                _execute(DEFAULT_DB_ALIAS, f"DELETE FROM enode_django_{table} WHERE subscriber = %s", subscriber.name)
            for (name, id), parked in self.parked.items():
                if name == subscriber.name:
                    for alias in self.shards:
                        _execute(alias, DELETE_FROM, id, parked.version)
            for model in written:
                model._default_manager.all().delete()
            replay(subscriber.name)
            replayed = {model: _rows(model) for model in written}
            for alias in aliases:
                transaction.set_rollback(True, using=alias)
        return replayed

    # -- money ----------------------------------------------------------------------------------------------------

    def money(self, *, may_stand_still: bool) -> Iterator[str]:
        """Check that the balances add up to the money paid in, and that every transfer has ended and moved its amount
        twice or never."""
        from sample_project.bank.domain import TransferStatus

        paid_in, moved = self._movements()
        standing = {id for id, one in self.transfers.items() if not one.has_ended} if may_stand_still else set()
        paid_in += sum((amount for id in standing for _, amount in moved.pop(id, [])), Decimal(0))
        balances = sum((account.balance for account in self.accounts.values()), Decimal(0))
        if balances != paid_in:
            yield f"the balances add up to {balances}; {paid_in} was paid in"
        for account in self.accounts.values():
            if not standing.issuperset([*account.outgoing, *account.incoming]):
                yield f"account {account.id} has reservations: {[*account.outgoing, *account.incoming]}"
        for id, transfer in self.transfers.items():
            if id in standing:
                continue
            there, back = [(transfer.source, -transfer.amount)], [(transfer.target, transfer.amount)]
            expected = sorted(there + back) if transfer.status is TransferStatus.COMPLETED else []
            if not transfer.has_ended:
                yield f"transfer {id} has not ended, it is {transfer.status.value}"
            if sorted(moved.pop(id, [])) != expected:
                yield f"transfer {id} is {transfer.status.value} and has not moved just {expected}"
        for id in moved:
            yield f"transfer {id} has moved money, and was never started"

    def _movements(self) -> tuple[Decimal, dict[str, list[tuple[str, Decimal]]]]:
        """Return the money paid in minus the money paid out at the counters, and for each transfer the amounts that it
        added to accounts."""
        from enode_django.repository.loading import events_of
        from sample_project.bank.domain import DepositConfirmed, Deposited, WithdrawalConfirmed, Withdrawn

        paid_in = Decimal(0)
        moved: dict[str, list[tuple[str, Decimal]]] = defaultdict(list)
        for event in (event for record in self.streams for event in events_of(record)):
            if isinstance(event, Deposited | Withdrawn):
                paid_in += event.amount if isinstance(event, Deposited) else -event.amount
            elif isinstance(event, DepositConfirmed | WithdrawalConfirmed):
                amount = event.amount if isinstance(event, DepositConfirmed) else -event.amount
                moved[event.transfer].append((event.aggregate_root_id, amount))
        return paid_in, moved

    def summaries(self) -> Iterator[str]:
        """The bank's read models, by another way than a replay."""
        from sample_project.bank.models import AccountSummary, LedgerEntry

        shown = {row.pk: (row.balance, row.available, row.closed) for row in AccountSummary.objects.all()}
        booked: defaultdict[str, Decimal] = defaultdict(Decimal)
        for id, amount in LedgerEntry.objects.values_list("account", "amount"):
            booked[id] += amount
        for account in self.accounts.values():
            said = shown.pop(account.id, None)
            if said != (account.balance, account.balance - account.reserved, account.closed):
                yield f"account {account.id} is shown with {said}; stored is {account.balance}"
            if booked.pop(account.id, Decimal(0)) != account.balance:
                yield f"what the ledger has of account {account.id} does not make {account.balance}"
        yield from (f"account {id} is shown, and not stored" for id in {*shown, *booked})

    def cache(self) -> Iterator[str]:
        """A balance that is cached is the last one."""
        from django.core.cache import cache

        from sample_project.bank.event_handlers import GROUP

        keys = {f"bank.balance.{id}": account for id, account in self.accounts.items()}
        cached = cache.get_many(keys)
        self.figures["cached balances"] = len(cached)
        for key, balance in cached.items():
            account = keys[key]
            if balance != account.balance and (GROUP, account.id) not in self.parked:
                yield f"account {account.id} has {balance} in the cache; stored is {account.balance}"


def _processor(subscriber: Any) -> Any:
    from enode_django.runtime import make_processor, make_store

    return make_processor(subscriber, make_store(), lambda commands: None)


def _models_of(subscriber: Any) -> Sequence[type[models.Model]]:
    from enode_django import ModelProjection, MultiProjection, Projection

    if isinstance(subscriber, ModelProjection | MultiProjection):
        return [subscriber.model]
    return subscriber.models if isinstance(subscriber, Projection) else []


def _rows(model: type[models.Model]) -> Counter[Row]:
    """Return all columns except surrogate keys, which show only the order of writing."""
    names = [field.attname for field in model._meta.concrete_fields if not isinstance(field, models.AutoField)]
    return Counter(model._default_manager.values_list(*names))


def _differences(what: str, found: Counter[Row], replayed: Counter[Row]) -> Iterable[str]:
    for row in found - replayed:
        yield f"{what} has {found[row]} of {row}, a replay makes {replayed[row]}"
    for row in replayed - found:
        yield f"{what} has {found[row]} of {row}, a replay makes {replayed[row]}"


def _execute(alias: str, statement: str, *parameters: str | int | None) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement, parameters)


if __name__ == "__main__":
    main(sys.argv[1:])
