"""The batch jobs in real Celery workers, started by a real beat, cancelled, and killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from enode_django.eventstore.base import StreamRecord
from enode_django.ids import new_id
from enode_django.serialization.codec import encode_stream
from sample_project.bank.domain import Deposited
from sample_project.embedded import Postgres, Redis
from tests.acceptance.celery_stack import CeleryStack
from tests.acceptance.snapshotting.apps import EVERY
from tests.acceptance.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

LONG, TOLD_TO_END = "tests.long_job", "tests.told_to_end"


@pytest.fixture
def stack(faulty_postgres: Postgres, faulty_redis: Redis, processors_directory: Path) -> Iterator[CeleryStack]:
    faulty_postgres.start()
    faulty_redis.start()
    with CeleryStack(faulty_postgres, faulty_redis, processors_directory) as stack:
        yield stack


def store_history(stack: CeleryStack, account: str, versions: int) -> None:
    columns = ", ".join(StreamRecord._fields)
    values = ", ".join(["%s"] * len(StreamRecord._fields))
    for version in range(1, versions + 1):
        events = encode_stream([Deposited(amount=Decimal(1), balance=Decimal(version))])
        names = ("bank.BankAccount", "bank.Deposit")
        record = StreamRecord(account, version, new_id(), *names, datetime.now(UTC), events, b"")
        stack.query(f"INSERT INTO enode_django_eventstream ({columns}) VALUES ({values}) RETURNING 1", *record)


def has_snapshot(stack: CeleryStack, account: str, version: int) -> bool:
    found = stack.query("SELECT version FROM enode_django_snapshot WHERE aggregate_root_id = %s", account)
    return found == [(version,)]


def test_beat_has_snapshots_made_again_and_again(stack: CeleryStack) -> None:
    stack.schedule = {"snapshots": {"task": "enode_django.build_snapshots", "schedule": 1.0}}
    store_history(stack, "ada", 2 * EVERY)
    stack.start_worker()
    stack.start_beat()
    wait_until(lambda: has_snapshot(stack, "ada", 2 * EVERY), "the snapshot of what there was")
    store_history(stack, "bob", EVERY)
    wait_until(lambda: has_snapshot(stack, "bob", EVERY), "the snapshot of what came later")
    wait_until(lambda: stack.states("snapshots").count("succeeded") >= 2, "two jobs have succeeded")
    assert {*stack.states("snapshots")} <= {"succeeded", "running"}
    figures = (
        "SELECT sum((figures -> 'made' ->> 'bank.BankAccount')::int) FROM enode_django_job WHERE state = 'succeeded'"
    )
    wait_until(lambda: stack.query(figures) == [(2,)], "the job that made the second snapshot has succeeded")


def test_while_one_works_another_ends_and_a_worker_may_be_killed_or_quit(stack: CeleryStack) -> None:
    worker, other_worker = stack.start_workers(2)
    first = stack.celery.send_task(LONG, ["rows"])
    process = stack.wait_progress("process")
    wait_until(lambda: first.state == "PROGRESS" and first.info["stage"] == "counting", "the progress is told")

    second = stack.celery.send_task(LONG, ["rows"])
    wait_until(lambda: second.state == "IGNORED", "the second task has ended")
    assert second.info["task"] == first.id
    assert stack.states() == ["running"]

    killed, left = (worker, other_worker) if process in worker.members() else (other_worker, worker)
    killed.kill_all()
    assert stack.states() == ["running"]
    ran_out = "SELECT 1 FROM enode_django_job WHERE state = 'running' AND lease_until < now()"
    wait_until(lambda: stack.query(ran_out), "the lease runs out")
    third = stack.celery.send_task(LONG, ["rows"])
    wait_until(lambda: stack.states() == ["failed", "running"], "the third task has taken over")
    assert stack.jobs()[0] == ("failed", "its lease ran out")

    (job,) = stack.query("SELECT id FROM enode_django_job WHERE state = 'running'")
    stack.python("manage.py", "enode", "jobs", "cancel", str(job[0]))
    wait_until(lambda: stack.states() == ["failed", "cancelled"], "the job is cancelled")
    wait_until(lambda: third.state == "REVOKED", "the task knows, too")
    assert left.is_running

    fourth = stack.celery.send_task(LONG, ["rows"])
    wait_until(lambda: stack.states()[2:] == ["running"], "the worker that is left goes on")
    left.signal(signal.SIGQUIT)
    left.wait_gone()
    assert stack.states()[2:] == ["cancelled"]
    stack.start_worker()
    wait_until(
        lambda: stack.states()[2:] == ["cancelled", "running"], "a worker that quits gives its job to another one"
    )
    tasks = stack.query("SELECT task_id FROM enode_django_job ORDER BY id")
    assert [id for (id,) in tasks[2:]] == [fourth.id] * 2


def let_lease_end(stack: CeleryStack, interval: str) -> None:
    """Let the lease of the only job end after a PostgreSQL interval."""
    stack.query("UPDATE enode_django_job SET lease_until = now() + %s::interval RETURNING 1", interval)


def test_a_task_that_is_delivered_again_takes_over_from_its_own_killed_run(stack: CeleryStack) -> None:
    worker, other_worker = stack.start_workers(2)
    task = stack.celery.send_task(LONG, ["rows"])
    process = stack.wait_progress("process")
    killed, left = (worker, other_worker) if process in worker.members() else (other_worker, worker)
    killed.kill_all()
    let_lease_end(stack, "1 hour")  # Celery may take longer than the lease to begin a task
    stack.celery.send_task(LONG, ["rows"], task_id=task.id)
    left.wait_for(rf"{LONG}\[{task.id}\] retry")
    assert stack.states() == ["running"]
    let_lease_end(stack, "0 s")
    wait_until(lambda: stack.states() == ["failed", "running"], "the task has taken over")
    assert stack.jobs()[0] == ("failed", "its lease ran out")


def test_a_task_that_is_delivered_again_while_it_runs_runs_once(stack: CeleryStack) -> None:
    worker, other_worker = stack.start_workers(2)
    task = stack.celery.send_task(LONG, ["rows"])
    process = stack.wait_progress("process")
    idle = other_worker if process in worker.members() else worker
    stack.celery.send_task(LONG, ["rows"], task_id=task.id)
    idle.wait_for(rf"{LONG}\[{task.id}\] retry")
    idle.wait_for(rf"{LONG}\[{task.id}\] ignored")
    assert stack.states() == ["running"]
    wait_until(lambda: task.state == "PROGRESS", "the run that lives tells the state")  # a delivery says STARTED first


def test_a_job_whose_process_is_told_to_end_at_any_moment_leaves_no_row_that_runs(stack: CeleryStack) -> None:
    """Celery sends SIGTERM up to twice, milliseconds apart or while the job begins or ends."""
    stack.start_worker(JOBS={"LEASE": 600.0})
    ended = "SELECT state FROM enode_django_job WHERE name = %s AND state <> 'running' ORDER BY id"

    def states_of(kind: str, *wrapper: str) -> list[str]:
        stack.celery.send_task(TOLD_TO_END, [kind, *wrapper])
        wait_until(lambda: stack.query(ended, kind), f"the job {kind} has ended")
        return [state for (state,) in stack.query(ended, kind)]

    assert states_of("brief", "begun")[0] == "cancelled"
    wait_until(lambda: len(stack.query(ended, "brief")) == 2, "the task came again")
    assert states_of("heard")[0] == "cancelled"
    wait_until(lambda: len(stack.query(ended, "heard")) == 2, "the task came again")
    assert states_of("long", "begun")[0] == "cancelled"
    assert states_of("heard_twice")[0] == "cancelled"
    assert states_of("deaf")[0] == "failed"
