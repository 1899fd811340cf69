"""A rebuild in plain processes of this machine: real ones, which load the sample project, on the tests' database."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psutil
import pytest
from django.conf import settings
from django.db import connection
from django.db.models import Model
from django.test import override_settings

from enode_django.batch import engine_for
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import ConfigurationError, JobCancelled, RebuildError, StoreUnavailable, UnknownSubscriber
from enode_django.jobs.progress import Report
from enode_django.models import ParkedEvent
from enode_django.rebuilding import catch_up_tasks, catching_up, processes
from enode_django.rebuilding import pool as pools
from enode_django.rebuilding.catch_up_tasks import CatchUpTask
from enode_django.rebuilding.engine import InProcess, Plan
from enode_django.rebuilding.pool import Pool
from enode_django.rebuilding.processes import Processes
from enode_django.rebuilding.rebuild import rebuild
from enode_django.rebuilding.replaying import Replayed, Todo
from enode_django.rebuilding.shadow import Shadow
from enode_django.rebuilding.task_messages import Failed, Task
from enode_django.runtime import replay
from enode_django.serialization.codec import encode_stream
from sample_project.bank.domain import Deposited, TransferConfirmed
from sample_project.bank.models import AccountSummary, LedgerEntry, Payee
from tests.acceptance.waiting import wait_until
from tests.rebuilding.conftest import drop_schemas, schemas
from tests.rebuilding.histories import nothing
from tests.rebuilding.tables import asked, sql
from tests.spark.accounts import account, unopened

SUMMARIES, LEDGER, PAYEES = "bank.AccountSummaries", "bank.Ledger", "bank.Payees"
ACCOUNTS = [f"a{number:02}" for number in range(20)]
MODELS: dict[str, type[Model]] = {SUMMARIES: AccountSummary, LEDGER: LedgerEntry}
WAITING = """
    SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
    WHERE NOT granted AND datname = current_database()
