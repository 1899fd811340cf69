"""The readers, on the data that the framework really leaves: rows in Postgres, a broker's files, streams in Redis."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from chaos.checker.__main__ import main
from chaos.checker.reading.run import read_facts
from chaos.checker.rules.checkpoints import checkpoints
from chaos.checker.rules.processes import process_managers
from chaos.checker.rules.read_models import read_models
from chaos.faults.routes import AddQueues
from chaos.journal import Journal
from chaos.names import ONLOOKER
from enode_django import Command, try_command
from enode_django.conf import conf
from enode_django.conf.groups import BROKER, REDIS_STREAMS
from enode_django.domain.declarations import plain_of
from enode_django.equeue.transport import Transport
from enode_django.eventstore.buckets import select_queue
from enode_django.ids import new_id
from enode_django.processors.event_pipeline import EventPipeline
from enode_django.processors.statistics import Statistics
from enode_django.runtime import close_bus, make_store, make_transport
from enode_django.serialization.registry import types
from sample_project.bank.domain import CloseAccount, Deposit, OpenAccount, StartTransfer, Withdraw
from sample_project.notes.domain import ChangeTitle, CreateNote, DeleteNote
from tests.equeue.brokers import RunningBroker
from tests.integration.running import SECONDS, other_session, processors

pytestmark = pytest.mark.django_db(transaction=True)

TIMEOUT = 60.0
WIDER = 3
POLL = 0.25
"""In seconds. Each look reads everything that the run has left so far."""


class Client:
    """Executes commands and writes down the answers, as the clients of a run do."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True)
        self._file = path.open("w")

    def do(self, command: Command) -> None:
        fields = {name: str(value) for name, value in plain_of(command).items()}
        identity = {"id": command.id, "aggregate_root_id": command.aggregate_root_id}
        self._write({"what": "send", "command": {**identity, "type": types.name_of(type(command)), "fields": fields}})
        answer = try_command(command, timeout=TIMEOUT)
        self._write(
            {
                "what": "answer",
                "id": answer.command_id,
                "aggregate_root_id": answer.aggregate_root_id,
                "status": answer.status.name,
                "version": answer.version,
                "value": None if answer.value is None else str(answer.value),
                "error_type": answer.error_type,
                "error_message": answer.error_message,
            }
        )

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


@contextmanager
def running(queue: dict[str, Any]) -> Iterator[None]:
    close_bus()
    with processors(QUEUE=queue):
        transport = make_transport()
        keep_events(transport)
        events = EventPipeline(conf(), transport, make_store(), owner=f"test-{new_id()}", statistics=Statistics())
        events.start()
        try:
            yield
        finally:
            events.drain(SECONDS)
            events.close(SECONDS)
    close_bus()


def keep_events(transport: Transport) -> None:
    """Let a group that commits nothing keep all messages of the events topic, however long the run lasts."""
    topic = conf().SUBSCRIBERS.TOPIC
    for queue in range(transport.create_topic(topic, conf().QUEUE.QUEUES_PER_TOPIC)):
        transport.acquire(ONLOOKER, topic, queue, ONLOOKER, 1)


def widen(run: Path) -> None:
    """Add queues to the events topic, as the run's fault does."""
    topic, journal = conf().SUBSCRIBERS.TOPIC, Journal(run / "faults.jsonl")
    make_transport().add_queues(topic, WIDER * conf().QUEUE.QUEUES_PER_TOPIC, unordered=True)
    keep_events(make_transport())
    journal.note(fault=AddQueues.name, target=f"route {topic}")
    journal.close()


def an_id_that_moves() -> str:
    """Return an id whose events have another queue when there are ``WIDER`` times as many."""
    queues = conf().QUEUE.QUEUES_PER_TOPIC
    ids = iter(new_id, None)
    return next(id for id in ids if select_queue(id, queues) != select_queue(id, WIDER * queues))


def work(client: Client, midway: Callable[[], None]) -> None:
    """Something of everything, and wait until the transfers have ended."""
    ada, bob, note, gone = an_id_that_moves(), new_id(), new_id(), new_id()
    for account in (ada, bob):
        client.do(OpenAccount(aggregate_root_id=account, owner="somebody"))
    client.do(Deposit(aggregate_root_id=ada, amount=Decimal("50.25")))
    client.do(Withdraw(aggregate_root_id=ada, amount=Decimal(1000)))
    client.do(Withdraw(aggregate_root_id=ada, amount=Decimal(1)))
    midway()
    client.do(Deposit(aggregate_root_id=new_id(), amount=Decimal(1)))
    client.do(StartTransfer(aggregate_root_id=new_id(), source=ada, target=bob, amount=Decimal(20)))
    client.do(StartTransfer(aggregate_root_id=new_id(), source=bob, target=new_id(), amount=Decimal(1)))
    client.do(CreateNote(aggregate_root_id=note, title=" first "))
    client.do(ChangeTitle(aggregate_root_id=note, title="second"))
    client.do(ChangeTitle(aggregate_root_id=note, title="second"))
    client.do(CreateNote(aggregate_root_id=gone, title="gone"))
    client.do(DeleteNote(aggregate_root_id=gone))
    account = new_id()
    client.do(OpenAccount(aggregate_root_id=account, owner="a passer-by"))
    client.do(CloseAccount(aggregate_root_id=account))


