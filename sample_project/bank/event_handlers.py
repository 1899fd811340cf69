"""Balances in Django's cache, for frequently requested pages.

Only events write to the cache: a reader that filled it could overwrite a new balance with an old one. An old balance
written by a slow worker expires after `KEEP`. If the cache cannot be reached, is full, or is read-only until a replica
is promoted, the handlers wait: events are not parked for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal

from django.core.cache import cache

from enode_django import Retries, event_handler
from enode_django.exceptions import SubscriberUnavailable
from sample_project.bank.domain import (
    AccountClosed,
    AccountOpened,
    DepositConfirmed,
    Deposited,
    WithdrawalConfirmed,
    Withdrawn,
)
from sample_project.bank.models import AccountSummary

GROUP = "bank.balance_cache"
KEEP = 300
"""Seconds."""
RETRY = Retries(most_parked=3_600.0)
"""A balance that could not be cached is retried after at most an hour, not a day."""


def cached_balance(account: str) -> Decimal | None:
    """Return the balance from the cache, or else from the read model, which may lag; None for an unknown account."""
    balance: Decimal | None = cache.get(_key(account))
    if balance is not None:
        return balance
    return AccountSummary.objects.filter(pk=account).values_list("balance", flat=True).first()


@event_handler(group=GROUP, retry=RETRY)
def remember_balance(event: Deposited | Withdrawn | DepositConfirmed | WithdrawalConfirmed) -> None:
    with _writable_or_retriable():
        cache.set(_key(event.aggregate_root_id), event.balance, KEEP)


@event_handler(group=GROUP, retry=RETRY)
def forget_balance(event: AccountOpened | AccountClosed) -> None:
    with _writable_or_retriable():
        cache.delete(_key(event.aggregate_root_id))


def _key(account: str) -> str:
    return f"bank.balance.{account}"


@contextmanager
def _writable_or_retriable() -> Iterator[None]:
    """Raise the cache's transient errors as `SubscriberUnavailable`, which is retried without end; other errors are
    retried a few times."""
    import redis  # here, so that workers with their cache elsewhere start sooner

    away = (redis.ConnectionError, redis.TimeoutError, redis.OutOfMemoryError, redis.ReadOnlyError)
    try:
        yield
    except away as error:
        raise SubscriberUnavailable(f"the cache cannot be written to: {error}") from error
