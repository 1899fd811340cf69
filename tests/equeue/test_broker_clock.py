"""A broker on a machine whose clock is wrong for a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from enode_django.equeue.broker.clock import FAR_AHEAD, SLACK, SteadyClock
from enode_django.equeue.broker.retention import Retention
from enode_django.equeue.broker.state import BrokerState
from enode_django.equeue.broker.store import MessageStore
from tests.equeue.storing import delete_due, messages, opened, send, time_at

DAY, YEAR = 86_400.0, 365 * 86_400.0
BODY = b"x" * 900


class Machine:
    """A machine: ``clock`` is the time of its clock, ``elapsed`` the seconds that have really passed."""

    def __init__(self, clock: float = 1e9) -> None:
        self.clock = clock
        self.elapsed = 0.0

    def go_on(self, seconds: float) -> None:
        self.clock += seconds
        self.elapsed += seconds

    def opened(self, directory: Path) -> MessageStore:
        return opened(directory, clock=lambda: self.clock, monotonic=lambda: self.elapsed)[0]


def everything(topic: str, queue: int) -> int:
    return 1 << 60


def filled(store: MessageStore, machine: Machine, count: int) -> None:
    for _ in range(count):
        send(store, 0, BODY)
        machine.go_on(1)


def checkpoints(store: MessageStore) -> None:
    """Write two checkpoints, so that the newest and the one before it cover all messages."""
    for _ in range(2):
        store.checkpoint(b"")


def times(store: MessageStore) -> list[float]:
    first, end = store.bounds("orders", 0)
    return [time_at(store, "orders", 0, offset) for offset in range(first, end)]


def test_time_follows_the_clock_but_never_ahead_of_what_has_passed(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    steady = SteadyClock(lambda: machine.clock, lambda: machine.elapsed)
    assert steady() == 1e9
    machine.go_on(10)
    assert steady() == 1e9 + 10
    machine.clock += YEAR
    for _ in range(3):
        assert steady() == 1e9 + 10 + SLACK
    assert caplog.text.count("was set forward by") == 1
    machine.go_on(DAY)
    assert steady() == 1e9 + 10 + DAY + SLACK
    machine.clock -= YEAR
    assert steady() == 1e9 + 10 + DAY
    machine.clock -= 5
    assert steady() == 1e9 + 5 + DAY
    assert caplog.text.count("agrees again") == 1


def test_a_forward_jump_of_the_clock_neither_delays_nor_hastens_deletion_by_age(tmp_path: Path) -> None:
    machine, rule = Machine(), Retention(max_age=3 * DAY)
    store = machine.opened(tmp_path)
    filled(store, machine, 8)
    machine.clock += YEAR
    filled(store, machine, 8)
    checkpoints(store)
    assert delete_due(store, rule, everything) == 0, "nothing is older than a minute"
    machine.clock -= YEAR
    filled(store, machine, 16)
    checkpoints(store)
    assert max(times(store)) < machine.clock + SLACK
    machine.go_on(3 * DAY + SLACK)
    assert delete_due(store, rule, everything) == 7
    store.abandon()


def test_times_from_a_clock_that_was_wrong_at_the_start_are_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine, rule = Machine(1e9 + YEAR), Retention(max_age=3 * DAY)
    store = machine.opened(tmp_path)
    filled(store, machine, 16)
    store.close(b"")
    machine.clock -= YEAR
    store = machine.opened(tmp_path)
    assert "8760.0 hours in the future" in caplog.text
    filled(store, machine, 8)
    checkpoints(store)
    assert times(store)[-1] == machine.clock - 1
    assert [offset for offset, _ in messages(store, "orders", 0)] == list(range(24)), "nothing else is changed"
    assert delete_due(store, rule, everything) == 0
    machine.go_on(3 * DAY + 60)
    assert delete_due(store, rule, everything) == 5, "what is from the future is as old as the start that saw it"
    store.abandon()


def test_a_clock_that_is_set_right_while_the_broker_runs_is_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(1e9 + YEAR)
    store = machine.opened(tmp_path)
    filled(store, machine, 8)
    machine.clock -= YEAR
    filled(store, machine, 9)
    assert times(store)[-1] == machine.clock - 1
    assert caplog.text.count("hours in the future") == 1
    checkpoints(store)
    machine.go_on(3 * DAY + 60)
    assert delete_due(store, Retention(max_age=3 * DAY), everything) == 4
    store.abandon()


def test_a_clock_that_is_set_back_by_less_than_an_hour_keeps_times_in_order(tmp_path: Path) -> None:
    machine = Machine()
    store = machine.opened(tmp_path)
    filled(store, machine, 2)
    store.close(b"")
    machine.clock -= FAR_AHEAD / 2
    store = machine.opened(tmp_path)
    filled(store, machine, 2)
    assert times(store) == [1e9, 1e9 + 1, 1e9 + 1, 1e9 + 1]
    store.abandon()


def test_a_forward_jump_makes_the_broker_forget_no_send(tmp_path: Path) -> None:
    machine = Machine()
    store = MessageStore(tmp_path, clock=lambda: machine.clock, monotonic=lambda: machine.elapsed)
    state = BrokerState(store, patience=10.0)
    state.open()
    state.sends.add("t", b"p" * 16, 1, {0: 0}, store.now())
    machine.clock += YEAR
    state.forget_producers()
    assert state.sends.answer("t", b"p" * 16, 1) == {0: 0}
    machine.go_on(2 * 3_600)
    state.forget_producers()
    assert state.sends.answer("t", b"p" * 16, 1) is None
    store.abandon()
