"""The demo: its commands, its verification, and a small run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from http.cookiejar import CookieJar
from multiprocessing.process import BaseProcess
from typing import Any
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

import psutil
import psycopg
import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import QuerySet
from django.test import TestCase

from enode_django import Command, CommandResult, execute_command, send_commands
from enode_django.eventstore.base import StreamRecord
from enode_django.history import events_of
from enode_django.models import EventStream
from enode_django.testing import inline
from sample_project.bank.demo.figures import COMPLETED_AT_VERSION, count_transfers, measure, percentile
from sample_project.bank.demo.producers import Producers
from sample_project.bank.demo.read_models import read_model_problems
from sample_project.bank.demo.streams import stored_records
from sample_project.bank.demo.verification import Verification
from sample_project.bank.demo.workload import OVERDRAFT, Workload
from sample_project.bank.domain import Deposit, TransferStatus, Withdraw, WithdrawalConfirmed
from sample_project.bank.models import AccountSummary, LedgerEntry
from sample_project.bank.process_managers import TransferProcess
from sample_project.bank.projections import AccountSummaries, Ledger
from sample_project.embedded import Broker
from sample_project.embedded_process import free_port, release_port
from tests import warm
from tests.template import migrated, new_database

Database = psycopg.Connection[tuple[Any, ...]]

WORKLOAD = Workload(run="r", accounts=10, commands=2_000, producers=3, transfers=101)


def test_producers_together_send_everything_and_some_movements_twice() -> None:
    sent: list[Command] = [
        command for producer in range(3) for batch in WORKLOAD.batches(producer) for command in batch
    ]
    twice = [WORKLOAD.movement(number) for number in range(2_000) if WORKLOAD.is_sent_twice(number)]
    assert 1 < len(twice) < 100
    expected = [
        *(WORKLOAD.movement(number) for number in range(2_000)),
        *(WORKLOAD.transfer(number) for number in range(101)),
        *twice,
    ]
    assert sorted(sent, key=lambda command: command.id) == sorted(expected, key=lambda command: command.id)


def test_transfers_are_of_every_kind_and_between_two_accounts() -> None:
    transfers = [WORKLOAD.transfer(number) for number in range(1_000)]
    assert all(transfer.source != transfer.target for transfer in transfers)
    accounts = set(map(WORKLOAD.account, range(10)))
    assert {transfer.source for transfer in transfers} == accounts
    assert {transfer.target for transfer in transfers} == {*accounts, WORKLOAD.nobody}
    assert 0 < sum(transfer.amount > OVERDRAFT for transfer in transfers) < 100


def test_movements_are_of_every_kind_and_reach_every_account() -> None:
    movements = [WORKLOAD.movement(number) for number in range(2_000)]
    assert {movement.aggregate_root_id for movement in movements} == set(map(WORKLOAD.account, range(10)))
    assert any(isinstance(movement, Deposit) for movement in movements)
    assert any(isinstance(movement, Withdraw) and movement.amount > OVERDRAFT for movement in movements)
    assert any(isinstance(movement, Withdraw) and movement.amount < OVERDRAFT for movement in movements)


def test_a_percentile_is_the_nearest_rank() -> None:
    seconds = [number / 100 for number in range(100, 0, -1)]
    assert (percentile(seconds, 50), percentile(seconds, 99), percentile([3.0], 50)) == (0.5, 0.99, 3.0)


class TheVerification(TestCase):
    workload = Workload(run="demo-test", accounts=5, commands=60, producers=1)
    asked: Sequence[CommandResult]

    @classmethod
    def setUpTestData(cls) -> None:
        with inline(followed_by=[]):
            send_commands(cls.workload.openings())
            for batch in cls.workload.batches(0):
                send_commands(batch)
            cls.asked = [execute_command(Deposit(cls.workload.account(0), amount=Decimal(1)))]

    def problems(self, records: Sequence[StreamRecord] | None = None) -> str:
        stored = stored_records(self.workload) if records is None else records
        return "\n".join(Verification(self.workload, self.asked, stored).problems)

    def one_movement(self) -> EventStream:
        """Return the last accepted movement of an account, so that removing it leaves no gap."""
        rows = EventStream.objects.filter(command_id__startswith=self.workload.movement_prefix, version__gt=1)
        row = rows.exclude(aggregate_root_id=self.workload.account(0)).order_by("version").last()
        assert row is not None
        return row

    def change(self, row: EventStream, assignment: str, *values: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE {EventStream._meta.db_table} SET {assignment} WHERE sequence = %s", [*values, row.pk]
            )

    def test_nothing_is_found_when_all_is_well(self) -> None:
        assert self.problems() == ""

    def test_a_missing_command_is_found(self) -> None:
        row = self.one_movement()
        rest = [record for record in stored_records(self.workload) if record.command_id != row.command_id]
        assert self.problems(rest) == f"command {row.command_id} is stored 0 times"

    def test_a_gap_is_found(self) -> None:
        row = self.one_movement()
        self.change(row, "version = version + 1")
        assert f"account {row.aggregate_root_id} has the versions [1," in self.problems()

    def test_a_wrong_balance_is_found(self) -> None:
        row = self.one_movement()
        other = EventStream.objects.filter(version__gt=1, aggregate_root_id=row.aggregate_root_id).first()
        assert other is not None
        assert other.pk != row.pk
        self.change(row, "events = %s", other.events)
        assert f"account {row.aggregate_root_id} has the balance" in self.problems()

    def test_a_command_stored_twice_is_found(self) -> None:
        row = self.one_movement()
        records = list(stored_records(self.workload))
        place, record = next((n, record) for n, record in enumerate(records) if record.command_id == row.command_id)
        records.insert(place + 1, record._replace(version=(record.version or 0) + 1))
        assert f"command {row.command_id} is stored 2 times" in self.problems(records)

    def test_an_answer_that_is_not_what_is_stored_is_found(self) -> None:
        self.change(EventStream.objects.get(command_id=self.asked[0].command_id), "version = NULL")
        assert "was answered" in self.problems()

    def test_the_figures_count_movements_only(self) -> None:
        figures = measure(self.workload)
        refused = EventStream.objects.filter(version__isnull=True).count()
        assert (figures.stored, figures.refused, figures.largest_batch) == (60, refused, 60)
        assert refused > 0


class TheVerificationOfTransfers(TestCase):
    workload = Workload(run="demo-test", accounts=5, commands=40, producers=1, transfers=30)

    @classmethod
    def setUpTestData(cls) -> None:
        with inline(followed_by=[TransferProcess, AccountSummaries, Ledger]):
            send_commands(cls.workload.openings())
            for batch in cls.workload.batches(0):
                send_commands(batch)

    def verify(self, without: Callable[[StreamRecord], bool] = lambda record: False) -> Verification:
        records = [record for record in stored_records(self.workload) if not without(record)]
        return Verification(self.workload, [], records)

    def read_models(self) -> str:
        return "\n".join(read_model_problems(self.workload, self.verify().accounts))

    def streams(self, command_type: str) -> QuerySet[EventStream]:
        return EventStream.objects.filter(command_type=command_type, version__isnull=False)

    def test_nothing_is_found_when_all_is_well(self) -> None:
        verification = self.verify()
        assert (verification.problems, self.read_models()) == ([], "")
        assert verification.balances == verification.paid_in > 0

    def test_transfers_are_counted_by_their_end(self) -> None:
        counted = count_transfers(self.workload)
        ends = Counter(transfer.status for transfer in self.verify().transfers.values())
        assert ends == {TransferStatus.COMPLETED: counted.completed, TransferStatus.CANCELLED: counted.cancelled}
        assert counted.ended == 30 > counted.completed > 0

    def test_an_open_transfer_is_found(self) -> None:
        last = EventStream.objects.filter(
            version=COMPLETED_AT_VERSION, aggregate_root_type="bank.MoneyTransfer"
        ).first()
        assert last is not None
        problems = self.verify(lambda record: record.command_id == last.command_id).problems
        assert f"transfer {last.aggregate_root_id} has not ended, it is confirmed" in problems

    def test_money_that_was_made_up_is_found(self) -> None:
        """The target received money that the source never paid."""
        row = self.streams("bank.ConfirmWithdrawal").order_by("-version")[0]
        (event,) = events_of(StreamRecord(*(getattr(row, field) for field in StreamRecord._fields)))
        assert isinstance(event, WithdrawalConfirmed)
        verification = self.verify(lambda record: record.command_id == row.command_id)
        assert any("has reservations" in problem or "there is a gap" in problem for problem in verification.problems)
        assert f"transfer {event.transfer} is completed, and moved (source, target) (0, 1) times" in (
            verification.problems
        )

    def test_a_wrong_summary_is_found(self) -> None:
        row = AccountSummary.objects.earliest("pk")
        AccountSummary.objects.filter(pk=row.pk).update(available=row.available + 1)
        assert f"account {row.pk} has the summary {row.balance} / {row.available + 1}" in self.read_models()

    def test_a_missing_summary_is_found(self) -> None:
        account = self.workload.account(1)
        AccountSummary.objects.get(pk=account).delete()
        assert self.read_models() == f"account {account} has no summary"

    def test_a_missing_entry_of_the_ledger_is_found(self) -> None:
        entry = LedgerEntry.objects.earliest("pk")
        entry.delete()
        assert f"account {entry.account} has a ledger of" in self.read_models()

    def test_an_account_that_is_not_stored_is_found(self) -> None:
        row = AccountSummary.objects.earliest("pk")
        row.pk = f"{self.workload.run}-made-up"
        row.save(force_insert=True)
        assert self.read_models() == f"account {row.pk} is shown, but not stored"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("options", "said"),
    [(["--transfers=-1"], "--transfers"), (["--accounts=1"], "two accounts"), (["--commands=0"], "--commands")],
)
def test_options_that_make_no_sense_are_refused(options: Sequence[str], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        call_command("bankdemo", *options)


@pytest.fixture
def services(postgres_url: str, private_broker: Broker) -> Iterator[Mapping[str, str]]:
    """Return the environment with a migrated database and an empty queue, without Redis, which the demo does not
    need."""
    environment = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    with new_database(postgres_url, migrated(postgres_url)) as url:
        yield {**environment, "DATABASE_URL": url, "QUEUE_URL": private_broker.url}


@contextlib.contextmanager
def running_demo(
    environment: Mapping[str, str], *arguments: str, command: str = "bankdemo"
) -> Iterator[subprocess.Popen[str]]:
    """Run the demo in a new session, whose remaining processes are killed at the end."""
    with subprocess.Popen(
        [sys.executable, "manage.py", command, *arguments],
        cwd=settings.BASE_DIR,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            for pid in session_members(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def session_members(session: int) -> list[int]:
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
    return members


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.05)


def connected(url: str) -> contextlib.AbstractContextManager[Database]:
    return psycopg.connect(url, autocommit=True)


def has_rows(database: Database) -> bool:
    with contextlib.suppress(psycopg.errors.UndefinedTable):
        table = EventStream._meta.db_table
        found = database.execute(f"SELECT EXISTS (SELECT FROM {table} WHERE command_id LIKE '%-move-%')".encode())
        return found.fetchone() == (True,)
    return False


def url_has_rows(url: str) -> bool:
    with connected(url) as database:
        return has_rows(database)


@pytest.mark.acceptance
def test_money_is_conserved_in_two_shards_though_workers_are_killed(
    services: Mapping[str, str], postgres_url: str
) -> None:
    """The demo verifies the money. Each kill comes at another step, and ends the oldest worker, so that both roles are
    killed."""
    tables = migrated(postgres_url)
    with new_database(postgres_url, tables) as one, new_database(postgres_url, tables) as other:
        environment = {**services, "EVENT_DATABASE_URLS": f"{one} {other}"}
        with running_demo(environment, "--accounts=20", "--commands=150", "--transfers=150") as demo:
            with connected(one) as first, connected(other) as second:
                for ended in (1, 25, 50, 75):
                    wait_until(partial(have_ended, demo, [first, second], ended), f"the end of {ended} transfers", 120)
                    kill_oldest_worker(demo.pid)
            shown, _ = demo.communicate(timeout=200)
            assert demo.returncode == 0, shown
            wait_until(lambda: not session_members(demo.pid), "the end of the demo's processes")
        for text in ("Verified in the database", "throughput", "150 commands in", "bank.AccountSummaries"):
            assert text in shown
        assert "completed, and" in shown
        assert all(map(url_has_rows, (one, other)))
        assert not url_has_rows(services["DATABASE_URL"])


def kill_oldest_worker(demo: int) -> None:
    """Kill the oldest command or event worker: a child of the process that forks for the supervisor."""
    found = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(demo).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                # A forked process has the command line of its parent.
                if all("runprocessors" in parent.cmdline() for parent in process.parents()[:2]):
                    found.append((process.create_time(), process.pid))
    if found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(min(found)[1], signal.SIGKILL)


def have_ended(demo: subprocess.Popen[str], shards: Sequence[Database], transfers: int) -> bool:
    return sum(map(ended_transfers, shards)) >= transfers or demo.poll() is not None


def ended_transfers(shard: Database) -> int:
    table = EventStream._meta.db_table
    with contextlib.suppress(psycopg.errors.UndefinedTable):
        row = shard.execute(
            f"SELECT count(*) FROM {table} WHERE version IS NOT NULL AND aggregate_root_type = 'bank.MoneyTransfer'"
            f" AND (version = {COMPLETED_AT_VERSION} OR command_type = 'bank.CancelTransfer')".encode()
        ).fetchone()
        return int(row[0]) if row else 0
    return 0


@pytest.mark.acceptance
def test_a_signal_ends_the_demo_and_all_it_started(services: Mapping[str, str]) -> None:
    with running_demo(services, "--accounts=200", "--commands=100000", "--producers=1", "--processes=1") as demo:
        with connected(services["DATABASE_URL"]) as database:
            wait_until(lambda: has_rows(database), "the first stored movements", 120)
        os.killpg(demo.pid, signal.SIGTERM)
        assert_ended(demo, 143)


def test_control_c_while_producers_start_is_raised_and_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    producers = Producers(Workload(run="r", accounts=1, commands=1, producers=1))
    ((process, _),) = producers._processes
    start = BaseProcess.start

    def start_interrupted(process: BaseProcess) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        start(process)

    monkeypatch.setattr(BaseProcess, "start", start_interrupted)
    with pytest.raises(KeyboardInterrupt), producers:
        pass
    assert process.exitcode is not None, "it was started, and has ended"


@pytest.mark.acceptance
def test_control_c_ends_a_demo_that_waits_for_processors(services: Mapping[str, str], postgres_url: str) -> None:
    """It has made the tables of an empty database."""
    with (
        new_database(postgres_url) as empty,
        running_demo({**services, "DATABASE_URL": empty}, "--no-processors", "--producers=1") as demo,
    ):
        assert demo.stdout is not None
        assert "A bank:" in demo.stdout.readline()
        os.killpg(demo.pid, signal.SIGINT)
        assert_ended(demo, 130)


def assert_ended(demo: subprocess.Popen[str], status: int) -> None:
    shown, _ = demo.communicate(timeout=120)
    assert demo.returncode == status, shown
    assert "Traceback" not in shown
    wait_until(lambda: not session_members(demo.pid), "the end of the demo's processes")


@pytest.mark.acceptance
def test_the_sample_shows_its_pages_to_the_user_that_it_names(services: Mapping[str, str]) -> None:
    port = free_port()
    with running_demo(services, str(port), command="banksample") as sample:
        assert sample.stdout is not None
        told = next(line for line in sample.stdout if line.startswith("the pages: "))
        server = f"http://127.0.0.1:{port}"
        assert told == f"the pages: {server}/ (user 'demo', password 'demo'); Ctrl-C ends\n"
        reader = threading.Thread(target=sample.stdout.read, daemon=True)  # a full pipe would stop the sample
        reader.start()
        visitor = Visitor(server)
        wait_until(visitor.reaches_the_server, "the web server")
        assert "Log out" in visitor.log_in("demo", "demo")
        accounts = visitor.page("/admin/bank/accountsummary/").count("/admin/bank/accountsummary/demo-")
        assert accounts == 50 + 1  # the last one is the demo's own
        assert "--body-bg" in visitor.page("/static/admin/css/base.css")
        sample.send_signal(signal.SIGINT)
        assert sample.wait(120) == 0
        reader.join(60)
        wait_until(lambda: not session_members(sample.pid), "the end of the sample's processes")
    release_port(port)


class Visitor:
    """Opens pages with the cookies that it was given."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._cookies = CookieJar()
        self._opener = build_opener(HTTPCookieProcessor(self._cookies))

    def page(self, path: str, fields: Mapping[str, str] | None = None) -> str:
        body = urlencode(fields).encode() if fields else None
        with self._opener.open(f"{self._server}{path}", body, timeout=60) as answer:
            return str(answer.read().decode())

    def reaches_the_server(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.page("/"))
        return False

    def log_in(self, user: str, password: str) -> str:
        path = "/admin/login/?next=/admin/"
        self.page(path)
        (token,) = (cookie.value for cookie in self._cookies if cookie.name == "csrftoken")
        return self.page(path, {"username": user, "password": password, "csrfmiddlewaretoken": str(token)})


def test_without_a_database_the_demo_says_what_to_set() -> None:
    environment = {**os.environ, "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"}
    ended = warm.run(["manage.py", "bankdemo", "--commands=10"], cwd=settings.BASE_DIR, env=environment)
    assert ended.returncode == 1
    assert "PostgreSQL cannot be reached; see DATABASE_URL" in ended.stderr
