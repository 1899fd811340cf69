"""RabbitMQ, if it is installed: a quorum queue, persistent messages, publisher confirms for each batch."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from sample_project.embedded_process import free_port

SERVER = "rabbitmq-server"
START_SECONDS = 120.0
QUEUE = "benchmark"


def rabbitmq_rates(size: int, batch: int, count: int) -> tuple[float, float] | None:
    """Return the messages per second in, and out; None if the server or pika is not installed."""
    if shutil.which(SERVER) is None:
        return None
    try:
        pika = importlib.import_module("pika")
    except ImportError:
        return None
    with _server() as port, contextlib.closing(_connected(pika, port)) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        properties = pika.BasicProperties(delivery_mode=2)
        into = _produce(connection, os.urandom(size), batch, count, properties)
        return into, _consume(connection, batch, count)


@contextlib.contextmanager
def _server() -> Iterator[int]:
    """Run a server on free loopback ports, with its data in a temporary directory, and give its port."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="enode-rabbitmq-") as directory:
        os.chmod(directory, 0o777)  # started by root it uses another account
        environment = {
            **os.environ,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_NODENAME": f"benchmark-{port}@localhost",
            "RABBITMQ_MNESIA_BASE": f"{directory}/data",
            "RABBITMQ_LOG_BASE": f"{directory}/log",
            "HOME": directory,
        }
        with Path(directory, "output").open("wb") as output:
            process = subprocess.Popen([SERVER], env=environment, stdout=output, stderr=output, start_new_session=True)
        try:
            yield port
        finally:
            # Its script may have changed the account and started a session.
            family = psutil.Process(process.pid).children(recursive=True)
            for member in family:
                member.terminate()
            psutil.wait_procs(family, 60)
            process.wait(60)


def _connected(pika: Any, port: int) -> Any:
    parameters = pika.ConnectionParameters("127.0.0.1", port)
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return pika.BlockingConnection(parameters)
        except pika.exceptions.AMQPConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _produce(connection: Any, body: bytes, batch: int, count: int, properties: Any) -> float:
    """Return the messages per second. Confirms are read from the underlying channel, because pika's blocking channel
    would wait for each."""
    channel = connection.channel()
    confirmed = 0

    def confirm(frame: Any) -> None:
        nonlocal confirmed
        confirmed = max(confirmed, frame.method.delivery_tag)

    channel._impl.confirm_delivery(confirm, callback=lambda frame: None)
    started = time.perf_counter()
    for sent in range(batch, count + 1, batch):
        for _ in range(batch):
            channel.basic_publish("", QUEUE, body, properties)
        while confirmed < sent:
            connection.process_data_events(time_limit=0.001)
    return count / (time.perf_counter() - started)


def _consume(connection: Any, batch: int, count: int) -> float:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=2 * batch)
    started = time.perf_counter()
    for number, (method, _, _) in enumerate(channel.consume(QUEUE), 1):
        if number % batch == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if number == count:
            break
    return count / (time.perf_counter() - started)
