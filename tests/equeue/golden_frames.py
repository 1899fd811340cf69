"""Recorded frames of one version of the protocol: every request of a client with the broker's answer.

``python -m tests.equeue.golden_frames`` records the current version into ``tests/equeue/golden``. Never change earlier
records: clients and brokers in use speak these versions.
"""

from __future__ import annotations

import json
import socket
import struct
import tempfile
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self
from urllib.parse import urlsplit

import msgpack

from enode_django.equeue.messages import Commit, Once, Receipt, Start
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.wire import VERSION
from enode_django.exceptions import QueueError
from tests.equeue.brokers import DEADLINE, RunningBroker

GOLDEN = Path(__file__).parent / "golden"
SECRET = "open sesame"
_LENGTH = struct.Struct(">I")
_EPOCH = (1 << 32) + 1
"""The epoch of the first lease in the first run of a broker."""
_FIGURES = "status"
_PRODUCER = "0123456789abcdef0123456789abcdef"


class Pair(NamedTuple):
    """A request and its answer, as payloads of frames. ``is_exact``: the answer is the same each time."""

    request: bytes
    answer: bytes
    is_exact: bool


class Result(NamedTuple):
    """The result of a client's call, or the name of its error. ``is_exact`` is as for a `Pair`."""

    call: str
    value: Any
    is_exact: bool


class Golden(NamedTuple):
    pairs: Sequence[Pair]
    results: Sequence[Result]


def calls(transport: BrokerTransport) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield names and calls of a client: every method, and some calls that fail, to be made in this order on an empty
    broker."""
    body = {0: [b"one", b"two"], 1: [b"three"]}
    once = Once(_PRODUCER, 1)
    receipts = [Receipt(0, b"receipt")]
    yield "topics", transport.topics
    yield "create_topic", lambda: transport.create_topic("t", 2)
    yield "queue_count", lambda: transport.queue_count("t")
    yield "queues", lambda: transport.queues("t")
    yield "route", lambda: transport.route("t")
    yield "announce", lambda: transport.announce("t", "host-1")
    yield "producers", lambda: transport.producers("t")
    yield "send", lambda: transport.send("t", body, once=once)
    yield "send again", lambda: transport.send("t", body, once=once)
    yield "send by a route", lambda: transport.send("t", {0: [b"four"]}, route=1, once=Once(_PRODUCER, 2))
    yield "send by an old route", lambda: transport.send("t", {0: [b"five"]}, route=0, once=Once(_PRODUCER, 3))
    yield "pull", lambda: transport.pull("t", {0: 0}, limit=10, wait=0)
    yield "pull the rest of a batch", lambda: transport.pull("t", {0: 1}, limit=1, wait=0)
    yield "pull nothing", lambda: transport.pull("t", {0: 3, 1: 1}, limit=10, wait=0.01)
    yield "end_offsets", lambda: transport.end_offsets("t")
    yield "offsets_at", lambda: transport.offsets_at("t", 0.0)
    yield "timelines", lambda: transport.timelines("t")
    yield "join", lambda: transport.join("g", "t", "m", 60.0)
    yield "acquire", lambda: transport.acquire("g", "t", 0, "m", 60.0)
    yield "acquire another", lambda: transport.acquire("g", "t", 1, "m", 60.0, start=Start.LAST)
    yield "acquire what is held", lambda: transport.acquire("g", "t", 0, "other", 60.0)
    yield "renew", lambda: transport.renew("g", "t", "m", {0: _EPOCH, 1: 99}, 60.0)
    yield "commit", lambda: transport.commit("g", "t", {0: Commit(_EPOCH, 1, receipts, 5), 1: Commit(99, 1)})
    yield "receipts", lambda: transport.receipts("g", "t", 0)
    yield "receipts of before", lambda: transport._call("receipts", "g", "t", 0)
    yield "committed", lambda: transport.committed("g", "t")
    yield "groups", lambda: transport.groups("t")
    yield "release", lambda: transport.release("g", "t", "m", {1: _EPOCH + 1})
    yield "bury", lambda: transport.bury("g", "t", "m", [(0, 1)])
    yield "leave", lambda: transport.leave("g", "t", "m")
    yield "set_offset", lambda: transport.set_offset("g", "t", 1, 1)
    yield "add_queues", lambda: transport.add_queues("t", 3, unordered=True)
    yield "show", lambda: transport.show("t", 2, to_producers=False, to_consumers=None, unordered=True)
    yield "retire_group", lambda: transport.retire_group("g", "t")
    yield "delete_group", lambda: transport.delete_group("g", "t")
    yield "trim", lambda: transport.trim("t")
    inbox = transport.open_inbox()
    yield "reply", lambda: transport.reply([(inbox.address, b"answer"), ("nowhere", b"lost")])
    yield "receive", lambda: inbox.receive(0)
    yield "receive nothing", lambda: inbox.receive(0.01)
    yield "close_inbox", inbox.close
    yield "status", transport.status
    yield "unknown topic", lambda: transport.queue_count("nowhere")
    yield "unknown queue", lambda: transport.pull("t", {7: 0}, limit=1, wait=0)
    yield "unknown request", lambda: transport._call("fly", 1)
    yield "wrong argument", lambda: transport._call("queue_count", 1)


def results_of(transport: BrokerTransport) -> list[tuple[str, Any]]:
    return [(name, _outcome(call)) for name, call in calls(transport)]


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return plain(call())
    except QueueError as error:
        return {"error": type(error).__name__}


def plain(value: Any) -> Any:
    """Return a value as JSON or msgpack would restore it."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, list | tuple | range):
        return [plain(each) for each in value]
    return value


