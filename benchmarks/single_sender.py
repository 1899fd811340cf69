"""One producer of single messages: ``python -m benchmarks.single_sender LOCATION TOPIC COUNT WINDOW QUEUE``.

With a window of 1 it is a `Producer`, which waits for each answer. With a larger window it is a client of the broker's
protocol with that many requests of one message in flight on its connection, like an asynchronous client. It prints a
line when it is connected, begins when it receives one, and prints the seconds of its sends.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any

from benchmarks.processors import BenchmarkError
from enode_django.equeue.broker.options import parse_location
from enode_django.equeue.frames import FrameDecoder, encode_frame
from enode_django.equeue.producer import Producer
from enode_django.equeue.records import encode_records
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.wire import HELLO, MAGIC, NONCE_BYTES, VERSION

SIZE = 1_000


def main(location: str, topic: str, count: int, window: int, queue: int) -> None:
    body = os.urandom(SIZE)
    if window == 1:
        with closing(BrokerTransport(location)) as transport:
            producer = Producer(transport, selector=lambda key, queues: queue % queues)
            producer.send(topic, "key", body)
            _timed(lambda: [producer.send(topic, "key", body) for _ in range(count)])
    else:
        with socket.create_connection(parse_location(location)) as connection:
            client = _Pipelined(connection)
            _timed(lambda: client.send(topic, queue, body, count, window))


def _timed(work: Callable[[], object]) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.perf_counter()
    work()
    print(time.perf_counter() - started, flush=True)


class _Pipelined:
    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._decoder = FrameDecoder()
        self._producer = uuid.uuid4().bytes
        self._socket.sendall(b"".join(encode_frame((1, HELLO, (MAGIC, VERSION, os.urandom(NONCE_BYTES))))))
        self._answers()

    def send(self, topic: str, queue: int, body: bytes, count: int, window: int) -> None:
        records = encode_records([body])
        sent = answered = 0
        while answered < count:
            frames = bytearray()
            while sent < count and sent - answered < window:
                sent += 1
                arguments = (topic, [(queue, 1, records)], None, self._producer, sent)
                frames += b"".join(encode_frame((sent, "send", arguments)))
            self._socket.sendall(frames)
            answered += self._answers()

    def _answers(self) -> int:
        """Receive answers and return their number. Blocks for the first one."""
        messages: list[Any] = []
        while not messages:
            received = self._socket.recv_into(self._decoder.room())
            if not received:
                raise BenchmarkError("the broker has closed the connection")
            messages = self._decoder.received(received)
        for _, is_good, *values in messages:
            if not is_good:
                raise BenchmarkError(f"the broker refuses: {values}")
        return len(messages)


if __name__ == "__main__":
    _, at, into, number, under_way, place = sys.argv
    main(at, into, int(number), int(under_way), int(place))
