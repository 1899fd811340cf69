"""Whatever becomes of the Redis behind the aggregate caches, and whatever lies in it, every promise is kept."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.conf import settings

from enode_django.exceptions import MalformedMessage
from enode_django.repository.sealing import Seal
from sample_project.embedded import Redis
from tests.acceptance.load import Load
from tests.acceptance.processors import Processors
from tests.acceptance.stack import Stack
from tests.acceptance.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

LEFT_ALONE = r"aggregates are loaded from the store alone"
FEW = 4
"""Aggregates that a worker may hold: every other command loads its own."""
DISCARDED = "the shared state of .* is discarded"
DELETED = "is not a state of ours, and is deleted"


class States:
    """The Redis of the shared states, and the settings by which workers use it."""

    def __init__(self, server: Redis) -> None:
        self.server = server
        self.client = redis.Redis.from_url(server.url, health_check_interval=1)

    @property
    def settings(self) -> dict[str, Any]:
        return {"MAX_AGGREGATES": FEW, "LOCATION": self.server.url, "PREFIX": "states", "WRITE_INTERVAL": 0.05}

    @property
    def keys(self) -> list[bytes]:
        return list(self.client.scan_iter("states:state:*", count=1_000))

    @property
    def hits(self) -> int:
        """Return the number of states that workers have found so far."""
        return int(self.client.info("stats")["keyspace_hits"])

    def wait_used(self) -> None:
        """Wait until workers write to the server, and find the states that they wrote."""
        before = self.hits
        wait_until(lambda: self.keys and self.hits > before + 10, "shared states are written and found")


@pytest.fixture
def states(states_redis: Redis) -> Iterator[States]:
    states_redis.start()
    states = States(states_redis)
    states.client.config_set("maxmemory", 0)
    states.client.flushall()
    yield states
    states.client.close()


def start(stack: Stack, states: States, **enode: Any) -> Processors:
    return stack.start_ready(2, AGGREGATE_CACHE=states.settings, **enode)


def assert_all_live(processors: Processors) -> None:
    assert len(processors.workers()) == len(processors.living_workers()), "no worker died of it"


def test_stale_foreign_and_garbled_states_may_be_planted_and_workers_killed(
    stack: Stack, states: States, seed: int
) -> None:
    """Snapshots are off: an aggregate can start from shared states only."""
    random_ = random.Random(seed)
    processors = start(stack, states, SNAPSHOTS={"ENABLED": False})
    seen: dict[bytes, list[bytes]] = {}

    def both_kinds_are_found() -> bool:
        for key in states.keys:
            plant(states.client, key, seen, random_)
        return bool(processors.count(DISCARDED) and processors.count(DELETED))

    with stack.load(seed) as load:
        states.wait_used()
        wait_until(both_kinds_are_found, "workers find states of both kinds that are of no use")
        states.wait_used()
        assert_all_live(processors)
        for _ in range(2):
            load.wait_for_rounds(random_.randint(20, 40))
            victim = random_.choice(sorted(processors.living_workers().keys() & set(processors.owners().values())))
            os.kill(processors.workers()[victim], signal.SIGKILL)
            processors.wait_for(rf"worker {victim} died: killed by SIGKILL; starting another")
        states.wait_used()
    stack.check()


def plant(client: redis.Redis, key: bytes, seen: dict[bytes, list[bytes]], random_: random.Random) -> None:
    """Replace a state by an earlier one, by one of another key, by other bytes, or by nothing. One of another key may
    be sealed again, as an attacker who knows the project's secret would do."""
    value = client.get(key)
    if not value:
        return  # it is gone by now, or empty already
    own = seen.setdefault(key, [])
    own.append(value)
    place = random_.randrange(len(value))
    chosen = random_.choice(
        [
            random_.choice(own),
            random_.choice(random_.choice(list(seen.values()))),
            sealed_again(*random_.choice([(from_, one) for from_, values in seen.items() for one in values]), key),
            value[:place] + bytes([value[place] ^ 1 << random_.randrange(8)]) + value[place + 1 :],
            random_.randbytes(random_.randrange(200)),
            value[:place],
        ]
    )
    client.set(key, chosen)


def sealed_again(from_: bytes, value: bytes, key: bytes) -> bytes:
    """The value as it is if it was planted itself."""
    seal = Seal([settings.SECRET_KEY])
    try:
        return seal.sealed(key.decode(), seal.opened(from_.decode(), value))
    except MalformedMessage:
        return value


def test_their_redis_may_be_away_freeze_be_full_and_forget_everything(stack: Stack, states: States, seed: int) -> None:
    states.server.stop()
    processors = start(stack, states)
    with stack.load(seed) as load:
        assert_left_alone(processors, load)
        states.server.start()
        states.wait_used()
        processors.wait_for("the shared states' redis at .* answers again")
        states.server.pause()
        try:
            assert_left_alone(processors, load)
        finally:
            states.server.resume()
        states.wait_used()
        states.client.config_set("maxmemory", 1)
        processors.wait_for("OOM|maxmemory")
        load.wait_for_rounds(20)
        states.client.config_set("maxmemory", 0)
        states.client.flushall()
        states.wait_used()
    assert_all_live(processors)
    stack.check()


def assert_left_alone(processors: Processors, load: Load) -> None:
    before = processors.count(LEFT_ALONE)
    processors.wait_for(LEFT_ALONE, times=before + 1)
    load.wait_for_rounds(20)
