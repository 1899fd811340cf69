"""The broker fails under load; what was answered stays true."""

from __future__ import annotations

import random

import pytest

from tests.acceptance.stack import BrokerStack
from tests.acceptance.waiting import last_for

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]


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
