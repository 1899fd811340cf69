from __future__ import annotations

from decimal import Decimal

import pytest

from enode_django.ids import new_id
from sample_project.bank.domain import Deposit, OpenAccount
from tests.acceptance.hanging.event_handlers import GROUP, HANGS_AT
from tests.acceptance.stack import Stack

pytestmark = pytest.mark.acceptance

ENDS = 2
PARKED = "SELECT subscriber, aggregate_root_id, version, error_type FROM enode_django_parkedevent"


def test_a_handler_of_events_that_hangs_has_its_worker_killed_and_its_aggregate_parked(stack: Stack) -> None:
    """The subscriber's other events, and the other subscribers of the worker, are still handled."""
    stack.install("tests.acceptance.hanging", [GROUP])
    stack.start_ready(role="command")
    events = stack.start(2, role="event", WORKERS={"MAX_ABNORMAL_ENDS": ENDS})
    accounts = [new_id() for _ in range(6)]
    stack.client.send([OpenAccount(account, owner="somebody") for account in accounts])
    stack.client.send([Deposit(account, amount=Decimal(5)) for account in accounts])
    stack.client.send([Deposit(accounts[0], amount=HANGS_AT)])
    stack.client.send([Deposit(account, amount=Decimal(7)) for account in accounts])
    stack.wait_followed()
    assert events.count(f"hangs in {GROUP}, at queue") >= ENDS
    assert events.count("died: killed by SIGKILL; starting another") >= ENDS
    assert stack.query(PARKED) == [(GROUP, accounts[0], 3, "EventKilledWorker")]
    stack.check(loaded=False)
    assert stack.check_read_side("--parked")["parked"] == 1
