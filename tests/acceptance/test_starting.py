from __future__ import annotations

import signal
from decimal import Decimal

import pytest
from django.core.management import CommandError, call_command

from enode_django import CommandStatus
from enode_django.conf.groups import BROKER
from enode_django.ids import new_id
from sample_project.bank.domain import Deposit, OpenAccount
from tests.acceptance.newer.commands import PayInterest
from tests.acceptance.processors import Processors
from tests.acceptance.stack import Stack
from tests.services import WarmBroker

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]


def test_a_command_of_a_newer_deploy_waits_for_a_worker_that_knows_it_or_is_failed_and_kept(
    stack: Stack, seed: int
) -> None:
    account = new_id()
    old = stack.start_ready(apps="", WORKERS={"UNKNOWN_TYPE_DELAYS": [0.2, 0.4, 600.0]})
    stack.client.execute(OpenAccount(account, owner="somebody"))
    interest, later = (PayInterest(account, amount=Decimal(3)) for _ in range(2))
    with stack.load(seed):
        stack.client.send([interest, Deposit(account, amount=Decimal(4))])
        old.wait_for("no Command is named 'newer.PayInterest'.*; trying again in", times=2)
        old.signal(signal.SIGTERM)
        new = stack.start(apps="tests.acceptance.newer")
        assert old.wait_end() == 0
        new.wait_ready()
        answer = stack.client.execute(interest)
        assert answer is not None
        assert (answer.status, answer.version) == (CommandStatus.SUCCESS, 2)
        assert newer_dead_letters(stack) == []

        new.signal(signal.SIGTERM)
        assert new.wait_end() == 0
        stack.start_ready(apps="", WORKERS={"UNKNOWN_TYPE_DELAYS": [0.1, 0.2]})
        answer = stack.client.execute(later)
        after = stack.client.execute(Deposit(account, amount=Decimal(4)))
    assert answer is not None
    assert (answer.status, answer.error_type) == (CommandStatus.FAILED, "UnknownMessageType")
    assert after is not None
    assert (after.status, after.version) == (CommandStatus.SUCCESS, 4)
    stack.check()
    assert newer_dead_letters(stack) == [("newer.PayInterest", "UnknownMessageType")]


def newer_dead_letters(stack: Stack) -> list[tuple[str, str]]:
    """Return the dead letters of the newer deploy's commands. The load may leave a dead letter, too: a copy that nobody
    waits for."""
    return [letter for letter in stack.dead_letters() if letter[0].startswith("newer.")]


def test_without_what_it_needs_it_says_so_and_does_not_start(stack: Stack) -> None:
    with WarmBroker() as broker:
        broker.stop()
        nobody = {"BACKEND": BROKER, "LOCATION": broker.url, "OPTIONS": {}}
        assert_refused(stack.start(QUEUE=nobody), "start it with manage.py runbroker")
    stack.redis.stop()
    assert_refused(stack.start(), "cannot be used now", "ENODE['QUEUE']")
    stack.redis.start()
    stack.postgres.stop()
    assert_refused(stack.start(), "the event database 'default' cannot be reached")
    stack.postgres.start()
    stack.execute("DROP TABLE enode_django_eventstream")
    assert_refused(stack.start(), "has no table 'enode_django_eventstream'; run manage.py migrate")


def assert_refused(processors: Processors, *reasons: str) -> None:
    assert processors.wait_end() == 1
    assert all(reason in processors.log for reason in reasons), processors.log
    assert "Traceback" not in processors.log
    assert not processors.workers()


def test_no_worker_process_at_all_is_refused() -> None:
    with pytest.raises(CommandError, match="--processes must be at least 1, got 0"):
        call_command("runprocessors", processes=0)
