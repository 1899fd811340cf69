"""A sender, a broker and a consumer on a file system that is too small for the messages. A test runs this in a process
with private mounts. Prints the results as JSON."""

from __future__ import annotations

import itertools
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from enode_django.equeue.messages import Commit
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.exceptions import QueueFull, TransportUnavailable
from tests.equeue.brokers import RunningBroker
from tests.equeue.consuming import Handled, consuming, eventually

COUNT = 400
BODY = b"x" * 10_000
OPTIONS: dict[str, Any] = {
    "chunk_size": 400_000,
    "checkpoint_interval": 0.2,
    "retention": {"max_age": 259_200.0},
    "retention_interval": 3600.0,
}


class Sender:
    """Sends `COUNT` messages of about `BODY`'s size to queue 0 of the topic "orders", each until it is taken."""

    def __init__(self, transport: BrokerTransport) -> None:
        self.refused = 0
        self.sent = 0
        self._transport = transport
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for number in range(COUNT):
            while True:
                try:
                    self._transport.send("orders", {0: [b"%06d" % number + BODY]})
                    break
                except QueueFull:
                    self.refused += 1
                    time.sleep(0.01)
                except TransportUnavailable:
                    time.sleep(0.01)
            self.sent += 1


def fill(path: Path) -> None:
    """Fill the file system with one file, as another program might."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        for _ in itertools.repeat(None):
            file.write(bytes(4096))


@contextmanager
def broker_on(directory: Path) -> Iterator[tuple[RunningBroker, BrokerTransport]]:
    with RunningBroker(directory, **OPTIONS) as broker:
        transport = broker.transport()
        transport.create_topic("orders", 1)
        yield broker, transport
        transport.close()


def full_of_messages(directory: Path) -> dict[str, Any]:
    """Fill the disk with messages before any is consumed. Kill the broker, and start it on the full disk."""
    with broker_on(directory) as (broker, transport):
        sender = Sender(broker.transport())
        eventually(lambda: sender.refused > 10)
        stopped_at = sender.sent
        broker.kill()
        broker.start()
        again = sender.refused
        eventually(lambda: sender.refused > again + 10)
        handled = Handled()
        with consuming(transport, handled):
            eventually(lambda: transport.committed("billing", "orders") == {0: COUNT}, 120)
        status = transport.status()
        eventually(lambda: not transport.status()["uses_reserve"])
        broker.signal(signal.SIGTERM)
        ended = broker.wait()
        numbers = [int(message.body[:6]) for message in handled.messages]
        return {
            "stopped_at": stopped_at,
            "in_order": sorted(set(numbers)) == list(range(COUNT)),
            "deleted_early": status["deleted_early"],
            "damaged": status["damaged_batches"],
            "ended": ended,
            "log": broker.log.read_text(),
        }


def full_of_something_else(directory: Path) -> dict[str, Any]:
    """Let another program fill the disk: commits and leases of consumers go on, and nothing is deleted."""
    with broker_on(directory) as (broker, transport):
        for number in range(40):
            transport.send("orders", {0: [b"%06d" % number + BODY]})
        epoch = transport.acquire("billing", "orders", 0, "one", 60.0).epoch
        eventually(lambda: any(directory.glob("checkpoint*")))
        fill(directory / "ballast")
        # A checkpoint gives up the reserve for a moment. Only when no message fits into the newest file either is each
        # refused.
        refused = 0
        offset = 0
        while refused < 20 or not transport.status()["uses_reserve"]:
            offset += 1
            transport.commit("billing", "orders", {0: Commit(epoch, min(offset // 100, 10))})
            try:
                transport.send("orders", {0: [BODY]})
                refused = 0
            except QueueFull:
                refused += 1
        epochs = [transport.acquire("billing", "orders", 0, "one", 60.0).epoch for _ in range(5)]
        committed = transport.commit("billing", "orders", {0: Commit(epochs[-1], 11)})
        joined = transport.join("billing", "orders", "one", 60.0)
        (directory / "ballast").unlink()
        eventually(lambda: not transport.status()["uses_reserve"], 60)
        again = transport.send("orders", {0: [BODY]})
        broker.kill()
        broker.start()
        return {
            "epochs": [later - epochs[0] for later in epochs],
            "commit_refused": sorted(committed),
            "joined": sorted(joined.queues),
            "sent_again": 0 in again,
            "after_a_crash": transport.committed("billing", "orders")[0],
        }


if __name__ == "__main__":
    scenario = {"messages": full_of_messages, "else": full_of_something_else}[sys.argv[1]]
    print(json.dumps(scenario(Path(sys.argv[2]))))
