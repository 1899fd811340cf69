"""Two shards on two servers: a fault of one does not affect the other's aggregates."""

from __future__ import annotations

import os
import signal
from decimal import Decimal

import pytest

from enode_django import CommandStatus
from enode_django.eventstore.buckets import bucket_of
from sample_project.bank.domain import Deposit, OpenAccount
from sample_project.embedded import Postgres
from tests.acceptance.processors import Processors
from tests.acceptance.shards import AWAY, HERE, ShardedStack, ids_of
from tests.acceptance.stack import QUEUES
from tests.acceptance.waiting import PATIENCE, last_for, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

FAST_SWEEPS = {"SUBSCRIBERS": {"SWEEP_INTERVAL": 1.5}}


def come_back(server: Postgres) -> None:
    server.resume()
    server.start()


def open_account(stack: ShardedStack, account: str) -> None:
    answer = stack.client.execute(OpenAccount(account, owner="somebody"))
    assert answer is not None
    assert answer.status is CommandStatus.SUCCESS


def deposit(account: str) -> Deposit:
    return Deposit(account, amount=Decimal(1))


def check(stack: ShardedStack) -> None:
    """Check all invariants of both shards together, and of the read side."""
    stack.wait_followed()
    stack.wait_swept()
    stack.check()
    figures = stack.check_read_side()
    assert figures["transfers completed"] >= 1, f"too little was tried: {figures}"
    assert all(map(stack.stored_in, (HERE, AWAY)))


def test_a_shard_that_stands_still_keeps_nobody_from_the_other_and_fills_its_own_share_only(
    sharded: ShardedStack, seed: int
) -> None:
    """One worker has the queues of both, for longer than a lease; it may have 20 unfinished commands of each shard."""
    limits = {"MAX_UNFINISHED": 40, "PULL_MAX_BATCH": 10, "TIME_LIMIT": PATIENCE}
    processors = sharded.start_ready(role="all", COMMANDS=limits, **FAST_SWEEPS)
    account = ids_of(AWAY)("")
    open_account(sharded, account)
    with sharded.loads(seed) as (here, away):
        sharded.away.pause()
        waiting = sharded.ask(deposit(account))
        sharded.client.send([deposit(account) for _ in range(100)])
        last_for(3)
        here.wait_for_rounds(30)
        assert not waiting.done()
        come_back(sharded.away)
        away.wait_for_rounds(20)
    answer = waiting.result(PATIENCE)
    assert answer is not None
    assert answer.status is CommandStatus.SUCCESS
    assert len(processors.workers()) == 1, "no worker died of it"
    check(sharded)
    assert len([one for one in sharded.stored_in(AWAY) if one.aggregate_root_id == account]) == 102


def test_queues_are_taken_over_while_a_shard_refuses_connections(sharded: ShardedStack, seed: int) -> None:
    """A worker that takes over a queue ends the former owner's sessions, which fails at the shard that is away. A new
    worker asks both shards for the buckets that they own."""
    processors = sharded.start_ready(2, role="all", **FAST_SWEEPS)
    account = ids_of(HERE)("")
    open_account(sharded, account)
    with sharded.loads(seed) as (here, away):
        wait_until(lambda: len(processors.following_event_workers()) == 2, "both follow")
        sharded.wait_subscribed()
        sharded.away.stop()
        os.kill(next(iter(processors.following_event_workers().values())), signal.SIGKILL)
        for queue in (0, 3):  # one of the shard that is there, one of the shard that is away
            wait_until(lambda queue=queue: owner_of(processors, queue), f"queue {queue} has a living owner")  # type: ignore[misc]
            victim = owner_of(processors, queue)
            os.kill(processors.workers()[victim], signal.SIGKILL)
            processors.wait_for(f"worker {victim} died: killed by SIGKILL; starting another")
            wait_until(lambda queue=queue, gone=victim: processors.owners()[queue] != gone, "somebody has its queues")  # type: ignore[misc]
            here.wait_for_rounds(20)
        answer = sharded.client.execute(deposit(account))
        assert answer is not None
        wait_until(lambda: version_shown(sharded, account) == answer.version, f"version {answer.version} is shown")
        come_back(sharded.away)
        away.wait_for_rounds(20)
    check(sharded)


def owner_of(processors: Processors, queue: int) -> str:
    """The worker that has the queue; empty while that is a dead one."""
    owner = processors.owners()[queue]
    return owner if owner in processors.living_workers() else ""


