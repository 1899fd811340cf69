"""Several mailboxes in one worker, which help handlers that wait."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks import loads
from benchmarks.figures import Figure, median
from benchmarks.processors import Processors, timed_run
from benchmarks.throughput import check_stored
from benchmarks.workspace import Services

ACCOUNTS = 500


class Mailboxes(NamedTuple):
    command: int
    event: int


CHOICES = (Mailboxes(1, 1), Mailboxes(2, 1), Mailboxes(4, 1), Mailboxes(4, 4))


def run(services: Services, quick: bool) -> list[Figure]:
    """Measure one worker, whose handlers wait for 1 ms, so that one mailbox handles less than 1,000 commands per
    second. The rounds of all variants take turns."""
    count, rounds = (2_000, 1) if quick else (10_000, 3)
    accounts = loads.account_ids(ACCOUNTS)
    opening, messages = loads.opens(accounts), loads.slow_deposits(accounts, count)
    rates: dict[Mailboxes, list[float]] = {choice: [] for choice in CHOICES}
    for _ in range(rounds):
        for choice, found in rates.items():
            found.append(count / _seconds(services, choice, opening, messages))
    return [
        median(_name(choice), found, "commands/s", "handlers wait for 1 ms, 1 worker")
        for choice, found in rates.items()
    ]


def _name(choice: Mailboxes) -> str:
    return f"{choice.command} command and {choice.event} event mailboxes"


def _seconds(services: Services, choice: Mailboxes, opening: loads.Messages, messages: loads.Messages) -> float:
    numbers = {"COMMANDS": {"MAILBOXES": choice.command, "EVENT_MAILBOXES": choice.event}}
    with services.workspace(**numbers) as workspace:
        with Processors(workspace, 1) as processors:
            workspace.send(opening)
            processors.wait_published(len(opening))
            seconds = timed_run(workspace, processors, messages, len(messages))
        check_stored(workspace, len(opening) + len(messages))
    return seconds
