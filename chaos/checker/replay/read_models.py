"""The expected rows of the projections' tables. The columns of each table:

* ``bank_accountsummary``: aggregate root id, version, owner, balance, available, opened at, closed
* ``bank_ledgerentry``: account, version, kind, amount, balance, transfer, booked at
* ``notes_note``: aggregate root id, version, title, changed at
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chaos.checker.replay.bank import Replay

COLUMNS = {
    "bank_accountsummary": ("aggregate_root_id", "version", "owner", "balance", "available", "opened_at", "closed"),
    "bank_ledgerentry": ("account", "version", "kind", "amount", "balance", "transfer", "booked_at"),
    "notes_note": ("aggregate_root_id", "version", "title", "changed_at"),
}


def expected_rows(state: Replay, table: str) -> Iterator[tuple[Any, ...]]:
    """Yield the expected rows of a table, in the order of the columns above. Times are in microseconds since 1970."""
    if table == "bank_accountsummary":
        for one in state.accounts.values():
            yield (one.id, one.version, one.owner, one.balance, one.available, one.opened_at, one.closed)
    elif table == "bank_ledgerentry":
        for one in state.accounts.values():
            yield from ((one.id, *booking) for booking in one.bookings)
    elif table == "notes_note":
        for note in state.notes.values():
            if not note.deleted:
                yield (note.id, note.version, note.title, note.changed_at)
