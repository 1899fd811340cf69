"""``POST commands/?wait=none`` beside a view that only authenticates and parses, on the same gunicorn.

There is one worker with four threads, and as many clients over persistent connections: while one request waits for the
queue or the database, others are handled, as on any server. With two workers, one might take all connections of a
round and leave the other idle. Rounds alternate, so that other work of the machine affects all alike.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from benchmarks.figures import Figure, median
from benchmarks.processors import BenchmarkError
from benchmarks.workspace import PROJECT, Services

SECONDS = 30.0
THREADS = 4
"""The number of threads, and of clients."""
APPLICATION = "sample_project.wsgi:application"

LOG_IN = """
import django
django.setup()
from django.contrib.auth.models import Permission, User
from django.test import Client
user = User.objects.create(username="clerk")
user.user_permissions.add(Permission.objects.get(codename="send_command"))
client = Client()
client.force_login(user)
print(client.cookies["sessionid"].value)
"""


class Target(NamedTuple):
    name: str
    path: str
    type: str


TARGETS = (
    Target("empty view", "/empty/", "bank.Deposit"),
    Target("API", "/api/commands/?wait=none", "bank.Deposit"),
    Target("API, default permission", "/api/commands/?wait=none", "bank.Withdraw"),
)


def run(services: Services, quick: bool) -> list[Figure]:
    rounds, count = (3, 400) if quick else (9, 1_000)
    with services.on_broker() as workspace:
        environment = {**workspace.environment, "DJANGO_SETTINGS_MODULE": "benchmarks.api_settings"}
        session = _output([sys.executable, "-c", LOG_IN], environment).strip()
        with _gunicorn(environment) as place:
            requests = [_request(target, session) for target in TARGETS]
            for request in requests:
                _rate(place, request, count)  # warm
            rates = [[_rate(place, request, count) for request in requests] for _ in range(rounds)]
    return [
        median(target.name, found, "requests/s", f"1 worker, {THREADS} threads, {THREADS} clients")
        for target, found in zip(TARGETS, zip(*rates, strict=True), strict=True)
    ]


def _output(command: list[str], environment: Mapping[str, str]) -> str:
    return subprocess.run(command, cwd=PROJECT, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextlib.contextmanager
def _gunicorn(environment: Mapping[str, str]) -> Iterator[str]:
    """Run gunicorn on a Unix socket, and give its path. Over TCP each answer, which is sent in two pieces, would wait
    for an acknowledgement."""
    with tempfile.TemporaryDirectory() as directory:
        place = f"{directory}/gunicorn"
        kind = ["--worker-class", "gthread", "--threads", str(THREADS), "--keep-alive", "30", "--log-level", "error"]
        server = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "--bind", f"unix:{place}", "--workers", "1", *kind, APPLICATION],
            cwd=PROJECT,
            env=environment,
        )
        try:
            _wait_for(place, server)
            yield place
        finally:
            server.terminate()
            server.wait(SECONDS)


def _wait_for(place: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SECONDS
    while not os.path.exists(place):
        if server.poll() is not None or time.monotonic() > deadline:
            raise BenchmarkError("gunicorn did not start")
        time.sleep(0.05)


def _request(target: Target, session: str) -> bytes:
    fields = {"amount": "12.50"}
    body = json.dumps({"type": target.type, "aggregate_root_id": "account-1", "fields": fields}).encode()
    token = "a" * 32
    lines = [
        f"POST {target.path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"Cookie: sessionid={session}; csrftoken={token}",
        f"X-CSRFToken: {token}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _rate(place: str, request: bytes, count: int) -> float:
    """Return the requests per second."""
    with ThreadPoolExecutor(THREADS) as clients:
        started = time.perf_counter()
        asked = [clients.submit(_ask, place, request, count // THREADS) for _ in range(THREADS)]
        for one in asked:
            one.result()
        return count / (time.perf_counter() - started)


def _ask(place: str, request: bytes, count: int) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(SECONDS)
        client.connect(place)
        for _ in range(count):
            client.sendall(request)
            answer = client.recv(65_536)
            while not _is_whole(answer):
                more = client.recv(65_536)
                if not more:
                    raise BenchmarkError(f"the server closed the connection after {answer[:200]!r}")
                answer += more
            if not answer.startswith(b"HTTP/1.1 202"):
                raise BenchmarkError(f"the server answered {answer[:500]!r}")


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    _, _, length = head.lower().partition(b"content-length: ")
    return bool(end) and len(body) >= int(length.split(b"\r\n")[0])
