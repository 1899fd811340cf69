"""Rows of the sample's accounts are the same in use and rebuilt, whatever the batches of their events."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest

from enode_django.eventing.registry import subscribers
from enode_django.eventstore.base import StreamRecord
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import rebuild
from sample_project.bank.domain import AccountOpened, BankAccount, Deposited
from sample_project.bank.models import AccountSummary
from sample_project.bank.projections import AccountSummaries
from tests.following.harness import Harness, stream_of
from tests.rebuilding.conftest import drop_schemas
from tests.rebuilding.histories import nothing

HALF = Decimal("0.005")


@pytest.fixture
def accounts(harness: Harness) -> Iterator[Harness]:
    AccountSummary.objects.all().delete()
    with subscribers.only(AccountSummaries):
        yield harness
    AccountSummary.objects.all().delete()
    drop_schemas()


def stored(harness: Harness, id: str) -> list[StreamRecord]:
    """Store an account with ten deposits, each of half the amount that its row can hold. Return the records."""
    events = [AccountOpened(owner=id), *(Deposited(amount=HALF, balance=n * HALF) for n in range(1, 11))]
    records = [stream_of(id, version, [event], BankAccount) for version, event in enumerate(events, 1)]
    harness.store.append(records)
    return records


def available() -> dict[str, Decimal]:
    return dict(AccountSummary.objects.values_list("pk", "available"))


def test_amounts_that_are_rounded_add_up_to_the_same_in_one_batch_in_many_and_in_a_rebuild(accounts: Harness) -> None:
    subscription = accounts.subscription(subscribers.instance(AccountSummaries))
    together, apart = stored(accounts, "together"), stored(accounts, "apart")
    accounts.deliver(subscription, together)
    for record in apart:
        accounts.deliver(subscription, [record])
    assert available() == {"together": Decimal("0.10"), "apart": Decimal("0.10")}
    stored(accounts, "rebuilt")
    rebuild(subscribers.instance(AccountSummaries).name, InProcess(), nothing)
    assert available() == dict.fromkeys(("together", "apart", "rebuilt"), Decimal("0.10"))
