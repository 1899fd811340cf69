"""A consumer in a separate process: ``python -m tests.equeue.consumer_process BACKEND LOCATION OPTIONS FILE``.

It appends a line to the file for each attempt at a message, fails at "bad", and stops at SIGTERM.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from importlib import import_module

from enode_django.equeue.subscribing import Consumer, Limits, Message, RetryPolicy


def main(backend: str, location: str, options: str, file: str) -> int:
    logging.basicConfig(level=logging.INFO)
    module, _, name = backend.rpartition(".")
    transport = getattr(import_module(module), name)(location, **json.loads(options))
    output = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(message: Message) -> None:
        os.write(output, f"{message.queue} {message.offset} {message.attempt} {os.getpid()}\n".encode())
        if message.body == b"bad":
            raise ValueError("it is bad")

    consumer = Consumer(
        transport,
        group="billing",
        topics=["orders"],
        handle=handle,
        retry=RetryPolicy(delays=(0.1, 0.2)),
        limits=Limits(lease=2.0, pull_wait=0.2, commit_interval=0.1),
    )
    drained = []
    signal.signal(signal.SIGTERM, lambda *_: drained.append(consumer.stop(60)))
    consumer.run()
    transport.close()
    return 0 if drained == [True] else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
