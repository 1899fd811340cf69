"""An event whose schema changed twice, and whose name and aggregate's name changed, between two deploys."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest

from enode_django import CommandResult, CommandStatus
from enode_django.ids import new_id
from tests.acceptance.load import PAUSE
from tests.acceptance.meters.commands import Measure
from tests.acceptance.processors import Processors
from tests.acceptance.stack import QUEUES, Stack
from tests.acceptance.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

METERS = "tests.acceptance.meters"
FIRST, THIRD = f"{METERS} {METERS}.first", f"{METERS} {METERS}.third"
READINGS, SNAPSHOTS = "meters.Readings", "enode.snapshots"
DELAYS = [0.1, 0.2]
"""Seconds that old code waits for newer code to take over, by attempt."""


@pytest.fixture
def meters(stack: Stack) -> Stack:
    """The checks at the end use the third edition."""
    stack.install(f"{METERS} {METERS}.third", [READINGS])
    return stack


def measure(stack: Stack, meter: str, watt_hours: int) -> CommandResult:
    answer = stack.client.execute(Measure(meter, amount=Decimal(watt_hours) / 1000))
    assert answer is not None
    return answer


def accepted(stack: Stack) -> dict[str, list[int]]:
    """The watt hours of each stored command, by meter, in the order of versions."""
    found: dict[str, list[int]] = defaultdict(list)
    for record in stack.stored():
        command = stack.journal.sent[record.command_id]
        assert isinstance(command, Measure)
        assert record.version == len(found[record.aggregate_root_id]) + 1
        found[record.aggregate_root_id].append(int(command.amount * 1000))
    return found


def check(stack: Stack) -> None:
    """Check that results, rows and snapshots agree with the accepted commands, and that none of the first edition is
    left."""
    stack.check(loaded=False)
    stack.wait_followed()
    found = accepted(stack)
    for answers in stack.journal.answers.values():
        for answer in answers:
            if answer.status is CommandStatus.SUCCESS:
                assert answer.value == sum(found[answer.aggregate_root_id][: answer.version])
            else:
                assert answer.error_type == "UnknownMessageType"
    rows = stack.query("SELECT aggregate_root_id, version, watt_hours, changes FROM meters_reading")
    assert {row[0]: row[1:] for row in rows} == {id: (len(all), sum(all), len(all)) for id, all in found.items()}
    wait_until(lambda: stack.is_through(SNAPSHOTS), "snapshots are made of all events")
    stack.python("manage.py", "enode", "buildsnapshots")
    printed = stack.python("manage.py", "enode", "buildsnapshots", "--verify", "1000000")
    assert "0 differ, 0 were made by other code" in printed
    types = {name for (name,) in stack.query("SELECT aggregate_root_type FROM enode_django_snapshot")}
    assert types == {"meters.PowerMeter"}
    stack.check_read_side()


def end(processors: Processors) -> None:
    processors.signal_group(signal.SIGTERM)
    processors.wait_end()


def test_events_of_the_first_schema_are_read_by_code_two_versions_later(meters: Stack) -> None:
    ids = [new_id() for _ in range(4)]
    first = meters.start_ready(role="all", apps=FIRST, SUBSCRIBERS={"SWEEP_INTERVAL": 0.5})
    for meter in ids:
        meters.client.send([Measure(meter, amount=Decimal("0.125")) for _ in range(24)])
        assert measure(meters, meter, 1_500).value == 24 * 125 + 1_500
    meters.wait_followed()
    wait_until(lambda: meters.is_through(SNAPSHOTS), "the first edition has made its snapshots")
    meters.wait_swept()  # else the next sweep would replace them all
    fingerprints = meters.query("SELECT DISTINCT aggregate_root_type, fingerprint FROM enode_django_snapshot")
    assert [name for name, _ in fingerprints] == ["meters.Meter"]
    end(first)
    third = meters.start_ready(role="all")
    for meter in ids[:-1]:
        answer = measure(meters, meter, 7)
        assert (answer.status, answer.version, answer.value) == (CommandStatus.SUCCESS, 26, 24 * 125 + 1_500 + 7)
    third.wait_for("snapshots of meters.Meter that other code has made are not used")
    meters.wait_followed()
    wait_until(lambda: meters.is_through(SNAPSHOTS), "the third edition has made its snapshots")
    replaced = "SELECT aggregate_root_id FROM enode_django_snapshot WHERE aggregate_root_type = 'meters.PowerMeter'"
    assert {id for (id,) in meters.query(replaced)} == {*ids[:-1]}, "the next event of an aggregate replaces its own"
    check(meters)


@contextlib.contextmanager
def measuring(stack: Stack, seed: int) -> Iterator[None]:
    """Senders at work until the block ends; each reads meters of its own and of others, and new ones all the time."""
    stop, ids = threading.Event(), [new_id()]

    def send(number: int) -> None:
        random_ = random.Random(seed * 1000 + number)
        while not stop.wait(PAUSE):
            if random_.random() < 0.1:
                ids.append(new_id())
            measure(stack, random_.choice(ids[-20:]), random_.randint(1, 10_000))

    with ThreadPoolExecutor() as pool:
        sending = [pool.submit(send, number) for number in range(4)]
        try:
            yield
        except BaseException:
            stack.client.give_up()
            raise
        finally:
            stop.set()
        for one in sending:
            one.result()


def answered(stack: Stack, status: CommandStatus) -> int:
    return sum(answers[0].status is status for answers in list(stack.journal.answers.values()))


def wait_successes(stack: Stack, more: int = 30) -> None:
    goal = answered(stack, CommandStatus.SUCCESS) + more
    wait_until(lambda: answered(stack, CommandStatus.SUCCESS) >= goal, f"{more} more successes")


def test_a_deploy_that_is_taken_back_and_made_again_falsifies_nothing(meters: Stack, seed: int) -> None:
    """Old and new code work at the same time. Old workers wake after new ones have taken over, with everything in
    memory. Old code parks or skips data that it cannot read, or refuses a command with a failure that is not stored."""
    with measuring(meters, seed):
        old = meters.start_ready(
            role="all", apps=FIRST, WORKERS={"UNKNOWN_TYPE_DELAYS": DELAYS}, COMMANDS={"TIME_LIMIT": PATIENCE}
        )
        wait_successes(meters)
        new = meters.start(role="command", apps=THIRD)
        wait_until(lambda: len(new.owners()) >= QUEUES // 2, "old and new code share the queues")
        old.signal_group(signal.SIGSTOP)
        new.wait_ready()
        wait_successes(meters)
        old.signal_group(signal.SIGCONT)
        wait_until(lambda: left_aside(meters), "old code has left aside what it does not know")
        end(new)
        wait_until(lambda: answered(meters, CommandStatus.FAILED), "old code has refused what it cannot read")
        last = meters.start(role="all", apps=THIRD)
        wait_until(lambda: len(last.owners()) >= QUEUES // 2, "old and new code share the queues again")
        old.signal_group(signal.SIGKILL)
        last.wait_ready()
        wait_successes(meters)
        wait_until(lambda: not left_aside(meters), "new code has gone on with it by itself")
    meters.wait_followed()
    check(meters)


def left_aside(stack: Stack) -> list[tuple[str]]:
    """The subscribers that have parked something, or passed over aggregates of a type that they did not know."""
    parked = "SELECT subscriber FROM enode_django_parkedevent"
    passed = "SELECT subscriber FROM enode_django_subscription WHERE passed_over <> '{}'"
    return [row[:1] for row in stack.query(f"{parked} UNION {passed}")]
