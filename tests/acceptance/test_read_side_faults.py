"""Faults under a load with transfers. After each fault the read side must equal a replay of the store."""

from __future__ import annotations

import os
import random
import signal
from decimal import Decimal

import pytest

from enode_django import Command
from enode_django.bus.messages import decode_published
from enode_django.ids import new_id
from sample_project.bank.domain import Deposit, OpenAccount, StartTransfer, Withdraw
from sample_project.notes.domain import ChangeTitle, CreateNote, DeleteNote
from tests.acceptance.processors import Processors, is_running, stop
from tests.acceptance.redelivering import Redelivery
from tests.acceptance.stack import EVENTS, HINDERED, QUEUES, SLOW_REDIS_STREAMS, Stack
from tests.acceptance.waiting import PATIENCE, last_for, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

READING = "tests.acceptance.reading"
"""Only the checkpoints protect its rows from being stored twice."""
SHUFFLED = "shuffled"
WAITING_FOR_LOCKS = "SELECT * FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
def reading(stack: Stack) -> Stack:
    stack.install(READING, ["reading.Balances", "reading.Movements"])
    return stack


def check(stack: Stack, *options: str, published: bool = True) -> None:
    stack.check(published=published)
    figures = stack.check_read_side(*options)
    assert figures["transfers completed"] >= 2, f"too little was tried: {figures}"
    assert figures["transfers cancelled"] >= 3, f"too little was tried: {figures}"
    assert figures["followed by notes.Notes"] > figures["rows of Note"] > 0, f"no note was deleted, or all: {figures}"


def test_event_workers_may_be_killed_again_and_again(reading: Stack, seed: int) -> None:
    random_ = random.Random(seed)
    commands = reading.start_ready(role="command")
    events = reading.start(2, role="event", transport=SLOW_REDIS_STREAMS)
    with reading.load(seed, varied=True):
        for _ in range(3):
            kill_one(events, random_)
        wait_until(events.following_event_workers, "an event worker that follows")
        events.signal_group(signal.SIGKILL)
        reading.start(role="event")
    reading.wait_followed()
    check(reading)
    assert len(commands.workers()) == 1, "no command worker was started anew"


def kill_one(events: Processors, random_: random.Random) -> None:
    wait_until(events.following_event_workers, "an event worker that follows")
    last_for(random_.uniform(0.0, 0.3))
    victim = random_.choice(sorted(events.following_event_workers().values()))
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not is_running(victim), f"the end of process {victim}")


def test_every_event_may_come_twice_and_in_any_order(reading: Stack, seed: int) -> None:
    reading.transport.create_topic(SHUFFLED, QUEUES)
    reading.start_ready(role="command")
    reading.start(role="event", SUBSCRIBERS={"TOPIC": SHUFFLED})
    with Redelivery(reading.transport, EVENTS, SHUFFLED, seed) as redelivery:
        with reading.load(seed, varied=True):
            pass
        reading.wait_followed(SHUFFLED, is_fed=redelivery.is_done)
    assert redelivery.delivered == 2 * sum(reading.transport.end_offsets(EVENTS).values())
    assert redelivery.out_of_order > redelivery.delivered / 10
    check(reading)


def test_two_workers_may_follow_one_queue_at_once(reading: Stack, seed: int) -> None:
    reading.start_ready(role="command")
    reading.start(role="event")
    with reading.beside("-m", "tests.acceptance.intruder") as output:
        wanted = [f"{name} handled " for name in reading.subscribers]
        wait_until(lambda: all(text in output.read_text() for text in wanted), "the intruder is under way")
        with reading.load(seed, varied=True):
            pass
        reading.wait_followed()
    check(reading, "--no-cache")


def test_a_worker_that_comes_late_brings_no_deleted_row_back(stack: Stack) -> None:
    stack.start_ready(role="command")
    events = stack.start(
        role="event", COMMANDS={"TIME_LIMIT": PATIENCE}
    )  # it will stand still, and is not to be killed
    note = new_id()
    stack.client.send([CreateNote(note, title="note")])
    stack.wait_followed()
    (worker,) = events.following_event_workers().values()
    hold, held = stack.directory / "holding-notes.Notes", stack.directory / "held-notes.Notes"
    hold.touch()
    with stack.beside("-m", "tests.acceptance.intruder", "2", apps=HINDERED) as output:
        stop(worker)
        stack.client.send([ChangeTitle(note, title="another title")])
        wait_until(held.exists, "the intruder has changed the row and not committed it")
        stack.client.send([DeleteNote(note)])
        wait_until(stack.is_quiet, "the note is deleted")
        os.kill(worker, signal.SIGCONT)
        wait_until(
            lambda: stack.query(WAITING_FOR_LOCKS) or stack.is_through("notes.Notes"),
            "the worker has to wait for the intruder, or got past it",
        )
        hold.unlink()
        wait_until(lambda: "notes.Notes handled 2" in output.read_text(), "the intruder has committed")
        stack.wait_followed()
    assert stack.query("SELECT * FROM notes_note") == []
    assert stack.check_read_side("--no-cache")["followed by notes.Notes"] == 1


