"""The broker fails under load. Its answers stay true."""

from __future__ import annotations

import os
import random
import re
import signal
import urllib.request
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from enode_django.ids import new_id
from sample_project.bank.domain import OpenAccount
from tests.acceptance.faulty.commands import DepositWhenFileExists
from tests.acceptance.processors import Processors
from tests.acceptance.stack import BrokerStack
from tests.acceptance.waiting import PATIENCE, last_for, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]


def test_a_broker_may_be_killed_restarted_and_stand_still(broker_stack: BrokerStack, seed: int) -> None:
    stack, random_ = broker_stack, random.Random(seed)
    processors = stack.start_ready(role="all")
    with stack.load(seed, varied=True, pause=0.03) as load:
        for fall in (stack.broker.kill, stack.broker.kill, stack.broker.stop):
            last_for(random_.uniform(0.2, 0.6))
            fall()
            stack.broker.start()
            load.wait_for_rounds(20)
        stack.broker.pause()
        last_for(3)
        stack.broker.resume()
        load.wait_for_rounds(20)
    assert len(processors.workers()) == 1, "no worker died of it"
    stack.wait_followed()
    stack.check()
    stack.check_read_side()


@pytest.fixture
def hosting(broker_stack: BrokerStack) -> BrokerStack:
    """Return a stack whose only broker is the one that its processors bring."""
    broker_stack.broker.stop()
    return broker_stack


def test_processors_bring_a_broker_that_is_started_again_outlives_a_killed_supervisor_and_ends_last(
    hosting: BrokerStack, seed: int
) -> None:
    first = start_hosting(
        hosting, WORKERS={"GRACE": 1.0}
    )  # the broker waits longer than that for workers without a supervisor
    wait_until(lambda: "enode_broker_free_bytes" in metrics_of(first), "they show the metrics of the broker")
    with hosting.load(seed) as load:
        (pid,) = re.findall(r"the broker listens on .*, process (\d+)", first.log)
        os.kill(int(pid), signal.SIGKILL)
        first.wait_for("the broker died: killed by SIGKILL; starting another")
        load.wait_for_rounds(20)
    first.signal(signal.SIGKILL)
    first.wait_gone()
    assert "the supervisor is gone; the broker ends in" in first.log, "not before its workers have drained"
    second = start_hosting(hosting, WORKERS={"GRACE": PATIENCE})
    with hosting.load(seed + 1):
        pass
    second.signal_group(signal.SIGINT)  # as Ctrl-C does
    assert second.wait_end() == 0, "workers could commit and release to the end"
    second.wait_gone()
    hosting.broker.start()
    hosting.check()


def test_sigterm_to_the_whole_process_group_lets_the_workers_drain_before_their_broker_ends(
    hosting: BrokerStack, tmp_path: Path
) -> None:
    account = new_id()
    hanging = DepositWhenFileExists(account, path=str(tmp_path / "go-on"), amount=Decimal(7))
    processors = start_hosting(hosting, WORKERS={"GRACE": PATIENCE})
    hosting.client.execute(OpenAccount(account, owner="somebody"))
    hosting.client.send([hanging])
    wait_until(Path(f"{hanging.path}.begun").exists, "the command is being handled")
    processors.signal_group(signal.SIGTERM)  # as systemd with KillMode=control-group does
    processors.wait_for("draining; a second signal aborts")
    Path(hanging.path).touch()
    assert processors.wait_end() == 0, processors.log
    processors.wait_gone()
    assert not re.findall("WARNING|ERROR|Traceback", processors.log), processors.log
    hosting.broker.start()
    assert hosting.is_quiet(), "the command is committed"
    hosting.check(loaded=False)


def test_a_signal_while_the_broker_starts_ends_both(hosting: BrokerStack) -> None:
    hosting.broker.start()  # uses the directory, for which the other broker waits
    processors = hosting.start(1, "--with-broker", BROKER=settings_of(hosting), WORKERS={"GRACE": PATIENCE})
    processors.wait_for("in case its supervisor was killed")
    processors.signal_group(signal.SIGTERM)
    assert processors.wait_end() == 0, processors.log
    processors.wait_gone()  # earlier than a broker whose supervisor was killed
    assert "Traceback" not in processors.log


def start_hosting(stack: BrokerStack, **enode: Any) -> Processors:
    return stack.start_ready(1, "--with-broker", "--metrics-port", "0", BROKER=settings_of(stack), **enode)


def settings_of(stack: BrokerStack) -> dict[str, str]:
    return {"LISTEN": stack.broker.url, "DIRECTORY": str(stack.broker.directory / "queue")}


def metrics_of(processors: Processors) -> str:
    (url,) = re.findall(r"/metrics at (http://127\.0\.0\.1:\d+)", processors.log)
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE) as answer:
        text: str = answer.read().decode()
    return text