def wait_until_settled(run: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_settled(run):
        assert time.monotonic() < deadline, "the run did not come to rest"
        time.sleep(POLL)


def is_settled(run: Path) -> bool:
    """Tell whether the transfers have ended, and all subscribers have followed."""
    facts, _ = read_facts(run)
    return not any(chain(process_managers(facts), checkpoints(facts), read_models(facts)))


def judge(run: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The verdict, as the command prints it; its exit status must agree."""
    capsys.readouterr()
    status = main([str(run), "--json"])
    verdict: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert status == (0 if verdict["holds"] else 1)
    return verdict


@contextmanager
def finished_run(
    run: Path, queue: dict[str, Any], left: dict[str, Any], midway: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Run and finish with the framework's setting ``queue``. The checker reads ``left``."""
    with other_session() as session:
        database = f"{session.info.dsn} password={session.info.password}"
    about = {"read_database": database, "shards": [database], "queue": left, "finished": True, "subscribers": []}
    client = Client(run / "clients" / "one.jsonl")
    with running(queue):
        topics = {"command_topic": conf().COMMANDS.TOPIC, "event_topic": conf().SUBSCRIBERS.TOPIC}
        (run / "run.json").write_text(json.dumps({**about, **topics, "group": "processors"}))
        work(client, midway)
        wait_until_settled(run)
    client.close()
    yield


def change(statement: str) -> None:
    with other_session() as session:
        assert session.execute(statement.encode()).rowcount == 1


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path / "queue") as running:
        yield running


def test_a_run_on_a_broker_is_judged_by_what_it_left_behind(
    broker: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = {"BACKEND": BROKER, "LOCATION": broker.location}
    with finished_run(tmp_path / "run", queue, {"kind": "broker", "directory": str(broker.directory)}):
        verdict = judge(tmp_path / "run", capsys)
        assert verdict["violations"] == {}
        figures = verdict["figures"]
        assert figures["transfers"] == 2
        assert figures["follow-up commands"] > 8
        assert figures["rows stored"] == figures["streams published"] > 20
        assert figures["records of the queue"] > figures["rows stored"] / 2
        change("UPDATE bank_ledgerentry SET amount = amount + 1 WHERE kind = 'transfer in'")
        assert judge(tmp_path / "run", capsys)["violations"].keys() == {"read-models"}
        change("UPDATE bank_ledgerentry SET amount = amount - 1 WHERE kind = 'transfer in'")
        change("UPDATE enode_django_eventstream SET events = '\\x01c1' WHERE command_type = 'bank.CloseAccount'")
        assert {"unreadable", "success-stored"} <= judge(tmp_path / "run", capsys)["violations"].keys()


def test_a_run_on_redis_is_judged_by_what_it_left_behind(
    redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = f"chaos-{uuid.uuid4().hex}"
    queue = {"BACKEND": REDIS_STREAMS, "LOCATION": redis_url, "OPTIONS": {"prefix": prefix}}
    with finished_run(tmp_path / "run", queue, {"kind": "redis", "url": redis_url, "prefix": prefix}):
        verdict = judge(tmp_path / "run", capsys)
        assert verdict["violations"] == {}
        assert verdict["figures"]["rows stored"] == verdict["figures"]["streams published"]
        assert verdict["figures"]["samples"] > 0
        change(
            "DELETE FROM enode_django_eventstream WHERE sequence = "
            "(SELECT max(sequence) FROM enode_django_eventstream WHERE command_type = 'bank.NoteMoved')"
        )
        broken = judge(tmp_path / "run", capsys)["violations"].keys()
        assert {"process-managers", "published", "checkpoints"} <= broken


def test_a_run_in_which_aggregates_move_to_added_queues_is_judged(
    broker: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, queue = tmp_path / "run", {"BACKEND": BROKER, "LOCATION": broker.location}
    left = {"kind": "broker", "directory": str(broker.directory)}
    with finished_run(run, queue, left, midway=partial(widen, run)):
        assert judge(run, capsys)["violations"] == {}
        (run / "faults.jsonl").unlink()
        assert judge(run, capsys)["violations"].keys() == {"published"}
