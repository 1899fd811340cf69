"""A past of bank accounts: what is in the store and in the events topic before a subscriber is let loose on it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

from benchmarks.loads import AMOUNT, account_ids
from benchmarks.workspace import EVENTS, Workspace
from enode_django.domain.aggregate import accept_events
from enode_django.eventing.messages import encode_published
from enode_django.eventstore.base import StreamRecord
from enode_django.ids import new_id
from enode_django.serialization.codec import encode_stream
from enode_django.serialization.registry import types
from sample_project.bank.domain import BankAccount, Deposit, OpenAccount


class History(NamedTuple):
    """The accounts are opened first, then come the deposits; an account's ``balances`` are those after each one."""

    opened: Sequence[StreamRecord]
    deposited: Sequence[StreamRecord]
    balances: dict[str, list[Decimal]]

    @property
    def records(self) -> list[StreamRecord]:
        return [*self.opened, *self.deposited]


def history(accounts: int, deposits: int, seed: int = 1) -> History:
    """Deposits to random accounts."""
    roots = [BankAccount.open(id, f"owner {n}") for n, id in enumerate(account_ids(accounts))]
    opened = [accepted(root, OpenAccount) for root in roots]
    balances: dict[str, list[Decimal]] = {root.id: [] for root in roots}
    choose = random.Random(seed).choice
    deposited = []
    for _ in range(deposits):
        root = choose(roots)
        root.deposit(AMOUNT)
        deposited.append(accepted(root, Deposit))
        balances[root.id].append(root.balance)
    return History(opened, deposited, balances)


def accepted(root: BankAccount, command: type[Deposit | OpenAccount]) -> StreamRecord:
    events = accept_events(root)
    return StreamRecord(
        root.id,
        root.version,
        new_id(),
        types.name_of(BankAccount),
        types.name_of(command),
        events[0].timestamp,
        encode_stream(events),
        b"",
    )


def publish(workspace: Workspace, records: Sequence[StreamRecord]) -> None:
    """As the write side does it."""
    workspace.send([(record.aggregate_root_id, encode_published(record)) for record in records], topic=EVENTS)
