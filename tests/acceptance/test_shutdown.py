from __future__ import annotations

import signal
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from enode_django import CommandStatus
from enode_django.ids import new_id
from sample_project.bank.domain import Deposit, OpenAccount
from tests.acceptance.faulty.commands import DepositWhenFileExists
from tests.acceptance.processors import Processors
from tests.acceptance.stack import COMMANDS, ENODE, GROUP, QUEUES, Stack
from tests.acceptance.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]


def released(stack: Stack) -> bool:
    """Whether every queue can be had at once, none having been left to run out."""
    leases = [stack.transport.acquire(GROUP, COMMANDS, queue, "test", 1) for queue in range(QUEUES)]
    stack.transport.release(GROUP, COMMANDS, "test", {queue: lease.epoch for queue, lease in enumerate(leases)})
    return all(lease.previous_owner is None for lease in leases)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("whole_group", [False, True], ids=["supervisor", "group"])
def test_a_signal_lets_the_workers_drain_and_give_back_their_queues(
    stack: Stack, seed: int, number: signal.Signals, whole_group: bool
) -> None:
    first = stack.start_ready()
    with stack.load(seed):
        begun = time.monotonic()
        (first.signal_group if whole_group else first.signal)(number)
        assert first.wait_end() == 0
        assert time.monotonic() - begun < ENODE["GRACE"]
        assert "Traceback" not in first.log
        first.wait_gone()
        assert released(stack)
        second = stack.start_ready()
    assert "took commands" not in second.log
    stack.check()


@pytest.fixture
def hanging(stack: Stack, tmp_path: Path) -> DepositWhenFileExists:
    """To be sent to an account that there is."""
    return DepositWhenFileExists(aggregate_root_id=new_id(), path=str(tmp_path / "go-on"), amount=Decimal(7))


def start_hanging(stack: Stack, hanging: DepositWhenFileExists, **enode: Any) -> Processors:
    processors = stack.start_ready(**enode)
    stack.client.execute(OpenAccount(aggregate_root_id=hanging.aggregate_root_id, owner="somebody"))
    stack.client.send([hanging, Deposit(aggregate_root_id=hanging.aggregate_root_id, amount=Decimal(1))])
    wait_until(Path(f"{hanging.path}.begun").exists, "the command is being handled")
    return processors


def finish_hanging(stack: Stack, hanging: DepositWhenFileExists) -> None:
    Path(hanging.path).touch()
    stack.start_ready()
    answer = stack.client.execute(hanging)
    assert answer is not None
    assert (answer.status, answer.version) == (CommandStatus.SUCCESS, 2)
    stack.check(loaded=False)


def test_what_is_being_handled_is_finished_before_the_end(stack: Stack, hanging: DepositWhenFileExists) -> None:
    processors = start_hanging(stack, hanging)
    processors.signal(signal.SIGTERM)
    processors.wait_for("draining; a second signal aborts")
    Path(hanging.path).touch()
    assert processors.wait_end() == 0
    stack.check(loaded=False)
    assert [record.version for record in stack.stored()] == [1, 2, 3]


def test_a_second_signal_aborts(stack: Stack, hanging: DepositWhenFileExists) -> None:
    processors = start_hanging(stack, hanging, GRACE=60.0)
    processors.signal(signal.SIGTERM)
    processors.wait_for("draining; a second signal aborts")
    processors.signal(signal.SIGTERM)
    assert processors.wait_end(5) == 1
    processors.wait_for("aborted; killing")
    processors.wait_gone()
    finish_hanging(stack, hanging)


def test_the_grace_time_ends_a_drain(stack: Stack, hanging: DepositWhenFileExists) -> None:
    processors = start_hanging(stack, hanging, GRACE=1.0)
    processors.signal(signal.SIGTERM)
    assert processors.wait_end(15) == 1
    processors.wait_for("could not finish in 1.0 s; what is left comes again")
    processors.wait_gone()
    finish_hanging(stack, hanging)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_to_workers_that_are_being_started_leaves_nothing_behind(stack: Stack, number: signal.Signals) -> None:
    processors = stack.start()
    processors.wait_for("started worker", times=2)
    processors.signal_group(number)
    assert processors.wait_end() == 0
    assert "Traceback" not in processors.log
    processors.wait_gone()


def test_a_drain_without_postgres_ends_with_the_grace_time_and_loses_nothing(stack: Stack, seed: int) -> None:
    first = stack.start_ready(GRACE=2.0)
    with stack.load(seed):
        stack.postgres.stop()
        first.signal(signal.SIGTERM)
        assert first.wait_end() == 1
        first.wait_for("could not finish in 2.0 s; what is left comes again")
        assert "Traceback" not in first.log
        stack.postgres.start()
        stack.start_ready()
    stack.check()


def test_a_drain_without_redis_ends_within_the_grace_time_and_loses_nothing(stack: Stack, seed: int) -> None:
    first = stack.start_ready(GRACE=2.0)
    with stack.load(seed):
        stack.redis.stop()
        first.signal(signal.SIGTERM)
        assert first.wait_end() == 1
        assert "Traceback" not in first.log
        stack.redis.start()
        stack.start_ready()
    stack.check()
