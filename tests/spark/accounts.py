"""Histories of the sample's accounts, whose classes Spark's own processes know."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from enode_django.domain.metadata import Metadata
from enode_django.eventstore.base import StreamRecord
from enode_django.ids import new_id
from enode_django.serialization.codec import encode_metadata, encode_refusal, encode_stream
from sample_project.bank.domain.accounts import AccountOpened, Deposited, InsufficientFunds

START = datetime(2026, 5, 4, 23, 59, tzinfo=UTC)
ACCOUNT = "bank.BankAccount"


def account(id: str, versions: Iterable[int], *, every: timedelta = timedelta(minutes=1)) -> list[StreamRecord]:
    """Opened, then a deposit of 1 at each version."""
    return [
        StreamRecord(
            id,
            version,
            new_id(),
            ACCOUNT,
            "bank.Deposit",
            START + version * every,
            encode_stream([_event(version)]),
            encode_metadata(Metadata(correlation_id=f"c{version}")),
        )
        for version in versions
    ]


def unopened(id: str) -> StreamRecord:
    """Return a first stream that makes no summary."""
    return account(id, [2])[0]._replace(version=1)


def _event(version: int) -> AccountOpened | Deposited:
    return AccountOpened(owner="Ada") if version == 1 else Deposited(amount=Decimal(1), balance=Decimal(version - 1))


def refused(id: str) -> StreamRecord:
    refusal = InsufficientFunds("too little", balance=Decimal(1), amount=Decimal(2))
    return StreamRecord(id, None, new_id(), ACCOUNT, "bank.Withdraw", START, encode_refusal(refusal), b"")


def poison(id: str, version: int) -> StreamRecord:
    return account(id, [version])[0]._replace(events=b"\x01no message")
