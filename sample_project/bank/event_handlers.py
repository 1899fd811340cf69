"""Balances in Django's cache, for pages that are asked for often.

Only the events write to the cache: a reader that filled it, too, could put an old balance over a new one. What a worker
that was slow for a moment might leave behind is gone after `KEEP` at the latest. A cache that cannot be reached, is
full, or takes no writes until its replica is promoted, is waited for: it is not an event's fault, so none is parked.
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
"""A balance that could not be remembered waits an hour at most, not a day."""


def cached_balance(account: str) -> Decimal | None:
    """From the cache, else from the read model, which may be a moment behind; None for an account it does not know."""
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
    """An error that is retriable is tried again until it works, any other a few times only."""
    import redis  # here, so that workers with their cache elsewhere start sooner

    away = (redis.ConnectionError, redis.TimeoutError, redis.OutOfMemoryError, redis.ReadOnlyError)
    try:
        yield
    except away as error:
        raise SubscriberUnavailable(f"the cache cannot be written to: {error}") from error
