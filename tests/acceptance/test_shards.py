"""Two shards on two servers: what becomes of one is nothing to the other's aggregates."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from decimal import Decimal

import pytest

from enode_django import CommandStatus
from enode_django.eventstore.buckets import bucket_of
from sample_project.bank.domain import Deposit, OpenAccount
from sample_project.embedded import Postgres
from tests.acceptance.shards import AWAY, HERE, ShardedStack, ids_of
from tests.acceptance.stack import QUEUES
from tests.acceptance.waiting import last_for, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

Fall = Callable[[Postgres], None]
STANDS_STILL, REFUSES = Postgres.pause, Postgres.stop
"""The two ways of being away: a server that says nothing, and one that takes no connections."""
FAST_SWEEPS = {"SWEEP_INTERVAL": 0.5}


def come_back(server: Postgres) -> None:
    server.resume()
    server.start()


def open_account(stack: ShardedStack, shard: int) -> str:
    account = ids_of(shard)("")
    answer = stack.client.execute(OpenAccount(aggregate_root_id=account, owner="somebody"))
    assert answer is not None
    assert answer.status is CommandStatus.SUCCESS
    return account


def deposit(account: str) -> Deposit:
    return Deposit(aggregate_root_id=account, amount=Decimal(1))


def check(stack: ShardedStack) -> None:
    """All that must hold of both shards together, and of what follows them."""
    stack.wait_followed(seconds=90)
    stack.wait_swept()
    stack.check()
    figures = stack.check_read_side()
    assert figures["transfers completed"] >= 3, f"too little was tried: {figures}"
    assert all(map(stack.stored_in, (HERE, AWAY)))


@pytest.mark.parametrize(("processes", "fall"), [(1, STANDS_STILL), (2, REFUSES)], ids=["stands-still", "refuses"])
def test_a_shard_that_is_away_keeps_nobody_from_the_other(
    sharded: ShardedStack, seed: int, processes: int, fall: Fall
) -> None:
    """With one worker both shards are the same worker's; for longer than a lease."""
    processors = sharded.start_ready(processes, role="all", **FAST_SWEEPS)
    account = open_account(sharded, AWAY)
    with sharded.loads(seed) as (here, away):
        fall(sharded.away)
        waiting = sharded.ask(deposit(account))
        last_for(5)
        here.wait_for_rounds(100)
        assert not waiting.done()
        come_back(sharded.away)
        away.wait_for_rounds(50)
    answer = waiting.result(60)
    assert answer is not None
    assert (answer.status, answer.version) == (CommandStatus.SUCCESS, 2)
    assert len(processors.workers()) == processes, "no worker died of it"
    check(sharded)


def test_a_shard_that_is_away_fills_its_own_share_only(sharded: ShardedStack, seed: int) -> None:
    """One worker has the queues of both; it may have 20 unfinished commands of each shard."""
    sharded.start_ready(1, role="all", MAX_UNFINISHED=40, PULL_MAX_BATCH=10, **FAST_SWEEPS)
    account = open_account(sharded, AWAY)
    with sharded.loads(seed) as (here, away):
        sharded.away.pause()
        sharded.client.send([deposit(account) for _ in range(500)])
        here.wait_for_rounds(200)
        come_back(sharded.away)
        away.wait_for_rounds(50)
    check(sharded)
    assert len([one for one in sharded.stored_in(AWAY) if one.aggregate_root_id == account]) == 501


def test_queues_are_taken_over_while_a_shard_is_away(sharded: ShardedStack, seed: int) -> None:
    """Whoever takes a queue ends the sessions of the one who had it, which the shard that is away does not let him; and
    a new worker asks both shards for what they own."""
    processors = sharded.start_ready(2, role="all", **FAST_SWEEPS)
    with sharded.loads(seed) as (here, away):
        sharded.away.stop()
        for queue in (0, 3):  # of the shard that is there, and of the one that is away
            victim = processors.owners()[queue]
            os.kill(processors.workers()[victim], signal.SIGKILL)
            processors.wait_for(f"worker {victim} died: killed by SIGKILL; starting another")
            wait_until(lambda queue=queue, gone=victim: processors.owners()[queue] != gone, "somebody has its queues")  # type: ignore[misc]
            here.wait_for_rounds(100)
        come_back(sharded.away)
        away.wait_for_rounds(50)
    check(sharded)


def test_event_workers_go_on_with_the_other_shard(sharded: ShardedStack, seed: int) -> None:
    """Also those that take the queues of one that was killed."""
    sharded.start_ready(1, role="command")
    events = sharded.start(2, role="event", **FAST_SWEEPS)
    account = open_account(sharded, HERE)
    with sharded.loads(seed) as (_, away):
        wait_until(lambda: len(events.following_event_workers()) == 2, "both follow")
        sharded.wait_subscribed()
        sharded.away.stop()
        os.kill(next(iter(events.following_event_workers().values())), signal.SIGKILL)
        answer = sharded.client.execute(deposit(account))
        assert answer is not None
        wait_until(lambda: version_shown(sharded, account) == answer.version, f"version {answer.version} is shown")
        sharded.away.start()
        away.wait_for_rounds(50)
    check(sharded)


def version_shown(stack: ShardedStack, account: str) -> int:
    found = stack.query("SELECT version FROM bank_accountsummary WHERE aggregate_root_id = %s", account)
    return found[0][0] if found else 0


