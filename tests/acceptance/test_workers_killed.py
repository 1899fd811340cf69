from __future__ import annotations

import os
import random
import re
import signal

import psutil
import pytest

from tests.acceptance.load import HARD, Load
from tests.acceptance.processors import Processors, is_running
from tests.acceptance.stack import REDIS_STREAMS, SLOW_REDIS_STREAMS, Stack
from tests.acceptance.waiting import last_for, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    ("transport", "commit_interval"), [(REDIS_STREAMS, 1.0), (SLOW_REDIS_STREAMS, 0.01)], ids=["fast", "slow"]
)
def test_nothing_is_lost_when_workers_are_killed_again_and_again(
    stack: Stack, seed: int, transport: str, commit_interval: float
) -> None:
    """Offsets committed at once betray what is committed too early; late ones let much come again."""
    random_ = random.Random(seed)
    processors = stack.start_ready(transport=transport, COMMIT_INTERVAL=commit_interval)
    with stack.load(seed, pause=HARD) as load:
        for _ in range(6):
            load.wait_for_rounds(random_.randint(50, 150))
            last_for(random_.uniform(0.0, 0.1))
            victim = random_.choice(sorted(processors.living_workers().keys() & set(processors.owners().values())))
            os.kill(processors.workers()[victim], signal.SIGKILL)
            processors.wait_for(rf"worker {victim} died: killed by SIGKILL; starting another")
    stack.check()


def test_the_queues_of_a_killed_worker_are_served_before_it_is_back(stack: Stack, seed: int) -> None:
    processors = stack.start_ready()
    with stack.load(seed):
        pass
    names = processors.living_workers()
    survivor = next(name for name in names if "/0-" in name)
    for deaths in range(1, 5):  # so that the supervisor takes its time before the next start
        victim = next(name for name in processors.living_workers() if name != survivor)
        os.kill(processors.living_workers()[victim], signal.SIGKILL)
        processors.wait_for(f"worker {victim} died: killed by SIGKILL; starting another")
        if deaths < 4:
            processors.wait_for("started worker .*/1-", times=deaths + 1)
            processors.wait_owning(next(name for name in processors.living_workers() if name != survivor))
    wait_until(lambda: set(processors.owners().values()) == {survivor}, f"{survivor} owns all queues")
    processors.signal(signal.SIGSTOP)  # so that however slow the rest is, the worker is not back
    assert list(processors.living_workers()) == [survivor]
    with stack.load(seed + 1) as load:
        assert load.rounds
    processors.signal(signal.SIGCONT)
    stack.check()


def test_a_supervisor_that_is_killed_takes_its_workers_with_it_and_its_successor_goes_on(
    stack: Stack, seed: int
) -> None:
    first = stack.start_ready()
    with stack.load(seed):
        first.signal(signal.SIGKILL)
        second = stack.start()
        first.wait_gone()
        second.wait_ready()
    stack.check()


def test_a_whole_group_that_is_killed_is_replaced_when_its_leases_have_ended(stack: Stack, seed: int) -> None:
    first = stack.start_ready()
    with stack.load(seed):
        first.signal_group(signal.SIGKILL)
        second = stack.start()
        second.wait_ready()
    second.wait_for("took commands/. from ")
    stack.check()


def test_a_worker_that_stood_still_past_its_lease_does_no_harm_when_it_goes_on(stack: Stack, seed: int) -> None:
    random_ = random.Random(seed)
    processors = stack.start_ready()
    with stack.load(seed) as load:
        for name, pid in list(processors.workers().items()):
            last_for(random_.uniform(0.0, 0.3))
            _stand_still_past_the_lease(processors, load, name, pid)
    assert list(processors.living_workers()) == list(processors.workers()), "nobody died"
    stack.check()


def _stand_still_past_the_lease(processors: Processors, load: Load, name: str, pid: int) -> None:
    processors.wait_ready()
    took = rf"took commands/. from {name}"
    before = processors.count(took)
    os.kill(pid, signal.SIGSTOP)
    processors.wait_for(took, times=before + 1)
    wait_until(lambda: name not in processors.owners().values(), f"{name} owns no queue")
    load.wait_for_rounds(50)
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: name in processors.owners().values(), f"{name} owns queues again")


def test_workers_do_not_die_of_a_supervisor_that_stands_still(stack: Stack, seed: int) -> None:
    processors = stack.start_ready()
    with stack.load(seed) as load:
        processors.signal(signal.SIGSTOP)
        last_for(2.5)
        load.wait_for_rounds(50)
        processors.signal(signal.SIGCONT)
        last_for(0.5)
    assert len(processors.workers()) == 2
    stack.check()


def test_a_worker_that_stays_silent_is_killed_and_replaced(stack: Stack, seed: int) -> None:
    """Silent for longer than GRACE and HANDLER_TIME_LIMIT together; no command of it is to blame."""
    processors = stack.start_ready(GRACE=3.0, HANDLER_TIME_LIMIT=5.0)
    name, pid = next(iter(processors.workers().items()))
    os.kill(pid, signal.SIGSTOP)
    with stack.load(seed):
        processors.wait_for(rf"worker {name}, process {pid}, is silent for .* s; killing it")
        (seconds,) = re.findall(rf"process {pid}, is silent for (.*) s; killing it", processors.log)
        assert float(seconds) >= 8.0, "a worker may be silent while it drains and handles"
        processors.wait_for(f"worker {name} died: killed by SIGKILL; starting another")
        processors.wait_ready()
    assert "hangs in the command" not in processors.log
    stack.check()


def test_the_process_that_forks_may_be_killed(stack: Stack, seed: int) -> None:
    """Then nobody knows how its children are, so that they are let go and replaced."""
    processors = stack.start_ready()
    before = processors.workers()
    (forking,) = {psutil.Process(pid).ppid() for pid in before.values()} - {processors.pid}
    with stack.load(seed) as load:
        os.kill(forking, signal.SIGKILL)
        for name in before:
            processors.wait_for(f"worker {name} died: nobody knows how")
        wait_until(lambda: not any(map(is_running, before.values())), "the workers that were let go have ended")
        processors.wait_ready()
        load.wait_for_rounds(50)
    assert len(processors.living_workers()) == 2
    processors.signal(signal.SIGTERM)
    assert processors.wait_end() == 0
    stack.check()
