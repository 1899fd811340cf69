"""Helpers that store events, let projections follow them, and read the rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from enode_django.eventing import checkpoints
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.rebuilding.swapping import Swap
from tests.following.domain import Added, Opened
from tests.following.harness import Harness
from tests.integration.store_sessions import Call
from tests.rebuilding.domain import Balance, Balances, Posting, PostingLine, Postings


def nothing(stage: str, **figures: object) -> None: ...


def follow(*chosen: type[Subscriber]) -> None:
    """Let these projections, by default `Postings` and `Balances`, handle everything stored."""
    from enode_django.runtime import replay

    replay(*(subscribers.instance(cls).name for cls in chosen or (Postings, Balances)))


def some_history(harness: Harness, *ids: str) -> None:
    """Store three versions of each aggregate."""
    for number, id in enumerate(ids):
        harness.stored(id, Opened(owner=id), Added(amount=number), Added(amount=10))


def before_the_last_step(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Let ``call`` run once in the transaction of the swap, after writers are locked out of the tables in use. It runs
    in another thread."""
    check, called = Swap._check, []

    def check_and_call(swap: Swap) -> object:
        found = check(swap)
        if not called:
            called.append(True)
            Call(call).result()  # in another connection
        return found

    monkeypatch.setattr(Swap, "_check", check_and_call)


def postings() -> dict[str, list[int]]:
    """Return the amounts by account. Assert that each has a line with the same amount."""
    found = list(Posting.objects.order_by("account", "id").values_list("account", "amount"))
    lines = sorted(PostingLine.objects.values_list("posting__account", "posting__amount", "text"))
    assert lines == sorted((account, amount, f"adds {amount}") for account, amount in found)
    return {id: [amount for _, amount in rows] for id, rows in itertools.groupby(found, lambda row: row[0])}


def balances() -> dict[str, tuple[int, int, int]]:
    return {row.pk: (row.total, row.count, row.version) for row in Balance.objects.all()}


def versions(*ids: str) -> dict[str, Any]:
    return checkpoints.read("default", Postings.name, list(ids))


def amounts(cls: type[Subscriber], id: str) -> tuple[int, int]:
    """Return the sum and the number of an account's amounts."""
    if cls is Balances:
        return balances()[id][:2]
    return sum(postings()[id]), len(postings()[id])