def fits(recorded: Any, given: Any, *, is_exact: bool) -> bool:
    """Return True if ``given`` has everything that was recorded; mappings and the ends of lists may have more. Without
    ``is_exact``, other texts and numbers fit, too."""
    if isinstance(recorded, Mapping):
        return isinstance(given, Mapping) and all(
            key in given and fits(value, given[key], is_exact=is_exact) for key, value in recorded.items()
        )
    if isinstance(recorded, list):
        return (
            isinstance(given, list)
            and len(given) >= len(recorded)
            and all(fits(*both, is_exact=is_exact) for both in zip(recorded, given, strict=False))
        )
    if is_exact:
        return bool(recorded == given)
    return isinstance(given, type(recorded)) or (isinstance(recorded, int | float) and isinstance(given, int | float))


def unpacked(payload: bytes) -> Any:
    return msgpack.unpackb(payload, strict_map_key=False)


def read_golden(name: str) -> Golden:
    found = json.loads((GOLDEN / f"{name}.json").read_text())
    return Golden(
        [Pair(b64decode(request), b64decode(answer), exact) for request, answer, exact in found["frames"]],
        [Result(call, unpacked(b64decode(value)), exact) for call, value, exact in found["results"]],
    )


class FrameServer:
    """Answers each frame of a client with the result of ``answer`` for the connection's number (0, 1, 2 …) and the
    frame's payload. An error of ``answer`` ends the connection and is kept in ``errors``."""

    def __init__(self, answer: Callable[[int, bytes], bytes]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.location = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(DEADLINE)

    def _begin(self, target: Callable[..., None], *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        number = 0
        with suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                self._begin(self._serve, number, peer)
                number += 1

    def _serve(self, number: int, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as stream, suppress(ConnectionError):
            while (payload := read_payload(stream)) is not None:
                try:
                    answer = self._answer(number, payload)
                except BaseException as error:
                    self.errors.append(error)
                    return
                peer.sendall(framed(answer))


def framed(payload: bytes) -> bytes:
    return _LENGTH.pack(len(payload)) + payload


def read_payload(stream: BinaryIO) -> bytes | None:
    head = stream.read(_LENGTH.size)
    return stream.read(*_LENGTH.unpack(head)) if len(head) == _LENGTH.size else None


class Asking:
    """A connection to a broker that sends payloads unchanged."""

    def __init__(self, location: str) -> None:
        parts = urlsplit(location)
        self._socket = socket.create_connection((parts.hostname, parts.port), DEADLINE)
        self._stream = self._socket.makefile("rb")

    def ask(self, payload: bytes) -> bytes:
        self._socket.sendall(framed(payload))
        answer = read_payload(self._stream)
        assert answer is not None, "the broker closed the connection"
        return answer

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def record(**options: Any) -> tuple[list[tuple[bytes, bytes]], list[tuple[str, Any]]]:
    """Make the calls on a new broker. Return the requests with their answers, and the results by call."""
    pairs: list[tuple[bytes, bytes]] = []
    with tempfile.TemporaryDirectory() as directory, RunningBroker(Path(directory) / "data", **options) as broker:
        asking = Asking(broker.location)

        def forward(_: int, request: bytes) -> bytes:
            pairs.append((request, asking.ask(request)))
            return pairs[-1][1]

        with FrameServer(forward) as proxy, closing(BrokerTransport(proxy.location, **options)) as transport:
            results = results_of(transport)
        asking.close()
        return pairs, results


def write_golden(name: str, **options: Any) -> None:
    """Record twice, and write a file. Values that differ between the two, and figures, are not exact."""
    (pairs, results), (others, other_results) = record(**options), record(**options)
    found = {
        "frames": [
            [b64encode(request).decode(), b64encode(answer).decode(), answer == other and not _is_figures(request)]
            for (request, answer), (_, other) in zip(pairs, others, strict=True)
        ],
        "results": [
            [call, b64encode(msgpack.packb(value)).decode(), value == other and call != _FIGURES]
            for (call, value), (_, other) in zip(results, other_results, strict=True)
        ],
    }
    (GOLDEN / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def _is_figures(request: bytes) -> bool:
    return bool(unpacked(request)[1] == _FIGURES)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    write_golden(f"version-{VERSION}")
    write_golden(f"version-{VERSION}-secret", secret=SECRET)
