from __future__ import annotations

import random

import pytest

from tests.acceptance.load import HARD
from tests.acceptance.stack import ENODE, TIMEOUT, Stack
from tests.acceptance.waiting import last_for

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

END_WORKERS_SESSIONS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'enode-%%'
"""
LONGER_THAN_A_LEASE = ENODE["WORKERS"]["LEASE"] + 1


def test_postgres_may_restart_crash_stand_still_and_terminate_sessions(stack: Stack, seed: int) -> None:
    random_ = random.Random(seed)
    processors = stack.start_ready(2)
    with stack.load(seed, pause=HARD) as load:
        for fall in (stack.postgres.stop, stack.postgres.kill):
            last_for(random_.uniform(0.1, 0.5))
            fall()
            stack.postgres.start()
            load.wait_for_rounds(20)
        stack.postgres.pause()
        last_for(LONGER_THAN_A_LEASE)
        stack.postgres.resume()
        load.wait_for_rounds(20)
        ended = 0
        while ended < 20:
            ended += len(stack.query(END_WORKERS_SESSIONS))
            last_for(random_.uniform(0.01, 0.2))
    assert len(processors.workers()) == 2, "no worker died of it"
    stack.check()


def test_redis_may_stop_crash_and_stand_still(stack: Stack, seed: int) -> None:
    random_ = random.Random(seed)
    processors = stack.start_ready(2)
    with stack.load(seed) as load:
        stack.redis.stop()
        last_for(LONGER_THAN_A_LEASE)
        stack.redis.start()
        load.wait_for_rounds(20)
        for _ in range(2):
            last_for(random_.uniform(0.1, 0.6))
            stack.redis.kill()
            stack.redis.start()
        load.wait_for_rounds(20)
        stack.redis.pause()
        last_for(max(LONGER_THAN_A_LEASE, TIMEOUT + 1))
        stack.redis.resume()
        load.wait_for_rounds(20)
    assert len(processors.workers()) == 2, "no worker died of it"
    stack.check()
