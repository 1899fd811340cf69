"""The same load on more workers, and how many of them one broker can serve.

The broker is one process. What a command takes of its processor time is measured by feeding it alone: a message in, the
same message out, an event in. The reciprocal is the rate at which it would be the limit, whatever the number of cores.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import psutil

from benchmarks import loads
from benchmarks.figures import Figure, median
from benchmarks.throughput import ACCOUNTS, check_stored, pipeline
from benchmarks.workspace import COMMANDS, EVENTS, QUEUES, Services
from enode_django.equeue.transports.broker import BrokerTransport
from sample_project.embedded import Broker

WORKERS = (1, 2, 4, 8)
BATCH = 500


def run(services: Services, quick: bool) -> list[Figure]:
    count, rounds = (50_000, 1) if quick else (200_000, 3)
    accounts = loads.account_ids(ACCOUNTS)
    opening, messages = loads.opens(accounts), loads.deposits(accounts, count)
    cores = os.cpu_count() or 1
    found = []
    for workers in (number for number in WORKERS if number <= cores):
        rates, spent = [], []
        for _ in range(rounds):
            with services.on_broker() as workspace:
                seconds, processor_seconds = pipeline(workspace, opening, messages, workers)
                check_stored(workspace, len(opening) + count)
            rates.append(count / seconds)
            spent.append(processor_seconds / count)
        found.append(median(f"workers: {workers}", rates, "commands/s", f"on {cores} cores"))
        found.append(median(f"workers: {workers}, a core", [1 / each for each in spent], "commands/s", "of their time"))
    served = [_served(messages) for _ in range(rounds)]
    most = median("broker alone", served, "commands/s", "in, out and an event in, in its processor time")
    ratio = Figure("workers that a broker serves", most.value / found[1].value, "", note="of a core each")
    return [*found, most, ratio]


def _served(messages: loads.Messages) -> float:
    """Return the commands for which a second of the broker's processor time is enough."""
    bodies = [body for _, body in messages]
    with Broker() as server, contextlib.closing(BrokerTransport(server.url)) as transport:
        transport.create_topic(COMMANDS, QUEUES)
        transport.create_topic(EVENTS, QUEUES)
        process = psutil.Process(server.pid)
        before = sum(process.cpu_times()[:2])
        for topic in (COMMANDS, EVENTS):
            for number, batch in enumerate(_batches(bodies)):
                transport.send(topic, {number % QUEUES: batch})
        _pull_all(transport, len(bodies))
        return len(bodies) / (sum(process.cpu_times()[:2]) - before)


def _batches(bodies: list[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(bodies), BATCH):
        yield bodies[start : start + BATCH]


def _pull_all(transport: BrokerTransport, count: int) -> None:
    offsets, pulled = dict.fromkeys(range(QUEUES), 0), 0
    while pulled < count:
        for batch in transport.pull(COMMANDS, offsets, limit=BATCH, wait=10):
            offsets[batch.queue] = batch.offsets[-1] + 1
            pulled += len(batch.bodies)
