from __future__ import annotations

import signal
from decimal import Decimal

import pytest

from enode_django import CommandStatus
from enode_django.ids import new_id
from sample_project.bank.domain import Deposit, OpenAccount
from tests.acceptance.newer.commands import PayInterest
from tests.acceptance.stack import BrokerStack, Stack

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]


def test_a_command_of_a_newer_deploy_waits_for_a_worker_that_knows_it(stack: Stack, seed: int) -> None:
    account = new_id()
    old = stack.start_ready(apps="", UNKNOWN_TYPE_DELAYS=[0.2, 0.4, 60.0])
    stack.client.execute(OpenAccount(aggregate_root_id=account, owner="somebody"))
    interest = PayInterest(aggregate_root_id=account, amount=Decimal(3))
    with stack.load(seed):
        stack.client.send([interest, Deposit(aggregate_root_id=account, amount=Decimal(4))])
        old.wait_for("no Command is named 'newer.PayInterest'.*; trying again in", times=2)
        old.signal(signal.SIGTERM)
        new = stack.start(apps="tests.acceptance.newer")
        assert old.wait_end() == 0
        new.wait_ready()
        answer = stack.client.execute(interest)
    assert answer is not None
    assert (answer.status, answer.version) == (CommandStatus.SUCCESS, 2)
    stack.check()
    assert stack.dead_letters() == []


def test_a_command_that_nobody_ever_knows_is_failed_and_kept(stack: Stack, seed: int) -> None:
    account = new_id()
    stack.start_ready(UNKNOWN_TYPE_DELAYS=[0.1, 0.2])
    stack.client.execute(OpenAccount(aggregate_root_id=account, owner="somebody"))
    with stack.load(seed):
        answer = stack.client.execute(PayInterest(aggregate_root_id=account, amount=Decimal(3)))
        after = stack.client.execute(Deposit(aggregate_root_id=account, amount=Decimal(4)))
    assert answer is not None
    assert (answer.status, answer.error_type) == (CommandStatus.FAILED, "UnknownMessageType")
    assert after is not None
    assert (after.status, after.version) == (CommandStatus.SUCCESS, 2)
    stack.check()
    assert [letter[1][0] for letter in stack.dead_letters()] == ["UnknownMessageType"]


def test_without_redis_it_says_so_and_does_not_start(stack: Stack) -> None:
    stack.redis.stop()
    processors = stack.start()
    assert processors.wait_end() == 1
    assert "cannot be used now" in processors.log
    assert "ENODE['QUEUE']" in processors.log
    assert "Traceback" not in processors.log
    assert not processors.workers()


def test_without_the_broker_it_says_what_runs_it_and_does_not_start(broker_stack: BrokerStack) -> None:
    broker_stack.broker.stop()
    processors = broker_stack.start()
    assert processors.wait_end() == 1
    assert "start it with manage.py runbroker" in processors.log
    assert "Traceback" not in processors.log
    assert not processors.workers()


def test_without_postgres_it_says_so_and_does_not_start(stack: Stack) -> None:
    stack.postgres.stop()
    processors = stack.start()
    assert processors.wait_end() == 1
    assert "the event database 'default' cannot be asked" in processors.log
    assert "Traceback" not in processors.log
    assert not processors.workers()


def test_without_its_table_it_says_so_and_does_not_start(stack: Stack) -> None:
    stack.execute("DROP TABLE enode_django_eventstream")
    processors = stack.start()
    assert processors.wait_end() == 1
    assert "has no table 'enode_django_eventstream'; run manage.py migrate" in processors.log
    assert not processors.workers()


def test_no_worker_process_at_all_is_refused(stack: Stack) -> None:
    processors = stack.start(0)
    assert processors.wait_end() == 1
    assert "--processes must be at least 1, got 0" in processors.log
