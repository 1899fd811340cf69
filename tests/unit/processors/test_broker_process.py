from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

from enode_django.conf.groups import Conf
from enode_django.processes.children import ContextChildren, Job, Started
from enode_django.processes.template import TemplateChildren
from enode_django.processors.broker import BrokerProcess
from tests.acceptance.waiting import wait_until

SOON = 60.0


def waits(connection: Connection, notes: Any) -> None:
    """Stands for the broker: lives until a signal ends it, or its supervisor closes the connection."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    with suppress(EOFError):
        connection.recv_bytes()


class RefusesTheSecond(ContextChildren):
    """Starts children as if the system were out of processes at the second start."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = 0

    def start(self, job: Job) -> Started:
        self.starts += 1
        if self.starts == 2:
            raise BlockingIOError(11, "no process")
        return super().start(Job(job.name, waits, ()))


@pytest.fixture
def children() -> Iterator[RefusesTheSecond]:
    with closing(RefusesTheSecond()) as children:
        yield children


def test_a_broker_that_cannot_be_started_anew_is_tried_again(
    children: RefusesTheSecond, caplog: pytest.LogCaptureFixture
) -> None:
    broker = BrokerProcess(Conf(), children, verbosity=0)
    died = broker.pid
    assert died is not None
    os.kill(died, signal.SIGKILL)
    assert wait(broker.ends, SOON)
    wait_until(lambda: not broker.ends, "it is dead")
    broker.look()
    assert (children.starts, broker.ends) == (2, [])
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [BlockingIOError]
    broker.look()
    assert children.starts == 2, "the delay is not over"
    wait_until(lambda: broker.look() or broker.ends, "another is started")  # type: ignore[func-returns-value]
    assert (children.starts, broker.pid != died) == (3, True)


class Waiting(TemplateChildren):
    def start(self, job: Job) -> Started:
        return super().start(Job(job.name, waits, ()))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
@pytest.mark.parametrize(
    ("victim", "how"),
    [
        ("broker", "killed by SIGKILL"),
        ("template", "nobody knows how, since the process that forks has died, too"),
    ],
)
def test_the_log_says_how_the_broker_died(victim: str, how: str, caplog: pytest.LogCaptureFixture) -> None:
    with closing(Waiting(ContextChildren())) as children:
        broker = BrokerProcess(Conf(), children, verbosity=0)
        pid = {"broker": broker.pid, "template": children._template.pid}[victim]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not broker.ends, "it is gone")
        broker.look()
        assert f"the broker died: {how}; starting another" in caplog.messages
