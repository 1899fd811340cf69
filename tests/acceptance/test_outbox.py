"""Processes that write to the outbox, and those that relay it, are killed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from enode_django.ids import new_id
from enode_django.repository.loading import events_of
from sample_project.bank.domain import Deposited
from tests.acceptance.stack import Stack
from tests.acceptance.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]


def committed(output: Path) -> int:
    lines = [line for line in output.read_text().splitlines() if line.isdigit()]
    return int(lines[-1]) if lines else 0


def test_what_was_committed_takes_effect_once_and_in_order_whoever_is_killed(stack: Stack) -> None:
    account = new_id()
    first = stack.start_ready()
    with stack.beside("-m", "tests.acceptance.outbox_writer", account) as output:
        wait_until(lambda: committed(output) > 20, "the writer has written")
        wait_until(lambda: len(stack.stored()) > 20, "its commands are handled")
        first.signal_group(signal.SIGKILL)
        killed_at = committed(output)
        wait_until(lambda: committed(output) > killed_at + 20, "the writer goes on")
        stack.start_ready()
    # The writer was killed, perhaps after a commit that it has not printed.
    wait_until(lambda: not stack.query("SELECT FROM enode_django_outboxcommand"), "everything is relayed")
    wait_until(stack.is_quiet, "everything is handled")
    amounts = [
        int(event.amount)
        for record in stack.stored()
        if record.aggregate_root_id == account
        for event in events_of(record)
        if isinstance(event, Deposited)
    ]
    assert amounts == list(range(1, len(amounts) + 1))
    assert len(amounts) - committed(output) in (0, 1)
    assert stack.dead_letters() == []
