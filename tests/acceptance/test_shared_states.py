"""Whatever becomes of the Redis behind the aggregate caches, and whatever lies in it, every promise is kept."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
import redis

from enode_django import CommandStatus
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.statements import TABLE
from enode_django.ids import new_id
from enode_django.serialization.codec import encode_stream
from sample_project.bank.domain import Deposit, Deposited, OpenAccount
from sample_project.embedded import Redis
from tests.acceptance.processors import Processors
from tests.acceptance.stack import Stack
from tests.acceptance.waiting import last_for, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

LEFT_ALONE = r"aggregates are loaded from the store alone for 5 s"
FEW = 4
"""Aggregates that a worker may hold: every other command loads its own."""
PLANTINGS = 300


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
        """How many states workers have found so far."""
        return int(self.client.info("stats")["keyspace_hits"])

    def wait_used(self, seconds: float = 60.0) -> None:
        """Workers write to it, and find what they wrote."""
        before = self.hits
        wait_until(lambda: self.keys and self.hits > before + 20, "shared states are written and found", seconds)


@pytest.fixture
def states(states_redis: Redis) -> Iterator[States]:
    states_redis.start()
    states = States(states_redis)
    states.client.config_set("maxmemory", 0)
    states.client.flushall()
    yield states
    states.client.close()


def start(stack: Stack, states: States, processes: int = 2, **options: Any) -> Processors:
    return stack.start_ready(processes, AGGREGATE_CACHE={**states.settings, **options})


def assert_all_live(processors: Processors) -> None:
    assert len(processors.workers()) == len(processors.living_workers()), "no worker died of it"


# -- what lies in it --------------------------------------------------------------------------------------------------


def test_stale_foreign_and_garbled_states_may_be_planted_under_load(stack: Stack, states: States, seed: int) -> None:
    random_ = random.Random(seed)
    processors = start(stack, states)
    seen: dict[bytes, list[bytes]] = {}
    planted = 0
    with stack.load(seed):
        states.wait_used()
        while planted < PLANTINGS:
            for key in states.keys:
                planted += plant(states.client, key, seen, random_)
        states.wait_used()
    assert_all_live(processors)
    assert 1 <= processors.count("is no state of ours, and is deleted") <= 2, "a worker says so once"
    assert processors.count("the shared state of .* is discarded")
    stack.check()


def plant(client: redis.Redis, key: bytes, seen: dict[bytes, list[bytes]], random_: random.Random) -> bool:
    """What was there before, what is another's, other bytes, or nothing."""
    value = client.get(key)
    if not value:
        return False  # it is gone by now, or empty already
    own = seen.setdefault(key, [])
    own.append(value)
    place = random_.randrange(len(value))
    chosen = random_.choice(
        [
            random_.choice(own),
            random_.choice(random_.choice(list(seen.values()))),
            value[:place] + bytes([value[place] ^ 1 << random_.randrange(8)]) + value[place + 1 :],
            random_.randbytes(random_.randrange(200)),
            value[:place],
        ]
    )
    client.set(key, chosen)
    return True


def test_a_conflict_right_after_a_load_from_it_is_recovered(stack: Stack, states: States) -> None:
    account = new_id()
    first = start(stack, states, 1)
    stack.client.execute(OpenAccount(aggregate_root_id=account, owner="somebody"))
    for _ in range(20):
        deposit(stack, account)
    first.signal(signal.SIGTERM)
    assert first.wait_end() == 0
    key = f"states:state:{account}"
    assert states.client.exists(key), "what was changed last is written at the end"

    hits = states.hits
    processors = start(stack, states, 1, WRITE_INTERVAL=3_600.0)
    deposit(stack, account)
    assert states.hits == hits + 1, "the account was loaded from it"
    version = plant_row(stack, account)
    for _ in range(50):
        deposit(stack, account)
    assert processors.count("stored by somebody else") == 1
    wait_until(lambda: not states.client.exists(key), "the recovery deletes the state")
    assert [record.version for record in stack.stored()] == list(range(1, version + 51))
    stack.check(loaded=False, published=False)


def deposit(stack: Stack, account: str) -> None:
    answer = stack.client.execute(Deposit(aggregate_root_id=account, amount=Decimal(1)))
    assert answer is not None
    assert answer.status is CommandStatus.SUCCESS


