"""Anonymous clients that announce a body and do not send it: a thread of the server would wait for each."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.contrib.auth.models import User
from django.test import override_settings
from pytest_django.live_server_helper import LiveServer

from tests.api import commands  # noqa: F401 (they are registered)

DEADLINE = 60.0
FOR_CLERKS = {"COMMANDS": {name: ["rest_framework.permissions.IsAuthenticated"] for name in ("api.Track", "api.Own")}}
"""Settings that allow no command without authentication. The classes alone would let everybody send `api.Track`, and
send `api.Own` to some aggregates."""

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def unfinished(server: LiveServer, *headers: str, length: int = 1_000) -> Iterator[socket.socket]:
    """Send a request with only the first byte of its body. Yield the connection."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    head = [f"Host: {host}", "Content-Type: application/json", f"Content-Length: {length}", *headers]
    with socket.create_connection((host, int(port)), DEADLINE) as client:
        client.sendall("\r\n".join(["POST /api/commands/ HTTP/1.1", *head, "", "{"]).encode())
        yield client


def status(client: socket.socket) -> int:
    line = b""
    while not line.endswith(b"\r\n"):
        byte = client.recv(1)
        assert byte, f"the connection was closed behind {line!r}"
        line += byte
    return int(line.split()[1])


def basic(name: str, password: str) -> str:
    return f"Authorization: Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


@override_settings(ENODE={"API": FOR_CLERKS})
@pytest.mark.parametrize("accepted", ["application/json", "text/html"])
def test_a_stranger_is_refused_before_the_body_has_come(live_server: LiveServer, accepted: str) -> None:
    for who in ([], [basic("nobody", "guessed")], ["Cookie: sessionid=made-up; csrftoken=made-up"]):
        with unfinished(live_server, f"Accept: {accepted}", *who) as client:
            assert status(client) in (401, 403)


@override_settings(ENODE={"API": {**FOR_CLERKS, "MAX_BODY": 500}})
def test_a_body_that_is_announced_to_be_too_large_is_not_waited_for(live_server: LiveServer) -> None:
    User.objects.create_user("clerk", password="secret")
    with unfinished(live_server, basic("clerk", "secret"), length=501) as client:
        assert status(client) == 413


@override_settings(ENODE={"API": {"COMMANDS": {"*": ["rest_framework.permissions.AllowAny"]}}})
def test_where_strangers_may_send_something_they_are_asked_what(live_server: LiveServer) -> None:
    body = b'{"type": "bank.Nothing", "aggregate_root_id": "a"}'
    with unfinished(live_server, length=len(body)) as client:
        client.sendall(body[1:])
        assert status(client) in (401, 403)  # not 404, which would reveal that there is no such command
