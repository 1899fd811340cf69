from __future__ import annotations

import json
import os
import random
import re
import signal
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import pytest

from enode_django.ids import new_id
from enode_django.serialization.codec import StoredStream, read_stored, restore_event
from sample_project.bank.domain import Deposit, Deposited, OpenAccount, Withdrawn
from tests.acceptance.stack import EVENTS, QUEUES, Stack
from tests.acceptance.waiting import last_for, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

APP = "tests.acceptance.reading"
BALANCES, MOVEMENTS = "reading.Balances", "reading.Movements"
SUBSCRIBERS = [BALANCES, MOVEMENTS]


@pytest.fixture
def reading(stack: Stack) -> Stack:
    stack.migrate(APP)
    return stack


def expected(stack: Stack) -> tuple[dict[str, tuple[int, Decimal, int]], list[tuple[str, int, Decimal]]]:
    """Version, balance and number of changes of each account, and its movements, by the event store alone."""
    versions: dict[str, int] = {}
    movements: dict[str, list[tuple[str, int, Decimal]]] = defaultdict(list)
    for record in stack.stored():
        if record.version is None:
            continue
        versions[record.aggregate_root_id] = record.version
        stored = read_stored(record.events)
        assert isinstance(stored, StoredStream)
        for event in map(restore_event, stored.events):
            if isinstance(event, Deposited | Withdrawn):
                movements[record.aggregate_root_id].append((record.aggregate_root_id, record.version, event.balance))
    rows = {
        id: (version, movements[id][-1][2] if movements[id] else Decimal(0), len(movements[id]))
        for id, version in versions.items()
    }
    return rows, sorted(movement for found in movements.values() for movement in found)


def check_projections(stack: Stack) -> None:
    """Wait until all is handled, then compare every row."""
    wait_until(stack.is_quiet, "all commands are finished, their events published")
    for name in SUBSCRIBERS:
        wait_until(lambda name=name: stack.is_through(name), f"{name} is done with its queues", 30)  # type: ignore[misc]
    rows, movements = expected(stack)
    found = stack.query("SELECT aggregate_root_id, version, balance, changes FROM reading_balance")
    assert {row[0]: row[1:] for row in found} == rows
    found = stack.query("SELECT account, account_version, balance FROM reading_movement ORDER BY account, 2")
    assert sorted(found) == movements
    assert movements


def test_projections_follow_though_event_workers_are_killed_again_and_again(reading: Stack, seed: int) -> None:
    random_ = random.Random(seed)
    processors = reading.start_ready(role="all", apps=APP)
    assert re.search(f"subscribers: .*{', '.join(SUBSCRIBERS)}", processors.log)
    with reading.load(seed) as load:
        for _ in range(4):
            load.wait_for_rounds(random_.randint(50, 150))
            last_for(random_.uniform(0.0, 0.3))
            victim = random_.choice(sorted(processors.living_event_workers()))
            os.kill(processors.event_workers()[victim], signal.SIGKILL)
            processors.wait_for(rf"worker {victim} died: killed by SIGKILL; starting another")
            wait_until(lambda: len(processors.living_event_workers()) == 2, "two event workers")
    assert len(processors.workers()) == 2, "no command worker was started anew"
    reading.check()
    check_projections(reading)


def released(stack: Stack, group: str) -> bool:
    leases = [stack.transport.acquire(group, EVENTS, queue, "test", 1) for queue in range(QUEUES)]
    stack.transport.release(group, EVENTS, "test", {queue: lease.epoch for queue, lease in enumerate(leases)})
    return all(lease.previous_owner is None for lease in leases)


def open_accounts(stack: Stack, count: int) -> None:
    for _ in range(count):
        account = new_id()
        stack.client.execute(OpenAccount(aggregate_root_id=account, owner="somebody"))
        stack.client.execute(Deposit(aggregate_root_id=account, amount=Decimal(5)))


@pytest.mark.parametrize("whole_group", [False, True], ids=["supervisor", "group"])
def test_events_wait_for_event_workers_which_drain_at_a_signal(
    reading: Stack, tmp_path: Path, whole_group: bool
) -> None:
    commands = reading.start_ready(role="command", apps=APP)
    open_accounts(reading, 10)
    report = tmp_path / "report.json"
    events = reading.start(2, "--report", str(report), role="event", apps=APP)
    check_projections(reading)
    open_accounts(reading, 10)
    (events.signal_group if whole_group else events.signal)(signal.SIGTERM)
    assert events.wait_end() == 0
    assert "Traceback" not in events.log
    events.wait_gone()
    assert all(released(reading, name) for name in SUBSCRIBERS)
    figures = json.loads(report.read_text())
    assert figures["subscribers"][BALANCES]["handled"] >= 20
    assert figures["handled"] == sum(one["handled"] for one in figures["subscribers"].values())
    assert (figures["parked"], figures["event_workers"], figures["workers"]) == (0, 0, 0)
    reading.start(role="event", apps=APP)
    check_projections(reading)
    assert not events.workers(), "no worker for commands"
    assert not commands.event_workers()


def test_event_workers_end_with_their_supervisor_and_its_successor_goes_on(reading: Stack) -> None:
    reading.start_ready(1, role="command", apps=APP)
    first = reading.start(role="event", apps=APP)
    open_accounts(reading, 5)
    check_projections(reading)
    first.signal(signal.SIGKILL)
    first.wait_gone()
    open_accounts(reading, 5)
    reading.start(role="event", apps=APP)
    check_projections(reading)


def test_queues_of_a_silent_event_worker_go_to_another_which_ends_its_sessions(reading: Stack) -> None:
    reading.start_ready(1, role="command", apps=APP)
    events = reading.start(role="event", apps=APP)
    open_accounts(reading, 5)
    check_projections(reading)
    wait_until(lambda: len(events.living_event_workers()) == 2, "two event workers")
    for name in events.living_event_workers():
        events.wait_for(rf"INFO {name} .*acquired events/[\d, ]+ for {BALANCES}")
    name, pid = next(iter(events.living_event_workers().items()))
    os.kill(pid, signal.SIGSTOP)
    open_accounts(reading, 10)
    events.wait_for(rf"{BALANCES} took events/[\d, ]+ from {name}, ending \d+ of its sessions")
    check_projections(reading)
    os.kill(pid, signal.SIGCONT)
    open_accounts(reading, 10)
    check_projections(reading)
    assert list(events.living_event_workers()) == list(events.event_workers()), "nobody died"


def test_event_workers_go_on_when_the_database_is_back_and_end_in_time_while_it_is_away(reading: Stack) -> None:
    reading.start_ready(1, role="command", apps=APP)
    first = reading.start(role="event", apps=APP, GRACE=2.0, SWEEP_INTERVAL=0.2)
    open_accounts(reading, 5)
    check_projections(reading)
    reading.postgres.stop()
    first.wait_for(r"(Balances|Movements) cannot (go on|be asked)", times=2)
    reading.postgres.start()
    open_accounts(reading, 5)
    check_projections(reading)
    reading.postgres.stop()
    first.signal(signal.SIGTERM)
    first.wait_end(15)
    first.wait_gone()
    assert "out of time" not in first.log
    assert "Traceback" not in first.log
    reading.postgres.start()
    open_accounts(reading, 5)
    reading.start(role="event", apps=APP)
    check_projections(reading)
