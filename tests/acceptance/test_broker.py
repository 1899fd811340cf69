"""The broker fails under load; what was answered stays true."""

from __future__ import annotations

import os
import random
import re
import signal

import pytest

from tests.acceptance.processors import Processors
from tests.acceptance.stack import BrokerStack
from tests.acceptance.waiting import last_for

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    "broker_settings", [{"flush": "interval"}, {"flush": "every_write"}], ids=["interval", "every_write"]
)
def test_a_broker_may_be_killed_again_and_again(broker_stack: BrokerStack, seed: int) -> None:
    stack, random_ = broker_stack, random.Random(seed)
    processors = stack.start_ready(role="all")
    with stack.load(seed, varied=True, pause=0.01) as load:
        for _ in range(3):
            last_for(random_.uniform(0.2, 0.6))
            stack.broker.kill()
            stack.broker.start()
            load.wait_for_rounds(50)
    assert len(processors.workers()) == 2, "no worker died of it"
    stack.wait_followed()
    stack.check()
    stack.check_read_side()


def test_a_broker_may_stand_still_and_restart(broker_stack: BrokerStack, seed: int) -> None:
    stack = broker_stack
    processors = stack.start_ready()
    with stack.load(seed) as load:
        stack.broker.pause()
        last_for(3)
        stack.broker.resume()
        load.wait_for_rounds(50)
        stack.broker.restart()
        load.wait_for_rounds(50)
    assert len(processors.workers()) == 2, "no worker died of it"
    stack.check()


@pytest.fixture
def hosting(broker_stack: BrokerStack) -> BrokerStack:
    """With no broker but the one that processors bring."""
    broker_stack.broker.stop()
    return broker_stack


def start_hosting(stack: BrokerStack) -> Processors:
    broker = {"LISTEN": stack.broker.url, "DIRECTORY": str(stack.broker.directory / "queue")}
    return stack.start_ready(2, "--with-broker", BROKER=broker, GRACE=2.0)


def test_processors_bring_a_broker_that_is_started_again_and_ends_last(hosting: BrokerStack, seed: int) -> None:
    processors = start_hosting(hosting)
    with hosting.load(seed) as load:
        (pid,) = re.findall(r"the broker listens on .*, process (\d+)", processors.log)
        os.kill(int(pid), signal.SIGKILL)
        processors.wait_for("the broker died, exit status -9; starting another")
        load.wait_for_rounds(50)
    processors.signal_group(signal.SIGINT)  # as Ctrl-C does
    assert processors.wait_end() == 0, "workers could commit and release to the end"
    processors.wait_gone()
    hosting.broker.start()
    hosting.check()


def test_the_broker_outlives_a_supervisor_that_is_killed_until_its_workers_have_drained(
    hosting: BrokerStack, seed: int
) -> None:
    processors = start_hosting(hosting)
    with hosting.load(seed):
        pass
    processors.signal(signal.SIGKILL)
    processors.wait_gone()
    assert processors.log.index("the supervisor is gone; the broker ends in") > 0
    hosting.broker.start()
    hosting.check()
