"""Processors are started and stopped under load, as on several hosts that know nothing of each other."""

from __future__ import annotations

import json
import random
import re
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.acceptance.processors import Processors
from tests.acceptance.stack import BrokerStack
from tests.acceptance.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

OTHERS = ("command", "event")
"""The roles of the hosts beside the first one."""
LONG = 60.0
"""A lease that runs out for nobody, however slow the machine is."""
GROUPS = {"command": ("commands", "processors"), "event": ("events", "bank.transfers")}
_TAKEN = re.compile(r"DEBUG (\S+) enode_django\.equeue: (\w+)/(\d+) is ours for (\S+) from offset \d+ on, epoch (\d+)")


def test_workers_come_and_go_under_load_without_a_conflict(
    broker_stack: BrokerStack, seed: int, tmp_path: Path
) -> None:
    stack, random_ = broker_stack, random.Random(seed)
    reports = [tmp_path / f"report-{number}.json" for number in range(len(OTHERS) + 1)]

    def start(role: str, report: Path) -> Processors:
        return stack.start(1, "--report", str(report), "--verbosity=3", role=role, WORKERS={"LEASE": LONG})

    hosts = [start("all", reports[0])]
    wait_until(lambda: members(stack, "command") == 1, "there is a member")
    with stack.load(seed, varied=True) as load:
        for role, report in zip(OTHERS, reports[1:], strict=True):
            before = members(stack, role)
            hosts.append(start(role, report))
            wait_until(lambda: members(stack, role) > before, "there is another member")  # noqa: B023
            load.wait_for_rounds(random_.randint(5, 20))
        first, *others = hosts
        random_.shuffle(others)
        for host in others:
            host.signal(signal.SIGTERM)
            load.wait_for_rounds(random_.randint(5, 20))
        for host in others:
            assert host.wait_end() == 0, "it drained"
        wait_until(lambda: holds_all(stack, first), "the first has all queues again")
    stack.wait_followed()
    stack.check()
    stack.check_read_side()
    assert [conflicts(report) for report in reports] == [0] * len(reports)
    assert_one_owner_in_each_epoch(host.log for host in hosts)


def test_a_host_that_stands_still_and_one_that_loses_its_power_are_replaced(
    broker_stack: BrokerStack, seed: int
) -> None:
    stack = broker_stack
    hosts = [stack.start(1, "--verbosity=3") for _ in range(2)]
    wait_until(lambda: len(owners(stack)) == len(hosts), "all hosts have queues")
    asleep, alive = hosts
    with stack.load(seed) as load:
        asleep.signal_group(signal.SIGSTOP)
        wait_until(lambda: holds_all(stack, alive), "one is left, and has all queues")
        load.wait_for_rounds(20)
        asleep.signal_group(signal.SIGCONT)
        wait_until(lambda: len(owners(stack)) == 2, "who was asleep has queues again")
        asleep.signal_group(signal.SIGKILL)
        wait_until(lambda: holds_all(stack, alive), "the other one has all queues again")
        load.wait_for_rounds(20)
    stack.check()
    assert_one_owner_in_each_epoch(host.log for host in hosts)


def owners(stack: BrokerStack) -> set[str | None]:
    groups = stack.transport.groups("commands")
    return {claim.owner for claim in groups["processors"].claims.values()} if "processors" in groups else set()


def members(stack: BrokerStack, role: str) -> int:
    topic, group = GROUPS[role]
    groups = stack.transport.groups(topic)
    return len(groups[group].members) if group in groups else 0


def holds_all(stack: BrokerStack, host: Processors) -> bool:
    return owners(stack) == set(host.living_workers())


def conflicts(report: Path) -> int:
    found: int = json.loads(report.read_text())["conflicts"]
    return found


def assert_one_owner_in_each_epoch(logs: Iterable[str]) -> None:
    taken: Sequence[tuple[str, ...]] = [found for log in logs for found in _TAKEN.findall(log)]
    epochs = [place for _, *place in taken]
    assert len(epochs) > len(OTHERS)
    assert len(set(map(tuple, epochs))) == len(epochs), "an epoch was given out twice"