"""


@pytest.fixture
def store(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresEventStore]:
    """A store with some accounts. Other processes find its database by ``DATABASE_URL``."""
    database = str(connection.settings_dict["NAME"])
    monkeypatch.setenv("DATABASE_URL", urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{database}")))
    monkeypatch.setattr(processes, "TELL_EVERY", 0.0)
    store = PostgresEventStore()
    store.append([one for id in ACCOUNTS for one in account(id, range(1, 6))])
    yield store
    drop_schemas()


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """A pool for all tests, whose processes are started by the first one, and replaced after a test that kills them."""
    with contextlib.closing(Pool(2)) as pool:
        yield pool
    assert children() == []


def children() -> list[psutil.Process]:
    """Return the living processes that pools of this process have started."""
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "enode_django.rebuilding.child" in process.cmdline():
                found.append(process)
    return found


def rows(name: str) -> list[Any]:
    found = MODELS[name]._base_manager.values()
    return sorted([sorted((column, str(value)) for column, value in row.items() if column != "id") for row in found])


@pytest.mark.parametrize("name", [SUMMARIES, LEDGER])
def test_processes_come_to_the_rows_in_use(store: PostgresEventStore, pool: Pool, name: str) -> None:
    store.append([unopened("unopened")])
    replay(name)
    before, told = rows(name), list[dict[str, Any]]()

    def tell(stage: str, /, **figures: Any) -> None:
        if stage == "replay":
            told.append(figures)

    rebuilt = rebuild(name, Processes(pool), tell)
    assert rebuilt.replayed == Replayed(5 * len(ACCOUNTS) + 1, len(ACCOUNTS) + 1)
    assert (rebuilt.comparison.is_equal, rebuilt.comparison.is_whole, rebuilt.is_swapped) == (True, True, True)
    assert rows(name) == before
    assert not AccountSummary.objects.filter(pk="unopened").exists()
    assert told[-1]["done"] == told[-1]["tasks"] > 1
    assert told[-1]["streams"] == 5 * len(ACCOUNTS) + 1
    assert 1 <= len(children()) <= 2


def test_processes_build_rows_that_they_share(store: PostgresEventStore, pool: Pool) -> None:
    """Each transfer is an aggregate of its own, and all are between the same two accounts."""
    confirmed = encode_stream([TransferConfirmed(source="a", target="b")])
    (first,) = account("t", [1])
    transfer = first._replace(aggregate_root_type="bank.MoneyTransfer", events=confirmed)
    ids = [f"t{number:03}" for number in range(60)]
    store.append([transfer._replace(aggregate_root_id=id, command_id=id) for id in ids])
    replay(PAYEES)
    before = list(Payee.objects.values("source", "target", "transfers", "last_at"))
    assert [row["transfers"] for row in before] == [60]
    tasks: list[int] = []

    def tell(stage: str, /, **figures: Any) -> None:
        if stage == "replay":
            tasks.append(figures["tasks"])

    rebuilt = rebuild(PAYEES, Processes(pool), tell)
    assert rebuilt.replayed.aggregates == 60
    assert (rebuilt.comparison.is_equal, rebuilt.comparison.is_whole, rebuilt.is_swapped) == (True, True, True)
    assert list(Payee.objects.values("source", "target", "transfers", "last_at")) == before
    assert tasks[-1] > 1


def test_a_poison_event_is_parked_by_the_process_that_meets_it(store: PostgresEventStore, pool: Pool) -> None:
    large = Decimal(10) ** 30
    (poison,) = account("poisoned", [2])
    poison = poison._replace(events=encode_stream([Deposited(amount=large, balance=large)]))
    store.append([*account("poisoned", [1]), poison])
    rebuilt = rebuild(SUMMARIES, Processes(pool), nothing, accept_differences=True)
    assert rebuilt.replayed.parked == ("poisoned",)
    assert list(ParkedEvent.objects.values_list("aggregate_root_id", "version")) == [("poisoned", 2)]


def test_a_long_way_to_catch_up_is_divided_among_processes(
    store: PostgresEventStore, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "ALONE", 5)

    class Late(Processes):
        def replay(self, plan: Plan, report: Report) -> Replayed:
            """Catch up with all accounts, as if everything had been stored after the horizon."""
            todo = [Todo(id, "bank.BankAccount", 5) for id in ACCOUNTS]
            assert self.catch_up(plan.shadow, todo).aggregates == len(ACCOUNTS)
            return Replayed(5 * len(ACCOUNTS), len(ACCOUNTS))

    replay(SUMMARIES)
    assert rebuild(SUMMARIES, Late(pool), nothing).comparison.is_equal


class Held(Processes):
    """An engine whose processes wait for a lock until `release`. ``waits`` is called again and again while one
    waits."""

    def __init__(self, pool: Pool, waits: Callable[[Held], object]) -> None:
        super().__init__(pool)
        self._waits = waits
        self._other = connection.copy()

    def replay(self, plan: Plan, report: Report) -> Replayed:
        def tell(stage: str, /, **figures: object) -> None:
            ((waiting,),) = asked(WAITING)
            if waiting:
                self._waits(self)
            report(stage, **figures)

        try:
            with self._other.cursor() as cursor:
                cursor.execute(f'BEGIN; LOCK TABLE "{plan.shadow.schema}".bank_accountsummary IN SHARE MODE')
            return super().replay(plan, tell)
        finally:
            self._other.close()

    def release(self) -> None:
        with self._other.cursor() as cursor:
            cursor.execute("ROLLBACK")


def test_a_process_that_is_killed_is_replaced_and_its_range_replayed_by_another(
    store: PostgresEventStore, pool: Pool
) -> None:
    replay(SUMMARIES)
    killed: list[int] = []

    def kill_once(held: Held) -> None:
        if not killed:
            killed.extend(one.pid for one in children())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
        else:
            held.release()

    rebuilt = rebuild(SUMMARIES, Held(pool, kill_once), nothing)
    assert killed
    assert rebuilt.replayed == Replayed(5 * len(ACCOUNTS), len(ACCOUNTS))
    assert rebuilt.comparison.is_equal
    assert not {*killed} & {one.pid for one in children()}


def test_processes_that_are_killed_again_and_again_end_the_rebuild_which_leaves_nothing(
    store: PostgresEventStore, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "TRIES", 2)
    replay(SUMMARIES)
    before = rows(SUMMARIES)

    def kill(held: Held) -> None:
        for one in children():
            one.kill()

    with pytest.raises(RebuildError, match=r"2 processes that replayed the aggregates from '.*' to .* by signal 9"):
        rebuild(SUMMARIES, Held(pool, kill), nothing)
    assert (rows(SUMMARIES), schemas(), children()) == (before, [], [])


def test_a_rebuild_that_is_cancelled_ends_its_processes_in_the_middle_of_their_work(
    store: PostgresEventStore, pool: Pool
) -> None:
    def cancel(held: Held) -> None:
        assert children()
        raise JobCancelled("by request")

    with pytest.raises(JobCancelled):
        rebuild(SUMMARIES, Held(pool, cancel), nothing)
    assert (schemas(), children()) == ([], [])


def test_what_a_process_raises_is_raised_here_with_its_trace(store: PostgresEventStore, pool: Pool) -> None:
    with pytest.raises(UnknownSubscriber, match=r"no\.such") as raised:
        pool.run([Task(Shadow("no.such", "default", 1), None, [Todo("a", "bank.BankAccount", 1)])])
    assert "in a process of the rebuild" in str(raised.value.__cause__)
    assert "subscribers.get(shadow.subscriber)" in str(raised.value.__cause__)


def test_a_process_receives_its_task_where_new_sockets_do_not_block(
    store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of gevent, in a Celery worker with ``-P gevent``."""
    make_pair = socket.socketpair

    def pair() -> tuple[socket.socket, socket.socket]:
        pair = make_pair()
        for one in pair:
            one.setblocking(False)
        return pair

    monkeypatch.setattr(socket, "socketpair", pair)
    with contextlib.closing(Pool(1)) as pool, pytest.raises(UnknownSubscriber, match=r"no\.such"):
        pool.run([Task(Shadow("no.such", "default", 1), None, [Todo("a", "bank.BankAccount", 1)])])


