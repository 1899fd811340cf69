"""Redis is full of unhandled commands, and has no room for the events that result from them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from enode_django.client import send_commands
from enode_django.exceptions import QueueFull
from sample_project.bank.domain import OpenAccount
from sample_project.embedded import Postgres, Redis
from tests.acceptance.stack import EVENTS, Stack
from tests.acceptance.waiting import wait_until
from tests.services import private

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

MEMORY = 6 * 1024 * 1024
OWNER = "somebody " * 200


@pytest.fixture
def full_redis() -> Iterator[Redis]:
    yield from private(Redis({"maxmemory": str(MEMORY), "maxmemory-policy": "noeviction"}))


@pytest.fixture
def stack(faulty_postgres: Postgres, full_redis: Redis, processors_directory: Path) -> Iterator[Stack]:
    faulty_postgres.start()
    with Stack(faulty_postgres, full_redis, processors_directory) as stack:
        stack.transport.retire_group("onlooker", EVENTS)
        yield stack


def test_workers_make_room_in_a_redis_full_of_commands_and_the_read_side_has_it_all(stack: Stack) -> None:
    sent = 0
    with contextlib.suppress(QueueFull):
        for number in count():
            send_commands([OpenAccount(f"account-{number}", owner=OWNER)])
            sent += 1
    workers = stack.start_ready(role="command")
    events = stack.start(role="event", SUBSCRIBERS={"SWEEP_INTERVAL": 0.2})
    wait_until(stack.is_quiet, "all commands are handled and committed")
    stack.wait_subscribed()
    stack.wait_swept()
    wait_until(lambda: opened(stack) >= sent, "the read side has all accounts")
    assert stack.query("SELECT count(*) FROM bank_accountsummary WHERE owner = %s", OWNER) == [(opened(stack),)]
    stack.client.execute(OpenAccount("after", owner="somebody"))
    assert (len(workers.workers()), len(events.event_workers())) == (1, 1), "no worker died of it"


def opened(stack: Stack) -> int:
    ((number,),) = stack.query("SELECT count(*) FROM bank_accountsummary")
    return int(number)
