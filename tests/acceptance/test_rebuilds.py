"""Projections are rebuilt by Spark while commands go on, and while whatever takes part is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from celery.result import AsyncResult

from enode_django.exceptions import SparkUnavailable
from enode_django.spark.java import check_java
from sample_project.bank.domain import Deposit, OpenAccount
from sample_project.embedded import Postgres, Redis
from tests.acceptance.celery_stack import CeleryProcess
from tests.acceptance.processors import is_running
from tests.acceptance.rebuilds import CLUSTER, SECONDS, Rebuild, RebuildStack, driver_of, family, java_of, wait_gone
from tests.acceptance.waiting import wait_until
from tests.services import services_required

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

LEDGER = "bank.Ledger"
READING, MOVEMENTS = "tests.acceptance.reading", "reading.Movements"
"""Only the checkpoints protect its rows from being stored twice."""
TABLES = {LEDGER: "bank_ledgerentry", MOVEMENTS: "reading_movement"}
CALM: dict[str, Any] = {"threads": 2, "pause": 0.2, "rounds": 20}
CALMER: dict[str, Any] = {**CALM, "varied": True, "pause": 0.6}
"""A load that leaves Spark most of the processor."""
ACCOUNTS = [f"account-{number:03}" for number in range(50)]


@pytest.fixture
def stack(faulty_postgres: Postgres, faulty_redis: Redis, processors_directory: Path) -> Iterator[RebuildStack]:
    try:
        check_java()
    except SparkUnavailable as error:
        if services_required():
            raise
        pytest.skip(str(error))
    faulty_postgres.start()
    faulty_redis.start()
    with RebuildStack(faulty_postgres, faulty_redis, processors_directory) as stack:
        yield stack


def open_accounts(stack: RebuildStack) -> None:
    """Open the accounts with a deposit each. Wait until all events are followed."""
    stack.client.send([OpenAccount(account, owner="somebody") for account in ACCOUNTS])
    stack.client.send([Deposit(account, amount=Decimal(5)) for account in ACCOUNTS])
    stack.wait_followed()


def test_commands_go_on_while_a_rebuild_loses_an_executor_and_postgres_and_while_it_is_undone(
    stack: RebuildStack, seed: int
) -> None:
    stack.install(READING, ["reading.Balances", MOVEMENTS])
    stack.start_ready(role="all")
    open_accounts(stack)
    before = stack.oid(TABLES[MOVEMENTS])
    with stack.load(seed, **CALMER) as load:
        stack.hold(MOVEMENTS)
        rebuild = stack.start_rebuild(MOVEMENTS, "--master", CLUSTER, JOBS={})
        kill_executor_of(stack, MOVEMENTS, rebuild)
        stack.postgres.stop()
        stack.postgres.start()
        load.wait_for_rounds(10)  # to be caught up with
        stack.release(MOVEMENTS)
        assert_swapped(rebuild)
        load.wait_for_rounds(10)
    check(stack)
    assert (stack.oid(TABLES[MOVEMENTS]) != before, stack.generation(MOVEMENTS)) == (True, 1)

    with stack.load(seed + 1, **CALM):
        assert_swapped(stack.rebuild(MOVEMENTS, "--undo", "--master", "none"), r"(, \d+ were not compared)?")
    check(stack)
    assert (stack.oid(TABLES[MOVEMENTS]), stack.generation(MOVEMENTS)) == (before, 0)


def assert_swapped(rebuild: Rebuild, uncompared: str = "") -> None:
    assert rebuild.wait_end(SECONDS) == 0
    assert rebuild.count(rf" 0 rows differ among [1-9]\d* aggregates{uncompared}; swapped") == 1


def check(stack: RebuildStack) -> None:
    stack.wait_followed()
    stack.check(loaded=False)
    stack.check_read_side()


def kill_executor_of(stack: RebuildStack, held: str, by: Rebuild) -> None:
    """Kill the executor of the task that waits. Wait until another one has taken over."""
    worker = stack.wait_held(held, by)
    first = {pid for pid, name in family(by.pid).items() if name == "java"}
    executor = java_of(worker)
    assert executor in first
    os.kill(executor, signal.SIGKILL)
    wait_until(lambda: not is_running(worker), "the end of what the executor has begun", SECONDS)
    wait_until(lambda: {*map(java_of, stack.held(held))} - first - {None}, "another one has taken over", SECONDS)


# -- in Celery --------------------------------------------------------------------------------------------------------

TASK = "enode_django.rebuild_projection"


def test_spark_ends_with_a_revoked_task_a_killed_driver_and_a_killed_worker_and_the_next_task_clears_up(
    stack: RebuildStack,
) -> None:
    processors = stack.start_ready(role="all")
    open_accounts(stack)
    processors.signal(signal.SIGTERM)
    processors.wait_end()
    before = stack.in_use(TABLES[LEDGER])
    worker = stack.start_worker(stack.hindered)

    task, spark = held_task(stack, worker)
    task.revoke(terminate=True)
    wait_until(lambda: stack.states("rebuild") == ["cancelled"], "the job is cancelled")
    wait_gone(spark)
    wait_until(lambda: task.state == "REVOKED", "the task knows")
    assert (stack.in_use(TABLES[LEDGER]), stack.schemas()) == (before, [])

    _, spark = held_task(stack, worker)
    driver = next(iter(spark))
    os.kill(driver, signal.SIGKILL)
    wait_gone(spark)
    assert stack.in_use(TABLES[LEDGER]) == before
    left_by_driver = stack.schemas()
    assert len(left_by_driver) == 1
    stack.wait_lease_ran_out()

    _, spark = held_task(stack, worker)
    worker.signal(signal.SIGKILL)
    wait_gone(spark)
    assert stack.in_use(TABLES[LEDGER]) == before
    left_by_worker = stack.schemas()
    assert not {*left_by_driver} & {*left_by_worker}
    stack.release(LEDGER)

    stack.wait_lease_ran_out()
    stack.start_worker(REBUILDS={"ENGINE": "processes"})  # from daemons, as Celery's children are
    task = stack.celery.send_task(TASK, [LEDGER])
    wait_until(task.ready, "the task has ended")
    figures = task.get()
    assert (figures["swapped"], figures["differences"], figures["streams"]) == (True, 0, 2 * len(ACCOUNTS))
    asked = "SELECT state, figures FROM enode_django_job WHERE kind = 'rebuild' ORDER BY id"
    assert stack.query(asked)[1:] == [("failed", {}), ("failed", {}), ("succeeded", figures)]
    assert stack.in_use(TABLES[LEDGER])[0] != before[0]
    assert not {*left_by_worker} & {*stack.schemas()}
    assert stack.query("SELECT DISTINCT generation FROM enode_django_checkpoint WHERE subscriber = %s", LEDGER)
    stack.check_read_side()


def held_task(stack: RebuildStack, worker: CeleryProcess) -> tuple[AsyncResult[Any], dict[int, str]]:
    """Begin a rebuild whose handlers wait. Return its task, and its processes with their names, the driver first."""
    stack.hold(LEDGER)
    task = stack.celery.send_task(TASK, [LEDGER])
    driver = driver_of(stack.wait_held(LEDGER, worker))
    found = {driver: "python", **family(driver)}
    assert "java" in found.values()
    return task, found
