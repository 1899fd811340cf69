from __future__ import annotations

import gc
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus

import pytest

from enode_django.exceptions import ConfigurationError
from enode_django.monitoring import probing
from enode_django.monitoring.probing import (
    MAX_CONNECTIONS,
    MAX_REQUEST,
    MAX_WAITING_OF_ADDRESS,
    Page,
    ProbeServer,
    verdict,
)

SOON = 60.0


def broken() -> Page:
    raise ValueError("secret")


PAGES = {"/ok": lambda: verdict([]), "/bad": lambda: verdict(["it <hangs>"]), "/broken": broken}


@pytest.fixture
def server() -> Iterator[ProbeServer]:
    server = ProbeServer("127.0.0.1", 0, PAGES)
    yield server
    server.stop()


def get(server: ProbeServer, path: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(server.url + path, method=method)
    try:
        with urllib.request.urlopen(request, timeout=SOON) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def connect(server: ProbeServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=SOON)


def answer_to(server: ProbeServer, request: bytes) -> bytes:
    with connect(server) as client:
        try:
            client.sendall(request)
            return b"".join(iter(lambda: client.recv(65_536), b""))
        except ConnectionError:
            return b""


def test_pages_are_made_for_each_request(server: ProbeServer) -> None:
    assert get(server, "/ok?verbose=1") == (200, "ok\n")
    assert get(server, "/bad") == (503, "it <hangs>\n")
    assert get(server, "/ok", "HEAD") == (200, "")


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/", "GET", 404), ("/../ok", "GET", 404), ("/ok", "POST", 405), ("/ok", "DELETE", 405)],
)
def test_nothing_else_is_there(server: ProbeServer, path: str, method: str, status: int) -> None:
    assert get(server, path, method)[0] == status


def test_a_page_that_fails_says_nothing_of_why(server: ProbeServer) -> None:
    status, text = get(server, "/broken")
    assert status == HTTPStatus.INTERNAL_SERVER_ERROR
    assert "secret" not in text
    assert get(server, "/ok")[0] == 200


@pytest.mark.parametrize(
    "request_",
    [b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET /ok HTTP/9\r\n\r\n", b"\xff /ok \x00\r\n\r\n"],
)
def test_what_is_no_request_is_refused(server: ProbeServer, request_: bytes) -> None:
    assert answer_to(server, request_).startswith(b"HTTP/1.1 400 ")
    assert get(server, "/ok")[0] == 200


def test_a_head_without_end_is_broken_off(server: ProbeServer) -> None:
    assert answer_to(server, b"GET /ok HTTP/1.1\r\nX: " + b"a" * 4 * MAX_REQUEST) == b""
    assert get(server, "/ok")[0] == 200


def test_slow_clients_have_a_time_limit_and_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "SECONDS", SOON)
    server = ProbeServer("127.0.0.1", 0, PAGES)
    with connect(server) as slow:
        slow.sendall(b"GET /ok HT")
        assert get(server, "/ok")[0] == 200
    monkeypatch.setattr(probing, "SECONDS", 0.5)
    with connect(server) as slow:
        slow.sendall(b"GET /ok HT")
        assert slow.recv(1) == b"", "it was closed"
    server.stop()


def test_a_crowd_of_clients_that_ask_nothing_keeps_nobody_out(server: ProbeServer) -> None:
    threads = {*threading.enumerate()}
    crowd = [connect(server) for _ in range(MAX_CONNECTIONS + 6)]
    for client in crowd:
        client.sendall(b"GET /ok HT")
    for _ in range(24):
        assert answer_to(server, b"GET /ok HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert {*threading.enumerate()} <= threads
    for client in crowd:
        client.close()


def test_a_crowd_of_many_addresses_makes_room_for_who_comes(server: ProbeServer) -> None:
    addresses = [f"127.0.0.{number}" for number in range(2, 2 + MAX_CONNECTIONS // MAX_WAITING_OF_ADDRESS)]
    crowd = [
        socket.create_connection(("127.0.0.1", server.port), SOON, (address, 0))
        for address in addresses
        for _ in range(MAX_WAITING_OF_ADDRESS)
    ]
    assert answer_to(server, b"GET /ok HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert crowd[0].recv(1) == b"", "the oldest has gone"
    for client in crowd:
        client.close()


def test_a_server_that_was_stopped_listens_no_more(server: ProbeServer) -> None:
    with connect(server) as waiting:
        server.stop()
        with suppress(ConnectionResetError):  # raised if the server had not accepted the connection yet
            assert waiting.recv(1) == b""
    with pytest.raises(ConnectionError):
        connect(server).close()


@pytest.mark.parametrize("count", [1, 3])
def test_whoever_has_just_come_is_told_when_it_stops(count: int, caplog: pytest.LogCaptureFixture) -> None:
    """Connections are closed explicitly: the garbage collector would close forgotten ones only later."""
    gc.disable()
    try:
        for _ in range(50):
            server = ProbeServer("127.0.0.1", 0, PAGES)
            clients = [connect(server) for _ in range(count)]
            server.stop()
            for client in clients:
                with client, suppress(ConnectionResetError):
                    assert client.recv(1) == b""
    finally:
        gc.enable()
    assert caplog.messages == []


def test_a_port_that_is_taken_is_a_clear_error(server: ProbeServer) -> None:
    with pytest.raises(ConfigurationError, match=rf"'127.0.0.1', port {server.port} cannot be listened on"):
        ProbeServer("127.0.0.1", server.port, PAGES)


def test_an_address_of_another_machine_is_a_clear_error() -> None:
    with pytest.raises(ConfigurationError, match="cannot be listened on"):
        ProbeServer("192.0.2.1", 0, PAGES)
