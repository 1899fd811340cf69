"""Snapshots under real processes: one with a flipped byte, and workers that are killed while they are made."""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Callable, Sequence
from decimal import Decimal

import pytest

from enode_django import CommandStatus
from enode_django.ids import new_id
from sample_project.bank.domain import Deposit, OpenAccount
from tests.acceptance.processors import Processors, is_running
from tests.acceptance.snapshotting.apps import EVERY
from tests.acceptance.stack import Stack
from tests.acceptance.waiting import last_for, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

APP = "tests.acceptance.snapshotting"
SNAPSHOTS = "enode.snapshots"
DEPOSITS = 3 * EVERY
AMOUNT = Decimal("1.23")
BALANCE = DEPOSITS * AMOUNT
_VERIFIED = re.compile(r"(\d+) snapshots are as replayed, (\d+) differ, (\d+) were made by other code")


@pytest.fixture
def snapshotting(stack: Stack) -> Stack:
    stack.install(APP)
    return stack


def deposit(account: str) -> Deposit:
    return Deposit(account, amount=AMOUNT)


def store_with_snapshots(stack: Stack, accounts: Sequence[str]) -> None:
    """Store a history and a snapshot for each account. Stop the processors, so that they keep none in memory."""
    processors = stack.start_ready(role="all")
    stack.client.send([OpenAccount(account, owner="somebody") for account in accounts])
    stack.client.send([deposit(account) for _ in range(DEPOSITS) for account in accounts])
    wait_until(lambda: snapshot_versions(stack).keys() == {*accounts}, "every account has a snapshot")
    wait_until(lambda: stack.is_quiet() and stack.is_through(SNAPSHOTS), "all commands and events are done")
    processors.signal(signal.SIGTERM)
    assert processors.wait_end() == 0


def snapshot_versions(stack: Stack) -> dict[str, int]:
    return dict(stack.query("SELECT aggregate_root_id, version FROM enode_django_snapshot"))


def verified(stack: Stack, **settings: str) -> int:
    """Return the number of snapshots that equal the replay of their events. Fail the test if one does not."""
    printed = _VERIFIED.search(stack.python("manage.py", "enode", "buildsnapshots", "--verify", "1000000", **settings))
    assert printed is not None
    same, differ, foreign = map(int, printed.groups())
    assert (differ, foreign) == (0, 0)
    return same


# -- a flipped byte ---------------------------------------------------------------------------------------------------

PLACES: Sequence[Callable[[bytes], int]] = [
    lambda payload: 0,
    lambda payload: payload.index(b"-"),  # in the id of the command
    lambda payload: payload.index(str(BALANCE).encode()),
    lambda payload: payload.index(str(BALANCE).encode()) + 1,
    lambda payload: payload.index(b"somebody"),
    lambda payload: len(payload) - 1,
]


def flip(stack: Stack, account: str, place: Callable[[bytes], int]) -> None:
    ((payload,),) = stack.query("SELECT payload FROM enode_django_snapshot WHERE aggregate_root_id = %s", account)
    change = "UPDATE enode_django_snapshot SET payload = set_byte(payload, %s, get_byte(payload, %s) # 1)"
    stack.query(f"{change} WHERE aggregate_root_id = %s RETURNING version", *[place(payload)] * 2, account)


def test_a_snapshot_with_a_flipped_byte_is_reported_and_replaced(snapshotting: Stack, seed: int) -> None:
    accounts = [new_id() for _ in range(2 * len(PLACES))]
    store_with_snapshots(snapshotting, accounts)
    flipped = dict(zip(accounts, PLACES, strict=False))
    for account, place in flipped.items():
        flip(snapshotting, account, place)
    processors = snapshotting.start_ready(role="all")
    with snapshotting.load(seed):
        answers = [snapshotting.client.execute(deposit(account)) for account in accounts]
    assert [(answer.status, answer.version) for answer in answers if answer is not None] == [
        (CommandStatus.SUCCESS, DEPOSITS + 2)
    ] * len(accounts)
    discarded = re.findall(r"the snapshot of '(.*)' at version \d+ is discarded: its bytes are not", processors.log)
    assert {*discarded} == flipped.keys()
    snapshotting.wait_followed()
    wait_until(lambda: snapshotting.is_through(SNAPSHOTS), "snapshots are made of all events")
    versions = snapshot_versions(snapshotting)
    at_once = DEPOSITS + 1  # made by a sweep between the discard and the deposit; the next is not due yet
    assert {versions.get(account) for account in flipped} <= {at_once, DEPOSITS + 2}
    assert verified(snapshotting) >= len(accounts)
    snapshotting.check()
    snapshotting.check_read_side()


# -- kills ------------------------------------------------------------------------------------------------------------


def kill(processors: Processors, workers: dict[str, int], random_: random.Random) -> None:
    name, pid = random_.choice(sorted(workers.items()))
    os.kill(pid, signal.SIGKILL)
    processors.wait_for(rf"worker {name} died: killed by SIGKILL; starting another")
    wait_until(lambda: not is_running(pid), f"the end of process {pid}")


def test_workers_may_be_killed_while_snapshots_are_made(snapshotting: Stack, seed: int) -> None:
    random_ = random.Random(seed)
    processors = snapshotting.start_ready(role="all")
    made = "SELECT coalesce(sum(version), 0) FROM enode_django_snapshot"
    with snapshotting.load(seed, varied=True) as load:
        for victims in [processors.following_event_workers, processors.living_workers]:
            ((before,),) = snapshotting.query(made)
            load.wait_for_rounds(random_.randint(20, 40))
            wait_until(lambda before=before: snapshotting.query(made)[0][0] > before, "snapshots are made")
            wait_until(victims, "somebody to kill")
            last_for(random_.uniform(0.0, 0.2))
            kill(processors, victims(), random_)
    snapshotting.wait_followed()
    wait_until(lambda: snapshotting.is_through(SNAPSHOTS), "snapshots are made of all events")
    snapshotting.python("manage.py", "enode", "buildsnapshots")
    assert verified(snapshotting) >= 1
    assert "is discarded" not in processors.log
    snapshotting.check()
    snapshotting.check_read_side()
