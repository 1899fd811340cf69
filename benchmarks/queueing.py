"""The broker compared with Redis Streams: throughput of one queue in batches, latency, and a backlog."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import redis

from benchmarks import loads
from benchmarks.figures import Figure, median
from benchmarks.processors import BenchmarkError
from benchmarks.rabbitmq import rabbitmq_rates
from benchmarks.throughput import pipeline_seconds
from benchmarks.workspace import Services
from enode_django.equeue.broker.held_memory import HeldMemory
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.broker import BrokerTransport
from sample_project.embedded import Broker

BATCH = 500
SIZES = {"1 KB": 1_000, "200 B": 200}
TOPIC = "benchmark"
PRODUCERS, WINDOW = 4, 64
LAST_BATCHES = 100
"""Batches of half a megabyte. Unless a checkpoint is written just then, they are read again after a kill."""
Rates = tuple[float, float]
"""Messages per second in, and out."""


def run(services: Services, quick: bool) -> list[Figure]:
    """Measure both in turn; medians are compared."""
    count, rounds = (50_000, 1) if quick else (200_000, 5)
    found: list[Figure] = []
    with Broker() as server:
        for name, size in SIZES.items():
            batch = [os.urandom(size) for _ in range(BATCH)]
            ours, theirs = [], []
            for _ in range(rounds):
                ours.append(_broker_rates(server, batch, count))
                theirs.append(_redis_rates(services.redis_url, batch, count))
            found += _rates(f"broker, {name}", ours)
            found += _rates(f"Redis Streams, {name}", theirs, "redis-py, AOF everysec")
    return [*found, *_beside_rabbitmq(count)]


def _rates(name: str, rounds: Sequence[Rates], note: str = "") -> list[Figure]:
    note = ", ".join([f"batches of {BATCH}", *([note] if note else [])])
    return [
        median(f"{name}, in", [into for into, _ in rounds], "messages/s", note),
        median(f"{name}, out", [out for _, out in rounds], "messages/s", note),
    ]


def _broker_rates(server: Broker, batch: Sequence[bytes], count: int) -> Rates:
    topic = f"{TOPIC}-{uuid.uuid4().hex}"
    with contextlib.closing(BrokerTransport(server.url)) as transport:
        transport.create_topic(topic, 1)
        into = _timed(count, lambda: [transport.send(topic, {0: batch}) for _ in range(count // BATCH)])
        out = _timed(count, lambda: list(_pulled(transport, topic, count)))
    return into, out


def _pulled(transport: Transport, topic: str, count: int, offset: int = 0) -> Iterator[int]:
    """Pull ``count`` messages, and yield the number of messages of each pull."""
    end = offset + count
    while offset < end:
        (pulled,) = transport.pull(topic, {0: offset}, limit=BATCH, wait=10)
        offset += len(pulled.bodies)
        yield len(pulled.bodies)


def _redis_rates(url: str, batch: Sequence[bytes], count: int) -> Rates:
    key = f"{TOPIC}-{uuid.uuid4().hex}"
    with redis.Redis.from_url(url) as client:

        def send() -> None:
            for _ in range(count // BATCH):
                pipeline = client.pipeline(transaction=False)
                for body in batch:
                    pipeline.xadd(key, {"b": body})
                pipeline.execute()

        def receive() -> None:
            last: Any = "0-0"
            for _ in range(count // BATCH):
                ((_, entries),) = client.xread({key: last}, count=BATCH)
                last = entries[-1][0]

        try:
            return _timed(count, send), _timed(count, receive)
        finally:
            client.unlink(key)


def _timed(count: int, work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return count / (time.perf_counter() - started)


def _beside_rabbitmq(count: int) -> list[Figure]:
    found = []
    for name, size in SIZES.items():
        rates = rabbitmq_rates(size, BATCH, count)
        if rates is None:
            print("  RabbitMQ is not compared: rabbitmq-server and pika are not both installed")
            return []
        found += _rates(f"RabbitMQ, {name}", [rates], "quorum queue, persistent, confirms for each batch")
    return found


# -- single messages ----------------------------------------------------------------------------------------------


def run_single(services: Services, quick: bool) -> list[Figure]:
    """Measure producers in separate processes with one message per request. They wait for each answer, or have many
    requests in flight, like asynchronous clients."""
    count, rounds = (5_000, 1) if quick else (30_000, 3)
    found = []
    with Broker() as server, contextlib.closing(BrokerTransport(server.url)) as transport:
        transport.create_topic(TOPIC, PRODUCERS)
        for window, how in ((1, "one by one"), (WINDOW, f"{WINDOW} under way")):
            runs = [_single_rates(server, count, window) for _ in range(rounds)]
            found += [
                median(
                    f"{PRODUCERS} producers, {how}", [rate for rate, _ in runs], "messages/s", "single ones of 1 KB"
                ),
                median(f"broker's time, {how}", [cost for _, cost in runs], "µs", "of a processor, for each message"),
            ]
    return found


def _single_rates(server: Broker, count: int, window: int) -> Rates:
    """Return the messages per second, and the broker's processor time per message in microseconds."""
    broker, total = psutil.Process(server.pid), PRODUCERS * count
    before = sum(broker.cpu_times()[:2])
    seconds = _single_seconds(server.url, count, window)
    return total / seconds, (sum(broker.cpu_times()[:2]) - before) / total * 1e6


