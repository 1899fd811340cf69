"""A history of bank accounts, for the store and the event topic before a subscriber starts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

from benchmarks.loads import AMOUNT, account_ids
from benchmarks.workspace import EVENTS, Workspace
from enode_django.bus.messages import encode_published
from enode_django.domain.aggregate import accept_events
from enode_django.eventstore.base import StreamRecord
from enode_django.serialization.codec import encode_stream
from enode_django.serialization.registry import types
from sample_project.bank.domain import BankAccount, Deposit, OpenAccount


class History(NamedTuple):
    """A history of accounts: openings, then deposits. ``balances`` are those of an account after each deposit."""

    opened: Sequence[StreamRecord]
    deposited: Sequence[StreamRecord]
    balances: dict[str, list[Decimal]]

    @property
    def records(self) -> list[StreamRecord]:
        return [*self.opened, *self.deposited]


def history(accounts: int, deposits: int, seed: int = 1) -> History:
    """Return a history of deposits to random accounts."""
    roots = [BankAccount(id) for id in account_ids(accounts)]
    opened = [stored(root, OpenAccount(root.id, owner=f"owner {n}")) for n, root in enumerate(roots)]
    balances: dict[str, list[Decimal]] = {root.id: [] for root in roots}
    choose = random.Random(seed).choice
    deposited = []
    for _ in range(deposits):
        root = choose(roots)
        deposited.append(stored(root, Deposit(root.id, amount=AMOUNT)))
        balances[root.id].append(root.balance)
    return History(opened, deposited, balances)


def stored(root: BankAccount, command: Deposit | OpenAccount) -> StreamRecord:
    """Let the account handle the command, and return the row that a worker would store."""
    if isinstance(command, OpenAccount):
        root.open(command)
    else:
        root.deposit(command)
    events = accept_events(root)
    return StreamRecord(
        root.id,
        root.version,
        command.id,
        types.name_of(BankAccount),
        types.name_of(type(command)),
        events[0].timestamp,
        encode_stream(events),
        b"",
    )


def publish(workspace: Workspace, records: Sequence[StreamRecord]) -> None:
    """Publish the records like the write side."""
    workspace.send([(record.aggregate_root_id, encode_published(record)) for record in records], topic=EVENTS)
