from __future__ import annotations

import random

import pytest

from tests.acceptance.load import HARD
from tests.acceptance.stack import Stack
from tests.acceptance.waiting import last_for

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

END_WORKERS_SESSIONS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'enode-%%'
"""


def test_postgres_may_restart_and_crash(stack: Stack, seed: int) -> None:
    random_ = random.Random(seed)
    processors = stack.start_ready()
    with stack.load(seed, pause=HARD):
        for fall in (stack.postgres.stop, stack.postgres.kill):
            last_for(random_.uniform(0.1, 0.5))
            fall()
            stack.postgres.start()
    assert len(processors.workers()) == 2, "no worker died of it"
    stack.check()


def test_postgres_may_stand_still_for_longer_than_a_lease(stack: Stack, seed: int) -> None:
    processors = stack.start_ready()
    with stack.load(seed) as load:
        stack.postgres.pause()
        last_for(3)
        stack.postgres.resume()
        load.wait_for_rounds(50)
    assert len(processors.workers()) == 2, "no worker died of it"
    stack.check()


def test_sessions_may_be_terminated_at_any_moment(stack: Stack, seed: int) -> None:
    random_ = random.Random(seed)
    processors = stack.start_ready()
    ended = 0
    with stack.load(seed, pause=HARD):
        for _ in range(20):
            ended += len(stack.query(END_WORKERS_SESSIONS))
            last_for(random_.uniform(0.01, 0.2))
    assert ended >= 20
    assert len(processors.workers()) == 2, "no worker died of it"
    stack.check()


def test_redis_may_be_stopped_for_longer_than_a_lease(stack: Stack, seed: int) -> None:
    processors = stack.start_ready()
    with stack.load(seed) as load:
        stack.redis.stop()
        last_for(3)
        stack.redis.start()
        load.wait_for_rounds(50)
    assert len(processors.workers()) == 2, "no worker died of it"
    stack.check()


def test_redis_may_crash_again_and_again(stack: Stack, seed: int) -> None:
    random_ = random.Random(seed)
    processors = stack.start_ready()
    with stack.load(seed):
        for _ in range(4):
            last_for(random_.uniform(0.1, 0.6))
            stack.redis.kill()
            stack.redis.start()
    assert len(processors.workers()) == 2, "no worker died of it"
    stack.check()


def test_redis_may_stand_still_for_longer_than_a_lease_and_a_timeout(stack: Stack, seed: int) -> None:
    processors = stack.start_ready()
    with stack.load(seed) as load:
        stack.redis.pause()
        last_for(4)
        stack.redis.resume()
        load.wait_for_rounds(50)
    assert len(processors.workers()) == 2, "no worker died of it"
    stack.check()