def test_postgres_may_restart_and_crash_while_events_are_followed(reading: Stack, seed: int) -> None:
    processors = reading.start_ready(role="command")
    events = reading.start(role="event", SUBSCRIBERS={"SWEEP_INTERVAL": 0.5})
    with reading.load(seed, varied=True) as load:
        away = r"enode_django\.outages: (?!a database answers again)"
        for fall in (reading.postgres.stop, reading.postgres.kill):
            wait_until(events.following_event_workers, "an event worker that follows")
            known = events.count(away)
            fall()
            events.wait_for(away, times=known + 1)
            reading.postgres.start()
            load.wait_for_rounds(20)
    assert (len(processors.workers()), len(events.event_workers())) == (1, 1), "no worker died of it"
    reading.wait_followed()
    check(reading)
    assert not reading.query("SELECT * FROM enode_django_parkedevent"), "a database that is away is nobody's fault"
    reading.postgres.stop()
    events.signal(signal.SIGTERM)
    events.wait_end()
    events.wait_gone()
    assert "out of time" not in events.log
    assert "Traceback" not in events.log


def test_the_end_of_the_events_topic_may_be_lost(stack: Stack, seed: int) -> None:
    commands = stack.start_ready(role="command")
    events = stack.start(
        role="event", apps=HINDERED, SUBSCRIBERS={"SWEEP_INTERVAL": 0.5}, COMMANDS={"TIME_LIMIT": PATIENCE}
    )
    with stack.load(seed, varied=True) as load:
        wait_until(events.following_event_workers, "an event worker that follows")
        (worker,) = events.following_event_workers().values()
        stop(worker)
        load.wait_for_rounds(80)
    wait_until(stack.is_quiet, "all commands are finished and committed")
    stack.delete_end(EVENTS, 0.05)
    os.kill(worker, signal.SIGCONT)
    stack.wait_swept()
    stack.wait_followed()

    send_reservations_and_stop(stack, commands, events)
    seen = stack.transport.end_offsets(EVENTS)
    (worker,) = commands.living_workers().values()
    os.kill(worker, signal.SIGCONT)
    send_what_is_to_be_lost(stack, sum(seen.values()) // 100 + 1)
    wait_until(stack.is_quiet, "all commands are finished and committed")
    lost = [decode_published(body).record for body in stack.delete_from(EVENTS, seen)]
    assert {None, 1, 2} <= {record.version for record in lost}, "a refusal, a first version and another are lost"
    assert ("bank.ReserveWithdrawal", None) in {(record.command_type, record.version) for record in lost}
    assert len(lost) >= sum(seen.values()) / 100
    stack.start(role="event", SUBSCRIBERS={"SWEEP_INTERVAL": 0.5})
    stack.wait_swept()
    stack.wait_followed()
    check(stack, published=False)


def send_reservations_and_stop(stack: Stack, commands: Processors, events: Processors) -> None:
    """Let the process manager send reservations while the command worker is stopped. Then end the event workers."""
    hold, held = stack.directory / "holding-bank.transfers", stack.directory / "held-bank.transfers"
    transfers = [transfer_from(new_id()) for _ in range(5)]
    named = stack.directory / "named"
    named.write_text(" ".join(transfer.aggregate_root_id for transfer in transfers))
    named.replace(hold)  # atomically: an empty file would also hold older transfers, whose commands are sent again
    stack.client.send(transfers)
    wait_until(held.exists, "the process manager is in the middle of it")
    (worker,) = commands.living_workers().values()
    stop(worker)
    hold.unlink()
    wait_until(lambda: stack.is_through("bank.transfers"), "the process manager is done with all there is")
    events.signal(signal.SIGTERM)
    assert events.wait_end() == 0


def transfer_from(account: str) -> Command:
    return StartTransfer(new_id(), source=account, target=new_id(), amount=Decimal(3))


def send_what_is_to_be_lost(stack: Stack, streams: int) -> None:
    sent: list[Command] = []
    while len(sent) < streams:
        account = new_id()
        sent += [
            OpenAccount(account, owner="somebody"),
            Deposit(account, amount=Decimal(5)),
            Withdraw(account, amount=Decimal(6)),
            transfer_from(account),
        ]
    stack.client.send(sent)
