"""Real processors are observed from outside. One start serves all checks."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import urllib.error
import urllib.request
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from enode_django import Command, metadata, try_command
from enode_django.ids import new_id
from sample_project.bank.domain import Deposit, OpenAccount
from tests.acceptance.processors import Processors
from tests.acceptance.stack import COMMANDS, GROUP, Stack
from tests.acceptance.waiting import PATIENCE, wait_until
from tests.observing.traced.apps import SPANS

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

NEWEST = "SELECT figures, ended, supervisor FROM enode_django_processorreport ORDER BY reported_at DESC LIMIT 1"
ACCOUNTS = 5
APPS = "tests.acceptance.faulty tests.observing.traced"
COUNT = 2 * ACCOUNTS + 1
TRACE, SENDER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Systemd:
    """Listens all the time: few words wait for somebody who does not."""

    def __init__(self, path: Path) -> None:
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while word := self._socket.recv(1_000).decode():
            self.heard.append(word)

    def hears(self, word: str) -> bool:
        return any(re.match(word, text) for text in self.heard)


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metrics(url: str) -> dict[str, float]:
    """Values by name, summed over the labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(get(f"{url}/metrics")[1]):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def urls(processors: Processors) -> list[str]:
    return re.findall(r"/live, /ready, /metrics at (http://127\.0\.0\.1:\d+)", processors.log)


def newest(stack: Stack) -> tuple[dict[str, Any], bool, str]:
    rows: list[Any] = stack.query(NEWEST)
    return rows[0] if rows else ({}, False, "")


def check_trace(stack: Stack) -> None:
    """Check the spans of the one command that was sent with a trace context: they cross processes and have the right
    parents."""
    spans = [json.loads(line) for line in (stack.directory / SPANS).read_text().splitlines()]
    assert {span["trace"] for span in spans} == {TRACE}
    (handled,) = (span for span in spans if span["name"] == "handle bank.OpenAccount")
    assert handled["parent"] == SENDER
    rest = {span["name"]: span for span in spans if span is not handled}
    assert {"commit", "publish", "bank.AccountSummaries follows"} <= rest.keys()
    assert {span["parent"] for span in rest.values()} == {handled["span"]}
    assert rest["commit"]["process"] == handled["process"] != rest["bank.AccountSummaries follows"]["process"]


def execute(stack: Stack, command: Command) -> None:
    """Sent once, however long the answer takes, since commands are counted."""
    stack.journal.note_answer(command, try_command(command, timeout=PATIENCE))


def test_processors_are_seen_from_outside(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd = Systemd(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    ports = ("--health-port", "0", "--metrics-port", "0")
    processors = stack.start(1, *ports, role="all", apps=APPS, WORKERS={"LEASE": PATIENCE}, REPORTS={"INTERVAL": 0.2})
    # Both ports are any port, at one address: one server has all pages.
    wait_until(lambda: len(urls(processors)) == 1, "it says where its pages are")
    (url,) = urls(processors)
    assert get(f"{url}/live") == (200, "ok\n")
    wait_until(lambda: systemd.hears("WATCHDOG=1$"), "systemd hears that it lives")
    wait_until(lambda: systemd.hears("READY=1$"), "and that it is ready")
    wait_until(lambda: get(f"{url}/ready") == (200, "ok\n"), "as everybody else does")

    stack.wait_subscribed()
    for account in (new_id() for _ in range(ACCOUNTS)):
        execute(stack, OpenAccount(account, owner="somebody"))
        execute(stack, Deposit(account, amount=Decimal(5)))
    with metadata(traceparent=f"00-{TRACE}-{SENDER}-01"):
        execute(stack, OpenAccount(new_id(), owner="somebody"))
    stack.wait_followed()
    check_trace(stack)
    wait_until(lambda: metrics(url)["enode_commands_finished_total"] == COUNT, "all commands are counted")
    handled = "enode_streams_handled_total"  # by event workers, who report when they like
    wait_until(lambda: metrics(url).get(handled, 0) >= 4 * ACCOUNTS, "all that was followed is counted")
    found = metrics(url)
    assert found["enode_commands_total"] == found["enode_batch_commands_sum"] == COUNT
    assert found["enode_store_seconds_count"] == found["enode_batches_total"] > 0
    assert found["enode_command_latency_seconds_count"] == 2 * found["enode_batches_total"]
    wait_until(lambda: newest(stack)[0].get("finished") == COUNT, "and reported in a row")
    wait_until(lambda: newest(stack)[0].get("backlog", {}).get(COMMANDS) == {GROUP: 0}, "with the queue's backlog")

    # A database that stands still keeps the supervisor from nothing, and what ended workers have done stays counted.
    (worker,) = processors.living_workers().values()
    stack.postgres.pause()
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: len(processors.workers()) == 2, "another worker is started")
    wait_until(lambda: metrics(url)["enode_worker_restarts_total"] == 1, "and counted")
    assert get(f"{url}/live") == (200, "ok\n")
    stack.postgres.resume()
    assert metrics(url)["enode_commands_finished_total"] == COUNT
    wait_until(lambda: get(f"{url}/ready") == (200, "ok\n"), "it is ready again")

    processors.signal(signal.SIGTERM)
    assert processors.wait_end() == 0
    wait_until(lambda: systemd.hears("STOPPING=1$"), "systemd hears that it stops")
    assert systemd.heard.count("READY=1") == 1
    figures, ended, supervisor = newest(stack)
    assert ended
    assert (figures["finished"], figures["workers"], figures["restarts"]) == (COUNT, 0, 1)
    assert all(name.startswith(f"{supervisor}/") for name in processors.workers())