def version_shown(stack: ShardedStack, account: str) -> int:
    found = stack.query("SELECT version FROM bank_accountsummary WHERE aggregate_root_id = %s", account)
    return found[0][0] if found else 0


def test_processors_and_workers_start_while_shards_are_away(sharded: ShardedStack, seed: int) -> None:
    """A worker that starts while both are away knows of no aggregate where it belongs, and pulls nothing until then."""
    first = sharded.start_ready(role="all", **FAST_SWEEPS)
    with sharded.loads(seed) as (here, away):
        sharded.away.pause()
        first.signal_group(signal.SIGKILL)
        second = sharded.start(role="all", **FAST_SWEEPS)
        second.wait_for("the event database 'events1' cannot be reached")
        # A queue with commands of the shard moves no more: it is never drained.
        wait_until(lambda: len(second.owners()) == QUEUES, "all queues are taken")
        here.wait_for_rounds(20)
        come_back(sharded.away)
        away.wait_for_rounds(20)

        for server in sharded.servers:
            server.stop()
        os.kill(next(iter(second.workers().values())), signal.SIGKILL)
        wait_until(lambda: len(second.workers()) == 2, "another worker is started")
        second.wait_for(r"the databases \['events0', 'events1'\] of the event store cannot be read")
        for server in sharded.servers:
            server.start()
        here.wait_for_rounds(20)
        away.wait_for_rounds(20)
    assert len(second.workers()) == 2, "the second worker did not die of it"
    check(sharded)


def test_processors_do_not_start_with_other_databases(sharded: ShardedStack) -> None:
    """A database is identified by its recorded shard, not by its place in the settings."""
    sharded.away.stop()
    assert_refused(sharded, "cannot know which buckets to own")  # a shard without a record might own any bucket
    assert sharded.query_shard(HERE, "SELECT count(*) FROM enode_django_shard") == [(0,)]
    sharded.away.start()
    given = list(sharded.given)
    first = sharded.start_ready()
    first.signal(signal.SIGTERM)
    assert first.wait_end() == 0

    sharded.given = given[:1]
    assert_refused(sharded, "512 of 1024 buckets belong to a shard that .* = \\['events0'\\] does not name")
    sharded.given = given[:1] * 2
    assert_refused(sharded, "'events0' and 'events1' both say that they are shard 0")
    sharded.given = [given[HERE], sharded.new_shard(sharded.away, f"{sharded.directory.name}_new")]
    assert_refused(sharded, "nothing is recorded in 'events1', .* is it the right database\\?")
    sharded.given = given[::-1]
    sharded.start_ready()
    for shard in (HERE, AWAY):
        open_account(sharded, ids_of(shard)(""))
    sharded.check(loaded=False)


def assert_refused(stack: ShardedStack, said: str) -> None:
    processors = stack.start()
    assert processors.wait_end() == 1
    assert processors.count(said), processors.log
    assert "Traceback" not in processors.log
    assert not processors.workers()


# -- buckets that move --------------------------------------------------------------------------------------------


def in_bucket(stack: ShardedStack, bucket: int) -> int:
    return sum(bucket_of(record.aggregate_root_id) == bucket for record in stack.stored())


def test_nothing_is_stored_in_a_bucket_that_was_taken_away_and_workers_follow_an_empty_one(
    sharded: ShardedStack, seed: int
) -> None:
    """Workers with the old map may be writing at that moment, and go on as if nothing were."""
    newcomer = ids_of(AWAY)("")
    empty = bucket_of(newcomer)
    account = ids_of(AWAY, without={empty})("")
    bucket = bucket_of(account)
    processors = sharded.start_ready(role="all", **FAST_SWEEPS)
    open_account(sharded, account)
    with sharded.loads(seed, without={empty}) as (here, away):
        sharded.client.send([deposit(account) for _ in range(100)])
        sharded.change_buckets(AWAY, "array_remove", bucket)
        before = in_bucket(sharded, bucket)
        waiting = sharded.ask(deposit(account))
        processors.wait_for("1 of 1024 buckets belong to a shard that .* does not name")
        last_for(2)
        assert in_bucket(sharded, bucket) == before
        assert not waiting.done()
        sharded.change_buckets(AWAY, "array_append", bucket)
        assert waiting.result(PATIENCE) is not None

        sharded.change_buckets(AWAY, "array_remove", empty)
        sharded.change_buckets(HERE, "array_append", empty)
        open_account(sharded, newcomer)
        here.wait_for_rounds(20)
        away.wait_for_rounds(20)
    assert newcomer in {record.aggregate_root_id for record in sharded.stored_in(HERE)}
    check(sharded)
