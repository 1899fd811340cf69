from __future__ import annotations

import signal
from decimal import Decimal
from pathlib import Path

import pytest

from enode_django.equeue.stops import AS_ONE
from enode_django.ids import new_id
from sample_project.bank.domain import Deposit, OpenAccount
from tests.acceptance.faulty.commands import DepositWhenFileExists
from tests.acceptance.processors import Processors
from tests.acceptance.stack import COMMANDS, GROUP, QUEUES, Stack
from tests.acceptance.waiting import PATIENCE, last_for, wait_until

BLOCKED_WORKER = r"WARNING \S+/\d+-\w+ enode_django\.outages: .*(?:\n\t.*)*trying again until"
"""A worker waits for the database, and cannot finish what it has. The relay says the same in another process."""
pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]


def released(stack: Stack) -> bool:
    """Return True if every queue was released: all can be acquired at once, and no lease had to expire."""
    leases = [stack.transport.acquire(GROUP, COMMANDS, queue, "test", 1) for queue in range(QUEUES)]
    stack.transport.release(GROUP, COMMANDS, "test", {queue: lease.epoch for queue, lease in enumerate(leases)})
    return all(lease.previous_owner is None for lease in leases)


def test_a_signal_lets_the_workers_drain_and_give_back_their_queues(stack: Stack, seed: int) -> None:
    first = stack.start_ready(2, WORKERS={"GRACE": PATIENCE})
    with stack.load(seed):
        first.signal(signal.SIGTERM)
        assert_drained(stack, first)
        second = stack.start_ready(2, WORKERS={"GRACE": PATIENCE})
    with stack.load(seed + 1):
        second.signal_group(signal.SIGINT)  # as Ctrl-C does
        assert_drained(stack, second)
        stack.start_ready()
    stack.check()


def assert_drained(stack: Stack, processors: Processors) -> None:
    assert processors.wait_end() == 0
    assert "Traceback" not in processors.log
    processors.wait_gone()
    assert released(stack)


def start(stack: Stack, hanging: DepositWhenFileExists, grace: float) -> Processors:
    Path(f"{hanging.path}.begun").unlink(missing_ok=True)
    return stack.start_ready(WORKERS={"GRACE": grace}, COMMANDS={"TIME_LIMIT": 2 * PATIENCE})


def wait_begun(hanging: DepositWhenFileExists) -> None:
    wait_until(Path(f"{hanging.path}.begun").exists, "the command is being handled")


def test_a_second_signal_or_the_grace_time_ends_a_drain_which_finishes_what_is_being_handled(
    stack: Stack, tmp_path: Path
) -> None:
    account = new_id()
    hanging = DepositWhenFileExists(account, path=str(tmp_path / "go-on"), amount=Decimal(7))
    first = start(stack, hanging, grace=PATIENCE)
    stack.client.execute(OpenAccount(account, owner="somebody"))
    stack.client.send([hanging, Deposit(account, amount=Decimal(1))])
    wait_begun(hanging)
    drain(first)
    last_for(AS_ONE)
    first.signal(signal.SIGTERM)
    assert first.wait_end() == 1
    first.wait_for("aborted; killing")
    first.wait_gone()

    second = start(stack, hanging, grace=1.0)
    wait_begun(hanging)
    drain(second)
    assert second.wait_end() == 1
    second.wait_for(" of 1.0 s, and what is left comes again")
    second.wait_gone()

    third = start(stack, hanging, grace=PATIENCE)
    wait_begun(hanging)
    drain(third)
    Path(hanging.path).touch()
    assert third.wait_end() == 0
    stack.check(loaded=False)
    assert [record.version for record in stack.stored()] == [1, 2, 3]


def drain(processors: Processors) -> None:
    processors.signal(signal.SIGTERM)
    processors.wait_for("draining; a second signal aborts")


def test_a_signal_to_workers_that_are_being_started_leaves_nothing_behind(stack: Stack) -> None:
    processors = stack.start(2)
    processors.wait_for("started worker", times=2)
    processors.signal_group(signal.SIGINT)
    assert processors.wait_end() == 0
    assert "Traceback" not in processors.log
    processors.wait_gone()


def test_a_drain_without_postgres_or_redis_ends_with_the_grace_time_and_loses_nothing(stack: Stack, seed: int) -> None:
    first = stack.start_ready(2, WORKERS={"GRACE": 2.0})
    with stack.load(seed):
        stack.postgres.stop()
        first.wait_for(BLOCKED_WORKER)
        first.signal(signal.SIGTERM)
        assert first.wait_end() == 1
        first.wait_for(" of 2.0 s, and what is left comes again")
        stack.postgres.start()
        second = stack.start_ready(2, WORKERS={"GRACE": 2.0})
        stack.redis.stop()
        second.signal(signal.SIGTERM)
        assert second.wait_end() == 1
        stack.redis.start()
        stack.start_ready()
    assert "Traceback" not in first.log + second.log
    stack.check()