def test_errors_of_this_package_come_back_as_they_are_and_others_are_told_in_words() -> None:
    lost = Failed("StoreUnavailable", "away", "").error()
    assert (type(lost), str(lost)) == (StoreUnavailable, "away")
    for name in ("OperationalError", "annotations", "JobRunning"):  # foreign, not an error, needs more arguments
        other = Failed(name, "away", "").error()
        assert (type(other), str(other)) == (RebuildError, f"a process of the rebuild has failed: {name}: away")


STARTS_ONE = """
import django; django.setup()
from enode_django.rebuilding.pool import _Child
child = _Child()
print(child._process.pid, flush=True)
input()
"""


def test_a_process_ends_with_the_one_that_has_started_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_ONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the end of the child", 60)


# -- the choice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("enode", "arguments", "expected"),
    [
        ({}, {}, "Processes"),
        ({"SPARK": {"MASTER": "local[2]"}}, {}, "Processes"),
        ({"REBUILDS": {"SPARK_FROM": 100}}, {}, "SparkEngine"),
        ({"REBUILDS": {"SPARK_FROM": 101}}, {}, "Processes"),
        ({"REBUILDS": {"ENGINE": "spark"}}, {}, "SparkEngine"),
        ({"REBUILDS": {"ENGINE": "spark"}}, {"engine": "processes"}, "Processes"),
        ({"REBUILDS": {"ENGINE": "processes"}}, {"master": "local[*]"}, "SparkEngine"),
        ({}, {"master": "local[*]"}, "SparkEngine"),
        ({}, {"archive": "/archive"}, "SparkEngine"),
        ({"SPARK": {"MASTER": "spark://somewhere:7077"}}, {}, "SparkEngine"),
        ({"SPARK": {"MASTER": "local-cluster[1,1,1024]"}}, {}, "SparkEngine"),
        ({"SPARK": {"MASTER": "none"}}, {}, "InProcess"),
        ({}, {"master": "none"}, "InProcess"),
    ],
)
def test_the_engine_is_chosen_by_the_place_of_the_work_and_the_size_of_the_store(
    store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch, enode: Any, arguments: Any, expected: str
) -> None:
    pytest.importorskip("pyspark")
    session = sys.modules.get("enode_django.spark.session")
    if session is not None:
        monkeypatch.setattr(session, "is_running", lambda: False)  # another test may have a session
    ((last,),) = asked("SELECT max(sequence) FROM enode_django_eventstream")
    sql(f"DELETE FROM enode_django_eventstream WHERE sequence <> {last}")
    sql("UPDATE enode_django_eventstream SET sequence = 100")
    with override_settings(ENODE={**settings.ENODE, **enode}), engine_for(**arguments) as engine:
        assert type(engine).__name__ == expected


def test_wishes_that_exclude_each_other_are_refused(store: PostgresEventStore, pool: Pool) -> None:
    with pytest.raises(ConfigurationError, match="name only one"), engine_for("local[*]", "processes"):
        pass
    with (
        override_settings(ENODE={**settings.ENODE, "SPARK": {"MASTER": "none"}}),
        pytest.raises(ConfigurationError, match="Spark has no master"),
        engine_for(engine="spark"),
    ):
        pass
    plan = Plan(Shadow(SUMMARIES, "default", 1), ["bank.BankAccount"], {}, "/archive")
    for engine in (Processes(pool), InProcess()):
        with pytest.raises(ConfigurationError, match="an archive is read by Spark"):
            engine.replay(plan, nothing)


@pytest.mark.parametrize("name", [SUMMARIES, LEDGER])
def test_what_came_during_the_replay_is_caught_up_with_in_processes(
    store: PostgresEventStore, pool: Pool, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(catch_up_tasks, "ALONE", 10)
    monkeypatch.setattr(catching_up, "ALONE", 10)
    monkeypatch.setattr(catching_up, "TASK_STREAMS", 30)

    class Engine(Processes):
        def replay(self, plan: Plan, report: Report) -> Replayed:
            replayed = super().replay(plan, report)
            store.append([one for id in ACCOUNTS[::2] for one in account(id, range(6, 14))])
            return replayed

        def work_off(self, shadow: Shadow, tasks: Sequence[CatchUpTask]) -> Replayed:
            divided.append(len(tasks))
            return super().work_off(shadow, tasks)

    divided: list[int] = []
    assert rebuild(name, Engine(pool), nothing).is_swapped
    assert max(divided) == 2
    caught_up = rows(name)
    rebuild(name, InProcess(), nothing)
    assert rows(name) == caught_up