def plant_row(stack: Stack, account: str) -> int:
    """A deposit that somebody else has stored; returns its version."""
    newest = stack.stored()[-1]
    version = (newest.version or 0) + 1
    command = Deposit(aggregate_root_id=account, amount=Decimal(100))
    balance = Decimal(version - 2 + 100)
    row = StreamRecord(
        account,
        version,
        command.id,
        newest.aggregate_root_type,
        newest.command_type,
        datetime.now(UTC),
        encode_stream([Deposited(amount=command.amount, balance=balance)]),
        b"",
    )
    columns = ", ".join(StreamRecord._fields)
    places = ", ".join(["%s"] * len(row))
    stack.query(f"INSERT INTO {TABLE} ({columns}) VALUES ({places}) RETURNING version", *row)
    stack.journal.note_sent([command])
    return version


def test_workers_that_are_killed_again_and_again_go_on_from_it(stack: Stack, states: States, seed: int) -> None:
    random_ = random.Random(seed)
    processors = start(stack, states)
    with stack.load(seed) as load:
        states.wait_used()
        for _ in range(4):
            load.wait_for_rounds(random_.randint(50, 100))
            victim = random_.choice(sorted(processors.living_workers().keys() & set(processors.owners().values())))
            os.kill(processors.workers()[victim], signal.SIGKILL)
            processors.wait_for(rf"worker {victim} died: killed by SIGKILL; starting another")
        states.wait_used()
    stack.check()


# -- what becomes of it -----------------------------------------------------------------------------------------------


def test_it_may_crash_and_restart(stack: Stack, states: States, seed: int) -> None:
    random_ = random.Random(seed)
    processors = start(stack, states)
    with stack.load(seed) as load:
        states.wait_used()
        for _ in range(3):
            states.server.kill()
            load.wait_for_rounds(random_.randint(20, 60))
            states.server.start()
            last_for(random_.uniform(0.0, 0.5))
        states.wait_used()
    assert_all_live(processors)
    assert processors.count(LEFT_ALONE) >= 2, "each worker has told it"
    stack.check()


def test_it_may_be_away_from_the_beginning(stack: Stack, states: States, seed: int) -> None:
    states.server.stop()
    processors = start(stack, states)
    with stack.load(seed) as load:
        load.wait_for_rounds(200)
        states.server.start()
        states.wait_used()
    assert_all_live(processors)
    stack.check()


@pytest.mark.parametrize("how", ["frozen", "slow"])
def test_it_may_be_slow(stack: Stack, states: States, seed: int, how: str) -> None:
    processors = start(stack, states)
    with stack.load(seed) as load:
        states.wait_used()
        stop_answering(states, how)
        try:
            processors.wait_for(LEFT_ALONE)
            load.wait_for_rounds(200)
        finally:
            states.server.resume()
        states.wait_used()
    assert_all_live(processors)
    stack.check()


def stop_answering(states: States, how: str) -> None:
    if how == "frozen":
        states.server.pause()
    else:
        states.client.client_pause(2_000)


def test_it_may_be_full(stack: Stack, states: States, seed: int) -> None:
    processors = start(stack, states)
    with stack.load(seed) as load:
        states.wait_used()
        states.client.config_set("maxmemory", 1)
        processors.wait_for(LEFT_ALONE)
        load.wait_for_rounds(200)
        states.client.config_set("maxmemory", 0)
        states.wait_used()
    assert_all_live(processors)
    assert processors.count("OOM|maxmemory")
    stack.check()


def test_it_may_forget_everything(stack: Stack, states: States, seed: int) -> None:
    random_ = random.Random(seed)
    processors = start(stack, states)
    with stack.load(seed):
        for _ in range(10):
            states.wait_used()
            last_for(random_.uniform(0.0, 0.1))
            states.client.flushall()
    assert_all_live(processors)
    stack.check()


def test_snapshots_may_be_off(stack: Stack, states: States, seed: int) -> None:
    stack.start_ready(2, AGGREGATE_CACHE=states.settings, SNAPSHOTS={"ENABLED": False})
    with stack.load(seed):
        states.wait_used()
    stack.check()