def test_processors_start_while_a_shard_is_away(sharded: ShardedStack, seed: int) -> None:
    first = sharded.start_ready(role="all", **FAST_SWEEPS)
    with sharded.loads(seed) as (here, away):
        sharded.away.pause()
        first.signal_group(signal.SIGKILL)
        second = sharded.start(role="all", **FAST_SWEEPS)
        second.wait_for("the event database 'events1' cannot be asked")
        # A queue with commands of the shard moves no more: it is never drained.
        wait_until(lambda: len(second.owners()) == QUEUES, "all queues are taken")
        here.wait_for_rounds(100)
        come_back(sharded.away)
        away.wait_for_rounds(50)
    check(sharded)


def test_a_worker_that_starts_while_both_shards_are_away_waits_for_them(sharded: ShardedStack, seed: int) -> None:
    """It knows of no aggregate where it belongs, and pulls nothing until then."""
    processors = sharded.start_ready(1)
    with sharded.loads(seed) as (here, away):
        for server in sharded.servers:
            server.stop()
        os.kill(next(iter(processors.workers().values())), signal.SIGKILL)
        wait_until(lambda: len(processors.workers()) == 2, "another worker is started")
        processors.wait_for(r"the databases \['events0', 'events1'\] of the event store cannot be reached", times=3)
        for server in sharded.servers:
            server.start()
        here.wait_for_rounds(50)
        away.wait_for_rounds(50)
    assert len(processors.workers()) == 2, "the second worker did not die of it"
    sharded.check()


def test_processors_do_not_start_on_new_shards_of_which_one_is_away(sharded: ShardedStack) -> None:
    """Whoever has nothing recorded might own anything."""
    sharded.away.stop()
    processors = sharded.start()
    assert processors.wait_end(30) == 1
    assert "cannot know which buckets to own" in processors.log
    assert "Traceback" not in processors.log
    assert sharded.query_shard(HERE, "SELECT count(*) FROM enode_django_shard") == [(0,)]


# -- wrong maps ---------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(sharded: ShardedStack) -> ShardedStack:
    """Both shards know what they own, and have streams."""
    processors = sharded.start_ready(role="all", **FAST_SWEEPS)
    for shard in (HERE, AWAY):
        open_account(sharded, shard)
    sharded.wait_followed()
    processors.signal(signal.SIGTERM)
    assert processors.wait_end() == 0
    return sharded


def one_less(stack: ShardedStack) -> list[str]:
    return stack.given[:1]


def one_twice(stack: ShardedStack) -> list[str]:
    return [stack.given[HERE]] * 2


def an_empty_one(stack: ShardedStack) -> list[str]:
    return [stack.given[HERE], stack.new_shard(stack.away, f"{stack.directory.name}_new")]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (one_less, "512 of 1024 buckets belong to a shard that .* = \\['events0'\\] does not name"),
        (one_twice, "'events0' and 'events1' both say that they are shard 0"),
        (an_empty_one, "nothing is recorded in 'events1', .* is it the right database\\?"),
    ],
)
def test_processors_do_not_start_with_other_databases(
    recorded: ShardedStack, names: Callable[[ShardedStack], list[str]], said: str
) -> None:
    recorded.given = names(recorded)
    processors = recorded.start(role="all")
    assert processors.wait_end() == 1
    assert processors.count(said), processors.log
    assert "Traceback" not in processors.log
    assert not processors.workers()


def test_the_order_of_the_databases_does_not_matter(recorded: ShardedStack, seed: int) -> None:
    """What a shard has recorded counts, not its place in the settings."""
    recorded.given.reverse()
    recorded.start_ready(role="all", **FAST_SWEEPS)
    with recorded.loads(seed + 10):
        pass
    check(recorded)


def in_bucket(stack: ShardedStack, bucket: int) -> int:
    return sum(bucket_of(record.aggregate_root_id) == bucket for record in stack.stored())


def test_nothing_is_stored_in_a_bucket_that_was_taken_away(sharded: ShardedStack, seed: int) -> None:
    """Workers with the old map may be writing at that moment, and go on as if nothing were."""
    processors = sharded.start_ready(role="all", **FAST_SWEEPS)
    account = open_account(sharded, AWAY)
    bucket = bucket_of(account)
    with sharded.loads(seed) as (here, away):
        sharded.client.send([deposit(account) for _ in range(300)])
        sharded.change_buckets(AWAY, "array_remove", bucket)
        before = in_bucket(sharded, bucket)
        waiting = sharded.ask(deposit(account))
        processors.wait_for("1 of 1024 buckets belong to a shard that .* does not name")
        last_for(2)
        assert in_bucket(sharded, bucket) == before
        assert not waiting.done()
        sharded.change_buckets(AWAY, "array_append", bucket)
        here.wait_for_rounds(50)
        away.wait_for_rounds(50)
    assert waiting.result(60) is not None
    check(sharded)


def test_workers_follow_an_empty_bucket_to_its_new_shard(sharded: ShardedStack, seed: int) -> None:
    account = ids_of(AWAY)("")
    bucket = bucket_of(account)
    sharded.start_ready(role="all", **FAST_SWEEPS)
    with sharded.loads(seed, without={bucket}) as (here, away):
        if in_bucket(sharded, bucket):
            pytest.skip("a transfer between any shards has begun in the bucket")
        sharded.change_buckets(AWAY, "array_remove", bucket)
        sharded.change_buckets(HERE, "array_append", bucket)
        answer = sharded.client.execute(OpenAccount(aggregate_root_id=account, owner="somebody"))
        assert answer is not None
        assert answer.status is CommandStatus.SUCCESS
        here.wait_for_rounds(50)
        away.wait_for_rounds(50)
    assert account in {record.aggregate_root_id for record in sharded.stored_in(HERE)}
    check(sharded)
