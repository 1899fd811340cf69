"""However often and from wherever something is tried again, the log has few lines about it."""

from __future__ import annotations

import contextlib
import logging
import os

import pytest

from enode_django.concurrency import outages as module
from enode_django.concurrency.outages import EVERY, QUIET, Attempts, Outages
from enode_django.exceptions import StoreFailing, StoreUnavailable, SubscriberUnavailable, TransportUnavailable

AWAY = StoreUnavailable("the store is away")


class Turned:
    """A clock that the test turns, and callers of the outages by it."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.outages = Outages(lambda: self.now)

    def caller(self, *, is_rare: bool = False) -> Attempts:
        return Attempts(is_rare=is_rare, outages=self.outages)


@pytest.fixture
def turned() -> Turned:
    return Turned()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "enode_django.outages")
    return caplog


def test_an_outage_is_logged_when_it_begins_once_a_minute_and_when_it_ends(
    turned: Turned, said: pytest.LogCaptureFixture
) -> None:
    callers = [turned.caller() for _ in range(3)]
    for _ in range(150):
        for caller in callers:
            caller.failed(AWAY)
        turned.now += 1.0
    for caller in callers:
        caller.worked()
    assert said.messages == [
        "the store is away; trying again until it works",
        "the store is away; 181 failed tries of up to 3 callers in 60.0 s so far, trying again until it works",
        "the store is away; 361 failed tries of up to 3 callers in 120.0 s so far, trying again until it works",
        "a database answers again, after 450 failed tries of up to 3 callers in 150.0 s",
    ]


def test_it_has_not_ended_before_it_works_for_all_who_try_often(turned: Turned, said: pytest.LogCaptureFixture) -> None:
    first, second, rare = turned.caller(), turned.caller(), turned.caller(is_rare=True)
    for caller in (first, second, rare):
        caller.failed(AWAY)
    first.worked()
    assert len(said.messages) == 1
    second.worked()
    assert len(said.messages) == 2
    rare.worked()
    assert len(said.messages) == 2


def test_what_only_comes_up_rarely_ends_too(turned: Turned, said: pytest.LogCaptureFixture) -> None:
    rare = turned.caller(is_rare=True)
    rare.failed(AWAY)
    rare.worked()
    assert len(said.messages) == 2


def test_outage_is_the_same_for_whoever_tries_less_often_than_once_a_minute(
    turned: Turned, said: pytest.LogCaptureFixture
) -> None:
    rare = turned.caller(is_rare=True)
    for _ in range(2):
        rare.failed(AWAY)
        turned.now += 10 * EVERY
    rare.worked()
    assert said.messages[-1] == "a database answers again, after 2 failed tries of up to 1 callers in 1200.0 s"


def test_what_comes_and_goes_is_logged_now_and_then(turned: Turned, said: pytest.LogCaptureFixture) -> None:
    caller = turned.caller()
    for _ in range(100):
        caller.failed(AWAY)
        turned.now += 0.05
        caller.worked()
        turned.now += 0.05
    assert len(said.messages) == 2, "in ten seconds"
    turned.now += QUIET
    caller.failed(AWAY)
    assert len(said.messages) == 3


def test_an_outage_in_the_quiet_time_is_logged_when_it_lasts(turned: Turned, said: pytest.LogCaptureFixture) -> None:
    caller = turned.caller()
    caller.failed(AWAY)
    caller.worked()
    for _ in range(int(QUIET) + 1):
        caller.failed(AWAY)
        turned.now += 1.0
    assert len(said.messages) == 3
    caller.worked()
    assert len(said.messages) == 4


def test_who_gives_up_does_not_know_that_it_has_ended(turned: Turned, said: pytest.LogCaptureFixture) -> None:
    deleted = turned.caller()
    deleted.failed(AWAY)
    del deleted
    with contextlib.suppress(StoreUnavailable), turned.caller() as caller:
        caller.failed(AWAY)
        raise AWAY
    assert len(said.messages) == 1
    turned.now += EVERY + 1.0
    with turned.caller() as another:
        another.failed(AWAY)
    assert said.messages[1] == "the store is away; trying again until it works", "it is another outage"
    assert said.messages[2] == "a database answers again, after 1 failed tries of up to 1 callers in 0.0 s"


def test_the_database_and_the_queue_are_away_apart(turned: Turned, said: pytest.LogCaptureFixture) -> None:
    caller = turned.caller()
    subscriber = SubscriberUnavailable("it cannot go on")
    subscriber.__cause__ = TransportUnavailable("no broker")
    for error in (AWAY, SubscriberUnavailable("its tables"), TransportUnavailable("no broker"), subscriber):
        caller.failed(error)
    assert said.messages == [f"{text}; trying again until it works" for text in ("the store is away", "no broker")]
    caller.worked()
    assert {text.partition(" answers")[0] for text in said.messages[2:]} == {"a database", "the queue"}


def test_a_line_a_minute_names_the_most_frequent_errors(turned: Turned, said: pytest.LogCaptureFixture) -> None:
    caller = turned.caller()
    for number in (0, 1, 1, 2, 2, 2, 3, 3, 3, 3):
        caller.failed(StoreUnavailable(f"shard {number}"))
    turned.now += EVERY
    caller.failed(StoreUnavailable("shard 3"))
    assert said.messages[1].startswith("shard 3; shard 2; shard 1; 11 failed tries")


def test_what_needs_somebody_is_an_error(turned: Turned, said: pytest.LogCaptureFixture) -> None:
    turned.caller().failed(StoreFailing("it refuses everything"))
    assert [record.levelname for record in said.records] == ["ERROR"]


def test_a_forked_child_begins_anew() -> None:
    caller = Attempts()
    caller.failed(AWAY)
    pid = os.fork()
    if not pid:
        os._exit(len(module.outages._outages))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    caller.worked()
