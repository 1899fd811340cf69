from __future__ import annotations

import os
import random
import re
import signal

import psutil
import pytest

from tests.acceptance.load import Load
from tests.acceptance.processors import Processors, is_running, stop
from tests.acceptance.stack import SLOW_REDIS_STREAMS, Stack
from tests.acceptance.waiting import PATIENCE, last_for, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]


def test_workers_may_be_killed_again_and_again_and_the_others_serve_their_queues(stack: Stack, seed: int) -> None:
    """Offsets are committed at once, which reveals a commit that comes too early, and steps of the write path are slow.
    The last worker is killed while the supervisor is stopped, so it does not come back, however slow the rest is."""
    random_ = random.Random(seed)
    processors = stack.start_ready(2, transport=SLOW_REDIS_STREAMS, WORKERS={"COMMIT_INTERVAL": 0.01})
    with stack.load(seed) as load:
        for _ in range(3):
            load.wait_for_rounds(random_.randint(10, 30))
            last_for(random_.uniform(0.0, 0.1))
            victim = _kill_one(processors, random_)
            processors.wait_for(f"worker {victim} died: killed by SIGKILL; starting another")
    _wait_two_own(processors)
    processors.stop()
    victim = _kill_one(processors, random_)
    (survivor,) = {*processors.living_workers()} - {victim}
    wait_until(lambda: {*processors.owners().values()} == {survivor}, f"{survivor} owns all queues")
    with stack.load(seed + 1):
        pass
    processors.signal(signal.SIGCONT)
    stack.check()


def _wait_two_own(processors: Processors) -> None:
    wait_until(lambda: len({*processors.living_workers()} & {*processors.owners().values()}) == 2, "two own queues")


def _kill_one(processors: Processors, random_: random.Random) -> str:
    _wait_two_own(processors)
    victim = random_.choice(sorted(processors.living_workers()))
    os.kill(processors.workers()[victim], signal.SIGKILL)
    return victim


def test_a_supervisor_or_a_whole_group_that_is_killed_is_succeeded(stack: Stack, seed: int) -> None:
    """The workers end with their supervisor; the leases of those that were killed with it run out."""
    first = stack.start_ready(2)
    with stack.load(seed):
        first.signal(signal.SIGKILL)
        second = stack.start(2)
        first.wait_gone()
        second.wait_ready()
    with stack.load(seed + 1):
        second.signal_group(signal.SIGKILL)
        third = stack.start_ready()
    third.wait_for("took commands/. from ")
    stack.check()


def test_neither_a_worker_that_stands_still_past_its_lease_nor_a_supervisor_does_harm(stack: Stack, seed: int) -> None:
    processors = stack.start_ready(2, COMMANDS={"TIME_LIMIT": PATIENCE})
    with stack.load(seed) as load:
        _stand_still_past_the_lease(processors, load, *next(iter(processors.workers().items())))
        processors.stop()
        last_for(2.5)
        load.wait_for_rounds(20)
        processors.signal(signal.SIGCONT)
        processors.wait_ready()
    assert list(processors.living_workers()) == list(processors.workers()), "nobody died"
    stack.check()


def _stand_still_past_the_lease(processors: Processors, load: Load, name: str, pid: int) -> None:
    took = rf"took commands/. from {name}"
    before = processors.count(took)
    stop(pid)
    processors.wait_for(took, times=before + 1)
    wait_until(lambda: name not in processors.owners().values(), f"{name} owns no queue")
    load.wait_for_rounds(20)
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: name in processors.owners().values(), f"{name} owns queues again")


def test_a_worker_that_stays_silent_is_killed_and_replaced(stack: Stack, seed: int) -> None:
    """Silent for longer than GRACE and HANDLER_TIME_LIMIT together; no command of it is to blame."""
    processors = stack.start_ready(WORKERS={"GRACE": 1.0}, COMMANDS={"TIME_LIMIT": 10.0})
    name, pid = next(iter(processors.workers().items()))
    stop(pid)
    with stack.load(seed):
        processors.wait_for(rf"worker {name}, process {pid}, is silent for .* s; killing it")
        (seconds,) = re.findall(rf"process {pid}, is silent for (.*) s; killing it", processors.log)
        assert float(seconds) >= 11.0, "a worker may be silent while it drains and handles"
        processors.wait_for(f"worker {name} died: killed by SIGKILL; starting another")
        processors.wait_ready()
    assert "hangs in the command" not in processors.log
    stack.check()


def test_no_worker_is_killed_after_all_processes_were_suspended(stack: Stack, seed: int) -> None:
    """They were suspended for longer than a worker may be silent, and the supervisor is the first that goes on."""
    processors = stack.start_ready(2, WORKERS={"GRACE": 8.0}, COMMANDS={"TIME_LIMIT": 8.0})
    with stack.load(seed) as load:
        load.wait_for_rounds(20)
        processors.signal_group(signal.SIGSTOP)
        last_for(17.0)
        processors.signal(signal.SIGCONT)
        last_for(1.0)
        processors.signal_group(signal.SIGCONT)
        load.wait_for_rounds(20)
        processors.wait_ready()
    assert list(processors.living_workers()) == list(processors.workers()), "nobody died"
    stack.check()


def test_the_process_that_forks_may_be_killed(stack: Stack, seed: int) -> None:
    """Nobody can watch its children after that, so they are released and replaced."""
    processors = stack.start_ready(2)
    before = processors.workers()
    (forking,) = {psutil.Process(pid).ppid() for pid in before.values()} - {processors.pid}
    with stack.load(seed) as load:
        os.kill(forking, signal.SIGKILL)
        for name in before:
            processors.wait_for(f"worker {name} died: nobody knows how")
        wait_until(lambda: not any(map(is_running, before.values())), "the workers that were let go have ended")
        processors.wait_ready()
        load.wait_for_rounds(20)
    assert len(processors.living_workers()) == 2
    wait_until(stack.is_quiet, "what nobody waited for is finished")
    processors.signal(signal.SIGTERM)
    assert processors.wait_end() == 0
    stack.check()