def _single_seconds(location: str, count: int, window: int) -> float:
    """Return the seconds of the slowest producer."""
    command = [sys.executable, "-m", "benchmarks.single_sender", location, TOPIC, str(count), str(window)]
    with contextlib.ExitStack() as stack:
        senders = [
            stack.enter_context(
                subprocess.Popen([*command, str(queue)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for queue in range(PRODUCERS)
        ]
        pipes = [(sender.stdin, sender.stdout) for sender in senders]
        for _, output in pipes:
            if output is None or output.readline() != "ready\n":
                raise BenchmarkError("a sender has not come up")
        for begin, _ in pipes:
            if begin is not None:
                begin.write("go\n")
                begin.flush()
        return max(float(output.readline()) for _, output in pipes if output is not None)


# -- latency ------------------------------------------------------------------------------------------------------


def run_latency(services: Services, quick: bool) -> list[Figure]:
    """Measure from before a send to after the pull that waits for it, in another thread on another connection."""
    count = 500 if quick else 3_000
    with (
        Broker() as server,
        contextlib.closing(BrokerTransport(server.url)) as sender,
        contextlib.closing(BrokerTransport(server.url)) as receiver,
    ):
        sender.create_topic(TOPIC, 1)
        seconds = _one_by_one(sender, receiver, count)[count // 10 :]
    percentiles = statistics.quantiles(seconds, n=100)
    return [
        Figure("broker latency p50", percentiles[49] * 1e3, "ms", note=f"{count:,} one after another"),
        Figure("broker latency p99", percentiles[98] * 1e3, "ms"),
    ]


def _one_by_one(sender: Transport, receiver: Transport, count: int) -> list[float]:
    received: list[float] = []
    got, waiting = threading.Semaphore(0), threading.Semaphore(0)

    def receive() -> None:
        for offset in range(count):
            waiting.release()
            receiver.pull(TOPIC, {0: offset}, limit=1, wait=30)
            received.append(time.perf_counter())
            got.release()

    thread = threading.Thread(target=receive)
    thread.start()
    sent = []
    for _ in range(count):
        waiting.acquire()
        sent.append(time.perf_counter())
        sender.send(TOPIC, {0: [b"x" * 200]})
        got.acquire()
    thread.join()
    return [end - begin for begin, end in zip(sent, received, strict=True)]


# -- a backlog ----------------------------------------------------------------------------------------------------


def run_backlog(services: Services, quick: bool) -> list[Figure]:
    """Consume a million waiting messages. Compare the last tenth with the first, and measure the broker's memory."""
    count = 100_000 if quick else 1_000_000
    batch = [b"x" * 1_000] * BATCH
    tenth = count // 10
    with Broker() as server, contextlib.closing(BrokerTransport(server.url)) as transport:
        transport.create_topic(TOPIC, 1)
        for _ in range(count // BATCH):
            transport.send(TOPIC, {0: batch})
        list(_pulled(transport, TOPIC, tenth))  # warms up the connection and the code
        rates = [
            _timed(tenth, partial(deque, _pulled(transport, TOPIC, tenth, first), 0))
            for first in range(0, count, tenth)
        ]
        memory, held = psutil.Process(server.pid).memory_full_info(), transport.status()["held_bytes"]
    return [
        Figure("backlog, first tenth", rates[0], "messages/s", note=f"{count:,} of 1 KB"),
        Figure("backlog, last tenth", rates[-1], "messages/s", rates),
        Figure("broker's own memory", memory.uss / 1e6, "MB", note="what no other process could share"),
        Figure("broker's memory with held files", (memory.uss + held) / 1e6, "MB"),
        Figure("low watermark", HeldMemory().low / 1e6, "MB", note="by default, on this machine"),
    ]


# -- the pipeline -------------------------------------------------------------------------------------------------


def run_pipeline(services: Services, quick: bool) -> list[Figure]:
    """Measure commands to events, like `throughput`, over the broker and over Redis Streams in turn."""
    count, rounds = (50_000, 1) if quick else (200_000, 5)
    accounts = loads.account_ids(10_000)
    opening, messages = loads.opens(accounts), loads.deposits(accounts, count)
    rates: dict[str, list[float]] = {"broker": [], "Redis Streams": []}
    for _ in range(rounds):
        with services.on_broker() as workspace:
            rates["broker"].append(count / pipeline_seconds(workspace, opening, messages))
        with services.workspace() as workspace:
            rates["Redis Streams"].append(count / pipeline_seconds(workspace, opening, messages))
    return [median(f"pipeline on {name}", values, "commands/s") for name, values in rates.items()]


# -- starting -----------------------------------------------------------------------------------------------------


def run_start(services: Services, quick: bool) -> list[Figure]:
    """Measure a start after a clean stop and after a kill, with gigabytes in the log and new messages."""
    gigabytes = 1 if quick else 10
    with Broker() as server:
        _fill(server, gigabytes * 2_000)
        stored = sum(path.stat().st_size for path in Path(server.directory).rglob("*.chunk"))
        if stored < gigabytes * 1e9:
            raise BenchmarkError(f"{stored} bytes lie in {server.directory}, {gigabytes} GB should")
        found = []
        for name, end in (("stop", server.stop), ("kill", server.kill)):
            _fill(server, LAST_BATCHES)
            end()
            started = time.perf_counter()
            server.start()
            found.append(
                Figure(f"broker's start after a {name}", time.perf_counter() - started, "s", note=f"{gigabytes} GB")
            )
    return found


def _fill(server: Broker, batches: int) -> None:
    batch = [b"x" * 1_000] * BATCH
    with contextlib.closing(BrokerTransport(server.url)) as transport:
        transport.create_topic(TOPIC, 1)
        for _ in range(batches):
            transport.send(TOPIC, {0: batch})
