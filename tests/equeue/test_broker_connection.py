"""Connections whose other side misbehaves, with and without TLS."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from enode_django.equeue.frames import FrameDecoder, encode_frame
from enode_django.equeue.transports.broker_address import Address, client_tls
from enode_django.equeue.transports.broker_connection import Connection, ConnectionLost, Pool
from tests.equeue.brokers import DEADLINE
from tests.equeue.certificates import Authority

PATIENCE = 0.5
GIVEN_UP = "no answer in time|timed out"
Conduct = Callable[[socket.socket, threading.Event], None]


def keep_silent(peer: socket.socket, over: threading.Event) -> None:
    peer.recv(1)
    over.wait(DEADLINE)


def drip(peer: socket.socket, over: threading.Event) -> None:
    """Send an answer byte by byte: each byte comes in time, but the whole answer does not."""
    peer.sendall((1_000).to_bytes(4, "big"))
    while not over.wait(PATIENCE / 10):
        peer.sendall(b"\0")


def read_nothing(peer: socket.socket, over: threading.Event) -> None:
    over.wait(DEADLINE)


def read_by_the_byte(peer: socket.socket, over: threading.Event) -> None:
    while not over.wait(PATIENCE / 10):
        peer.recv(1)


@pytest.fixture(params=["plain", "tls"])
def contexts(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """The TLS contexts of the server and of the client; None without TLS."""
    if request.param == "plain":
        return None, None
    authority = Authority(tmp_path, "authority")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(*authority.certificate("broker"))
    return server, client_tls({"ca": authority.path})


@pytest.fixture
def connect(contexts: tuple[ssl.SSLContext | None, ssl.SSLContext | None]) -> Iterator[Callable[[Conduct], Connection]]:
    """A function that connects to a server that greets as a broker does, and then behaves as ``conduct`` says."""
    over, threads = threading.Event(), []
    server_tls, tls = contexts

    def behave(listener: socket.socket, conduct: Conduct) -> None:
        with listener, suppress(OSError):
            peer, _ = listener.accept()
            with server_tls.wrap_socket(peer, server_side=True) if server_tls else peer as peer:
                greet(peer)
                conduct(peer, over)

    def connect(conduct: Conduct) -> Connection:
        listener = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=behave, args=(listener, conduct))
        threads.append(thread)
        thread.start()
        return Connection(Address(*listener.getsockname(), None, tls), DEADLINE)

    yield connect
    over.set()
    for thread in threads:
        thread.join(DEADLINE)


def greet(peer: socket.socket) -> None:
    decoder = FrameDecoder()
    while True:
        for number, *_ in decoder.received(peer.recv_into(decoder.room())):
            peer.sendall(b"".join(encode_frame((number, True, {"run": 1, "nonce": b"", "secret": False}))))
            return


@pytest.mark.parametrize(
    ("conduct", "size"), [(keep_silent, 1), (drip, 1), (read_nothing, 32 << 20), (read_by_the_byte, 32 << 20)]
)
def test_a_call_ends_when_its_time_is_over(
    connect: Callable[[Conduct], Connection], conduct: Conduct, size: int
) -> None:
    connection = connect(conduct)
    begun = time.monotonic()
    with pytest.raises(ConnectionLost, match=GIVEN_UP) as lost:
        connection.call("send", [b"x" * size], begun + PATIENCE)
    assert lost.value.connected
    assert PATIENCE <= time.monotonic() - begun < DEADLINE
    connection.close()


def test_a_call_whose_time_was_over_before_is_not_begun(connect: Callable[[Conduct], Connection]) -> None:
    connection = connect(keep_silent)
    with pytest.raises(ConnectionLost, match="no answer in time"):
        connection.call("send", [], time.monotonic())
    connection.close()


class TakenMeanwhile(list[Connection]):
    """Idle connections whose last one another thread takes right after somebody has looked whether there is one."""

    def __len__(self) -> int:
        return 1


def test_a_pool_is_closed_while_another_thread_takes_its_last_idle_connection() -> None:
    pool = Pool(Address("127.0.0.1", 1, None, None), PATIENCE)
    pool._idle = TakenMeanwhile()
    pool.close()
    assert pool.is_closed
