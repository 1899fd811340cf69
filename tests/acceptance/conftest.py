from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from chaos.processes import guarded_directory
from enode_django.eventing.registry import subscribers
from sample_project.embedded import Postgres, Redis
from tests.acceptance.shards import ShardedStack
from tests.acceptance.stack import SUBSCRIBERS, BrokerStack, Stack
from tests.services import WarmBroker, private
from tests.template import ACCEPTANCE, QuickPostgres, migrate, new_postgres


def _with_template(server: Postgres) -> Postgres:
    """It gets a migrated database, as which every other one begins."""
    migrate(server.url, ACCEPTANCE)
    return server


@pytest.fixture(scope="session")
def faulty_postgres() -> Iterator[Postgres]:
    """The acceptance tests' own, to be restarted; it has a migrated template database."""
    yield from map(_with_template, private(new_postgres()))


@pytest.fixture(scope="session")
def shard_servers(faulty_postgres: Postgres) -> Iterator[Sequence[Postgres]]:
    """Two, each with the template database; the other is not a copy, as two copies would be the same cluster."""
    for other in map(_with_template, private(QuickPostgres())):
        yield [faulty_postgres, other]


@pytest.fixture(scope="session")
def faulty_redis() -> Iterator[Redis]:
    """The acceptance tests' own, to be stopped; a kill of its process loses nothing that it has acknowledged."""
    yield from private(Redis({"appendfsync": "no"}))


@pytest.fixture(scope="session")
def states_redis() -> Iterator[Redis]:
    """Another one, for the shared states alone."""
    yield from private(Redis({"appendonly": "no"}))


@pytest.fixture(scope="session")
def processors_directory() -> Iterator[Path]:
    with guarded_directory("enode-acceptance-") as directory:
        yield directory


@pytest.fixture
def stack(faulty_postgres: Postgres, faulty_redis: Redis, processors_directory: Path) -> Iterator[Stack]:
    """An empty event store and empty queues. At the end every process is killed, and its log printed."""
    faulty_postgres.start()
    faulty_redis.start()
    with Stack(faulty_postgres, faulty_redis, processors_directory) as stack:
        yield stack


@pytest.fixture
def sharded(
    shard_servers: Sequence[Postgres], faulty_redis: Redis, processors_directory: Path
) -> Iterator[ShardedStack]:
    """Yield a stack like ``stack``, with an event store of two shards."""
    for server in (*shard_servers, faulty_redis):
        server.resume()
        server.start()
    with ShardedStack(shard_servers, faulty_redis, processors_directory) as stack:
        yield stack


@pytest.fixture
def broker_stack(faulty_postgres: Postgres, faulty_redis: Redis, processors_directory: Path) -> Iterator[BrokerStack]:
    """Yield a stack like ``stack``, with the queues in the test's own broker. Redis serves caches only."""
    faulty_postgres.start()
    faulty_redis.start()
    with (
        WarmBroker() as broker,
        BrokerStack(faulty_postgres, faulty_redis, processors_directory, broker) as stack,
    ):
        yield stack


@pytest.fixture
def seed() -> int:
    """Return the seed of the load and of the times of faults. ``ACCEPTANCE_SEED`` repeats a run."""
    seed = int(os.environ.get("ACCEPTANCE_SEED") or random.randrange(1_000_000))
    print(f"ACCEPTANCE_SEED={seed}")
    return seed


@pytest.fixture
def following() -> Iterator[Sequence[str]]:
    """The sample's subscribers alone are those that this process waits for, whatever other tests declare."""
    with subscribers.only(*(subscribers.get(name) for name in SUBSCRIBERS)):
        yield SUBSCRIBERS
