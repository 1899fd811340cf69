"""Everything is asked, in bounded time, and nothing hides anything else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.models.functions import Now

from enode_django.conf import conf
from enode_django.equeue.dead_letters import discard
from enode_django.equeue.retrying import Failed, Message, encode_failed
from enode_django.models import Job, JobState, ParkedEvent
from enode_django.monitoring import PARTS, Health, gather
from enode_django.monitoring import databases as databases_of_status
from enode_django.monitoring.databases import ask_database
from enode_django.monitoring.flights import ask_all
from enode_django.monitoring.lags import ask_lags
from enode_django.monitoring.parts import Finding
from enode_django.monitoring.processors import ask_mailboxes, ask_processors
from enode_django.monitoring.queue import ask_queue, shown_location
from enode_django.monitoring.work import ask_jobs, ask_parked
from enode_django.runtime import make_transport
from sample_project.embedded import Broker
from tests.equeue.brokers import RunningBroker
from tests.status.conftest import BROKER, Configure, broker_at, wait_until_landed
from tests.status.reports import JUST_NOW, figures, write_report

BRIEF, LONG = 20.0, 60
"""Seconds that a caller waits for a living database, which answers within them on a busy machine. And the seconds that
a silent one takes."""


def reasons(finding: Finding) -> list[str]:
    return [problem.reason for problem in finding.problems]


def worst(finding: Finding) -> Health:
    return max((problem.health for problem in finding.problems), default=Health.OK)


# -- dead letters ------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_dead_letters_of_every_group_degrade_the_state_until_they_are_settled(
    configure: Configure, landed: None
) -> None:
    configure()
    failed = Failed(Message("orders", 0, 0, b"", attempt=5), "ValueError: secret", 1_000.0, 0.0)
    with closing(make_transport()) as transport:
        transport.create_topic("dead.billing", 1)
        transport.send("dead.billing", {0: [encode_failed(failed), encode_failed(failed), b"?"]})
        part = gather(["letters"], timeout=LONG).part("letters")
        assert [(row.group, row.error_type, row.letters) for row in part.rows] == [
            ("billing", "", 1),
            ("billing", "ValueError", 2),
        ]
        assert part.health is Health.DEGRADED
        assert [problem.reason.partition(":")[0] for problem in part.problems] == [
            "3 dead letters of messages of group 'billing'"
        ]
        discard(transport, "billing", [0, 1, 2])
        assert gather(["letters"], timeout=LONG).part("letters").health is Health.OK


# -- the whole ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_project_that_runs_is_well_in_every_part(configure: Configure, landed: None) -> None:
    configure()
    write_report("enode-1", JUST_NOW, figures(10), lived=60)
    status = gather(timeout=LONG)
    assert [part.name for part in status.parts] == list(PARTS)
    assert {part.name for part in status.parts if part.problems} == {"lag"}  # nothing has run really
    assert status.health is Health.DEGRADED
    (row,) = status.part("database").rows
    assert (row.alias, row.vendor, row.unapplied) == ("default", "postgresql", 0)
    (row,) = status.part("queue").rows
    assert row.kind == "RedisStreams"
    assert [row.state for row in status.part("processors").rows] == ["running"]


def test_a_broker_tells_of_itself(configure: Configure, private_broker: Broker) -> None:
    configure(QUEUE={"BACKEND": BROKER, "LOCATION": private_broker.url, "OPTIONS": {}})
    (row,) = ask_queue().rows
    assert (row.kind, row.address) == ("Broker", private_broker.url)
    assert row.figures["damaged_batches"] == 0


def test_a_broker_that_refuses_sends_since_its_disk_is_full_degrades_the_state(
    configure: Configure, tmp_path: Path
) -> None:
    with RunningBroker(tmp_path / "broker", reserve=1 << 62) as broker:
        configure(QUEUE={"BACKEND": BROKER, "LOCATION": broker.location, "OPTIONS": {}})
        (problem,) = ask_queue().problems
        assert problem.health is Health.DEGRADED, "probes of processes that only read must not fail"
        assert problem.reason.startswith("the broker refuses what is sent, since its disk is full (")


@pytest.mark.django_db(transaction=True)
def test_a_queue_that_cannot_be_reached_is_bad_and_hides_nothing(
    configure: Configure, closed_port: int, landed: None
) -> None:
    configure(QUEUE=broker_at(closed_port))
    status = gather(timeout=LONG)
    (problem,) = status.part("queue").problems
    assert problem.health is Health.BAD
    assert "runbroker" in problem.reason
    assert status.part("database").health is Health.OK
    assert len(status.part("lag").rows) > 1, "what the database knows is told all the same"
    assert "not known" in status.part("lag").problems[0].reason


@pytest.mark.django_db(transaction=True)
def test_a_queue_that_does_not_answer_takes_bounded_time_and_one_thread(
    configure: Configure, silent_server: socket.socket, silent_port: int, landed: None
) -> None:
    configure(QUEUE={**broker_at(silent_port), "OPTIONS": {"timeout": LONG}})
    for _ in range(2):
        status = gather(["queue", "database"], timeout=BRIEF)
        (problem,) = status.part("queue").problems
        assert problem.reason == f"queue gave no answer within {BRIEF:g} s"
        assert status.part("database").health is Health.OK
    asking = [thread for thread in threading.enumerate() if thread.name == "enode-status-queue"]
    assert len(asking) == 1
    silent_server.close()


def test_a_shard_that_does_not_answer_hides_neither_its_siblings_nor_the_rest(
    unguarded: None,
    configure: Configure,
    silent_server: socket.socket,
    silent_port: int,
    monkeypatch: pytest.MonkeyPatch,
    landed: None,
) -> None:
    default = connections["default"].settings_dict
    away = {**default, "HOST": "127.0.0.1", "PORT": str(silent_port), "OPTIONS": {"connect_timeout": LONG}}
    monkeypatch.setitem(connections.settings, "away", away)
    configure(EVENT_STORE={"DATABASES": ["default", "away"]})
    status = gather(["database", "shards", "queue"], timeout=BRIEF)
    assert [row.alias for row in status.part("shards").rows] == ["default"]
    assert [problem.reason for problem in status.part("shards").problems] == [
        f"shard away gave no answer within {BRIEF:g} s"
    ]
    assert [row.alias for row in status.part("database").rows] == ["default"]
    assert status.part("queue").health is Health.OK
    silent_server.close()
    wait_until_landed()


def test_a_shard_that_is_away_leaves_the_lag_that_the_queue_knows(
    unguarded: None, configure: Configure, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = {**connections["default"].settings_dict, "HOST": "127.0.0.1", "PORT": str(closed_port)}
    monkeypatch.setitem(connections.settings, "away", away)
    configure(EVENT_STORE={"DATABASES": ["default", "away"]})
    finding = ask_lags()
    assert len(finding.rows) > 1
    assert reasons(finding)[0] == "what shard away holds is not known: it is away"
    del connections["away"]


def test_who_asks_the_same_at_the_same_time_waits_for_the_same_answer() -> None:
    asked: list[int] = []
    go, joined = threading.Event(), threading.Semaphore(0)

    def ask() -> Finding:
        asked.append(1)
        go.wait(60)
        return Finding(rows=["answer"])

    class Lanes(dict[str, Any]):
        """Tells when each of its lanes has been asked or joined."""

        def items(self) -> Any:
            yield from super().items()
            joined.release()

    found: list[object] = []

    def wait() -> None:
        found.append(ask_all(Lanes(lane=[("part", ask)]), 60)["lane"]["part"][0].rows)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert joined.acquire(timeout=60)
    go.set()
    for thread in threads:
        thread.join(60)
    assert found == [["answer"]] * 4
    assert asked == [1]


def test_a_question_that_raises_is_answered_with_its_error_and_the_next_one_is_asked() -> None:
    def fails() -> Finding:
        raise ZeroDivisionError("no\nfurther lines")

    answers = ask_all({"lane": [("one", fails), ("two", lambda: Finding(["row"]))]}, 60)["lane"]
    assert reasons(answers["one"][0]) == ["ZeroDivisionError: no"]
    assert answers["two"][0].rows == ["row"]


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(ValueError, match="'brokers'"):
        gather(["queue", "brokers"], timeout=LONG)


def test_addresses_are_shown_without_secrets() -> None:
    assert shown_location("rediss://:sesame@cache:6380/2?password=sesame") == "rediss://cache:6380/2"
    assert "sesame" not in shown_location("redis+sentinel://user:sesame@one:1,two:2/main?sentinel_password=sesame")
    assert shown_location("unix:///run/redis.sock?password=sesame") == "unix:///run/redis.sock"


# -- its parts ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_database_without_all_migrations_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases_of_status, "_applied", set())
    assert reasons(ask_database("default")) == []
    monkeypatch.setattr(databases_of_status, "_applied", set())
    for newest in MigrationLoader(connection).graph.leaf_nodes("enode_django"):
        MigrationRecorder(connection).record_unapplied(*newest)
    (reason,) = reasons(ask_database("default"))
    assert "manage.py migrate" in reason


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("written", "health", "said"),
    [
        ([], Health.BAD, "no processor has reported"),
        ([("a", JUST_NOW, {}, False)], Health.OK, ""),
        ([("a", JUST_NOW, {}, True)], Health.BAD, "all processors have been stopped"),
        ([("a", JUST_NOW, {}, False), ("b", 100, {}, False)], Health.DEGRADED, "b is silent"),
        ([("a", JUST_NOW, {}, False), ("b", 100, {}, True)], Health.OK, ""),
        ([("a", JUST_NOW, {"workers": 1}, False)], Health.DEGRADED, "1 of 2 command workers"),
        ([("a", JUST_NOW, {"waiting_for_help": 2}, False)], Health.BAD, "2 mailboxes of a wait for a database"),
        ([("a", 100, {"waiting_for_help": 2}, False), ("b", JUST_NOW, {}, False)], Health.DEGRADED, "a is silent"),
        ([("a", JUST_NOW, {"event_workers": 0, "planned_event_workers": 0}, False)], Health.BAD, "no event worker"),
        ([("a", JUST_NOW, {"workers": 0, "planned_workers": 0}, False)], Health.BAD, "no command worker"),
    ],
)
def test_processors_are_judged_by_their_last_reports(
    written: list[tuple[str, float, dict[str, int], bool]], health: Health, said: str
) -> None:
    for supervisor, ago, changed, ended in written:
        write_report(supervisor, ago + 5, figures(1), lived=10)
        write_report(supervisor, ago, {**figures(1), **changed}, lived=15, ended=ended)
    finding = ask_processors()
    assert worst(finding) is health
    assert said in " ".join(reasons(finding))
    assert [row.supervisor for row in finding.rows] == sorted({name for name, *_ in written})


@pytest.mark.django_db
def test_that_nothing_is_reported_on_purpose_is_no_failure(configure: Configure) -> None:
    configure(REPORTS={"INTERVAL": None})
    assert worst(ask_processors()) is Health.DEGRADED


@pytest.mark.django_db
def test_mailboxes_that_are_full_are_told(configure: Configure) -> None:
    configure(COMMANDS={"MAILBOXES": 3, "MAX_UNFINISHED": 100})
    mailboxes = {"commands-0": {"max_offset": 9, "consume_offset": 7}, "events-0": {}}
    write_report("a", JUST_NOW, figures(1, unfinished=200, mailboxes=mailboxes), lived=10)
    finding = ask_mailboxes()
    (row,) = finding.rows
    assert (row.command_mailboxes, row.unfinished, row.most_unfinished) == (6, 200, 200)
    assert (row.max_offsets, row.consume_offsets) == ({"commands-0": 9}, {"commands-0": 7})
    assert worst(finding) is Health.DEGRADED


@pytest.mark.django_db(transaction=True)
def test_a_backlog_that_nobody_works_off_is_bad(configure: Configure, landed: None) -> None:
    configure()
    topic = conf().COMMANDS.TOPIC
    with closing(make_transport()) as transport:
        transport.create_topic(topic, 2)
        epoch = transport.acquire("processors", topic, 0, "me", 30.0).epoch
        transport.send(topic, {0: [b"one", b"two"]})
        transport.release("processors", topic, "me", {0: epoch})
        part = gather(["backlog"], timeout=LONG).part("backlog")
        assert [(row.group, row.backlog, row.members) for row in part.rows] == [("processors", 2, 0)]
        assert part.health is Health.BAD
        transport.join("processors", topic, "me", 30.0)
        assert gather(["backlog"], timeout=LONG).health is Health.OK


@pytest.mark.django_db
def test_what_is_parked_is_counted_by_aggregate() -> None:
    for id, command in (("a", "1"), ("a", "2"), ("b", "3")):
        ParkedEvent.objects.create(
            subscriber="bank.Ledger",
            aggregate_root_type="bank.BankAccount",
            aggregate_root_id=id,
            command_id=command,
            error_type="ValueError",
            error="ValueError: no",
            attempts=5,
            first_failed_at=Now(),
            last_failed_at=Now(),
        )
    finding = ask_parked()
    assert [(row.subscriber, row.aggregates) for row in finding.rows] == [("bank.Ledger", 2)]
    assert worst(finding) is Health.DEGRADED


@pytest.fixture
def add_job(db: None) -> Callable[..., Job]:
    def add(state: JobState, *, lease: float = 60.0, **given: object) -> Job:
        finished = None if state is JobState.RUNNING else Now()
        values = {"kind": "rebuild", "name": "bank.Ledger", "finished_at": finished, **given}
        owner = "00000000-0000-0000-0000-000000000000"
        until = Now() + timedelta(seconds=lease)
        return Job.objects.create(state=state, owner=owner, lease_until=until, started_at=Now(), **values)

    return add


def test_jobs_that_failed_are_told_until_the_same_has_succeeded(add_job: Callable[..., Job]) -> None:
    failed = add_job(JobState.FAILED, error="Traceback\nValueError: no such table")
    add_job(JobState.FAILED, name="other", finished_at=Now() - timedelta(days=3))
    finding = ask_jobs()
    assert [row.id for row in finding.rows] == [failed.pk]
    assert f"failed; manage.py enode jobs show {finding.rows[0].id} says why" in reasons(finding)[0]
    add_job(JobState.SUCCEEDED)
    assert ask_jobs() == Finding([], [])


def test_jobs_that_run_are_shown_and_those_that_were_left_are_told(add_job: Callable[..., Job]) -> None:
    running, left = add_job(JobState.RUNNING), add_job(JobState.RUNNING, name="left", lease=-1.0)
    finding = ask_jobs()
    assert [row.id for row in finding.rows] == [left.pk, running.pk]
    assert reasons(finding) == [f"job {left.pk} (rebuild of left) was left by its process; start it again"]
