from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable

import pytest

from tests.acceptance.processors import Processors
from tests.acceptance.stack import Stack
from tests.acceptance.test_services_lost import END_WORKERS_SESSIONS
from tests.acceptance.waiting import last_for, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

FAULTS = 12


def test_one_fault_upon_the_other_breaks_no_promise(stack: Stack, seed: int) -> None:
    """No fault waits until the one before is over; ``ACCEPTANCE_SEED`` brings the same ones again."""
    random_ = random.Random(seed)
    processors = stack.start_ready(3, MAX_ABNORMAL_ENDS=100)
    with stack.load(seed):
        for _ in range(FAULTS):
            random_.choice(_faults(stack, processors, random_))()
            last_for(random_.uniform(0.0, 0.5))
        for pid in processors.living_workers().values():
            os.kill(pid, signal.SIGCONT)
    stack.check()


def _faults(stack: Stack, processors: Processors, random_: random.Random) -> list[Callable[[], object]]:
    def send(number: signal.Signals) -> None:
        wait_until(processors.living_workers, "a worker")
        os.kill(random_.choice(list(processors.living_workers().values())), number)

    def crash_redis() -> None:
        stack.redis.kill()
        stack.redis.start()

    return [
        lambda: send(signal.SIGKILL),
        lambda: send(signal.SIGSTOP),
        lambda: send(signal.SIGCONT),
        lambda: send(signal.SIGTERM),
        lambda: stack.query(END_WORKERS_SESSIONS),
        stack.postgres.restart,
        stack.redis.restart,
        crash_redis,
    ]
