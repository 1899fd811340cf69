"""Each fault under a load with transfers; then the read side must be what a replay of the store makes."""

from __future__ import annotations

import os
import random
import signal
from decimal import Decimal

import pytest

from enode_django import Command
from enode_django.eventing.messages import decode_published
from enode_django.ids import new_id
from sample_project.bank.domain import Deposit, OpenAccount, StartTransfer, Withdraw
from tests.acceptance.processors import Processors, is_running
from tests.acceptance.redelivering import Redelivery
from tests.acceptance.stack import EVENTS, QUEUES, SUBSCRIBERS, Stack
from tests.acceptance.waiting import last_for, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

SHUFFLED = "shuffled"
KILLS = 20


def check(stack: Stack, *options: str, published: bool = True) -> None:
    stack.check(published=published)
    figures = stack.check_read_side(*options)
    assert figures["transfers completed"] >= 10, f"too little was tried: {figures}"
    assert figures["transfers cancelled"] >= 10, f"too little was tried: {figures}"


def test_event_workers_may_be_killed_twenty_times(stack: Stack, seed: int) -> None:
    random_ = random.Random(seed)
    stack.start_ready(1, role="command")
    events = stack.start(3, role="event")
    with stack.load(seed, threads=2, transfers=True):  # few: what starts again and again needs the processor
        for kill in range(KILLS):
            if kill == KILLS // 2:  # a new supervisor has no reason to wait before it starts the next worker
                events.signal_group(signal.SIGKILL)
                events = stack.start(3, role="event")
            kill_one(events, random_)
    stack.wait_followed()
    check(stack)


def kill_one(events: Processors, random_: random.Random) -> None:
    wait_until(events.following_event_workers, "an event worker that follows")
    last_for(random_.uniform(0.0, 0.3))
    victim = random_.choice(sorted(events.following_event_workers().values()))
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not is_running(victim), f"the end of process {victim}")


def test_every_event_may_come_twice_and_in_any_order(stack: Stack, seed: int) -> None:
    stack.transport.create_topic(SHUFFLED, QUEUES)
    stack.start_ready(1, role="command")
    stack.start(2, role="event", EVENT_TOPIC=SHUFFLED)
    with Redelivery(stack.transport, EVENTS, SHUFFLED, seed) as redelivery:
        with stack.load(seed, transfers=True):
            pass
        stack.wait_followed(SHUFFLED, is_fed=redelivery.is_done)
    assert redelivery.delivered == 2 * sum(stack.transport.end_offsets(EVENTS).values())
    assert redelivery.out_of_order > redelivery.delivered / 10
    check(stack)


def test_two_workers_may_follow_one_queue_at_once(stack: Stack, seed: int) -> None:
    stack.start_ready(1, role="command")
    stack.start(2, role="event")
    with stack.beside("-m", "tests.acceptance.intruder") as output:
        with stack.load(seed, transfers=True):
            wait_until(lambda: all(f"{name} handled " in output.read_text() for name in SUBSCRIBERS), "the intruder")
        stack.wait_followed()
    check(stack, "--no-cache")


def test_postgres_may_restart_and_crash_while_events_are_followed(stack: Stack, seed: int) -> None:
    random_ = random.Random(seed)
    processors = stack.start_ready(1, role="command")
    events = stack.start(2, role="event")
    with stack.load(seed, transfers=True):
        for fall in (stack.postgres.stop, stack.postgres.kill):
            wait_until(lambda: len(events.following_event_workers()) == 2, "two event workers that follow")
            last_for(random_.uniform(0.1, 0.5))
            fall()
            stack.postgres.start()
    assert (len(processors.workers()), len(events.event_workers())) == (1, 2), "no worker died of it"
    stack.wait_followed()
    check(stack)
    assert not stack.query("SELECT * FROM enode_django_parkedevent"), "a database that is away is nobody's fault"


def test_the_end_of_the_events_topic_may_be_lost(stack: Stack, seed: int) -> None:
    stack.start_ready(1, role="command")
    events = stack.start(1, role="event", SWEEP_INTERVAL=0.2)
    with stack.load(seed, transfers=True) as load:
        wait_until(events.following_event_workers, "an event worker that follows")
        (worker,) = events.following_event_workers().values()
        os.kill(worker, signal.SIGSTOP)
        load.wait_for_rounds(300)
    wait_until(stack.is_quiet, "all commands are finished and committed")
    stack.delete_end(EVENTS, 0.01)
    os.kill(worker, signal.SIGCONT)
    stack.wait_swept()
    stack.wait_followed()

    events.signal(signal.SIGTERM)
    assert events.wait_end() == 0
    seen = stack.transport.end_offsets(EVENTS)
    send_what_is_to_be_lost(stack, sum(seen.values()) // 100 + 1)
    wait_until(stack.is_quiet, "all commands are finished and committed")
    lost = [decode_published(body).record for body in stack.delete_from(EVENTS, seen)]
    assert {None, 1, 2} == {record.version for record in lost}, "a refusal, a first version and another are lost"
    assert len(lost) >= sum(seen.values()) / 100
    stack.start(1, role="event", SWEEP_INTERVAL=0.2)
    stack.wait_swept()
    stack.wait_followed()
    check(stack, published=False)


def send_what_is_to_be_lost(stack: Stack, streams: int) -> None:
    commands: list[Command] = []
    while len(commands) < streams:
        account, other = new_id(), new_id()
        commands += [
            OpenAccount(aggregate_root_id=account, owner="somebody"),
            Deposit(aggregate_root_id=account, amount=Decimal(5)),
            Withdraw(aggregate_root_id=account, amount=Decimal(6)),
            StartTransfer(aggregate_root_id=new_id(), source=account, target=other, amount=Decimal(3)),
        ]
    stack.client.send(commands)
