"""The master of the queue is lost, with the last messages that it had acknowledged; Sentinels name its replica."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.redis_servers import NOTICED_DEAD, PATIENT, is_master
from sample_project.embedded import Postgres
from tests.acceptance.stack import EVENTS, Stack
from tests.acceptance.waiting import wait_until
from tests.equeue.redis_servers import RedisWithSentinels
from tests.services import needed

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

LOST = "was sent and has no end"
"""The checker's complaint about a command whose sender did not wait: it only knows that the queue had the command."""


@pytest.fixture
def servers() -> Iterator[RedisWithSentinels]:
    with needed():
        servers = RedisWithSentinels()
    with contextlib.closing(servers):
        yield servers


@pytest.fixture
def stack(faulty_postgres: Postgres, servers: RedisWithSentinels, processors_directory: Path) -> Iterator[Stack]:
    faulty_postgres.start()
    with Stack(faulty_postgres, servers, processors_directory) as stack:
        yield stack


def test_failover_of_the_queue_contradicts_no_answer_and_the_read_side_heals(
    stack: Stack, servers: RedisWithSentinels, seed: int
) -> None:
    commands = stack.start_ready(role="command")
    events = stack.start(role="event", SUBSCRIBERS={"SWEEP_INTERVAL": 0.5})
    with stack.load(seed, rounds=120, varied=True, pause=0.05) as load:
        wait_until(events.following_event_workers, "an event worker that follows")
        load.wait_for_rounds(20)
        replica = servers.cut_off_replica()
        before = sum(stack.transport.end_offsets(EVENTS).values())
        wait_until(lambda: sum(stack.transport.end_offsets(EVENTS).values()) >= before + 20, "enough to be lost")
        servers.notice_dead(NOTICED_DEAD)
        servers.master.kill()
        wait_until(lambda: is_master(replica), "the replica has taken over")
        servers.notice_dead(PATIENT)
        load.wait_for_rounds(20)
    assert (len(commands.workers()), len(events.event_workers())) == (1, 1), "no worker died of it"
    wait_until(stack.is_quiet, "all commands that are left are finished and committed")
    stack.wait_swept()
    stack.wait_followed()
    found = stack.violations(published=False)
    assert [problem for problem in found if LOST not in problem] == []
    print(f"{len(found)} commands that nobody waited for were lost")
    assert stack.check_read_side("--lost")["transfers completed"] >= 2
