from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings
from pytest_django import DjangoDbBlocker

from sample_project.layers import merged

BROKER = "enode_django.equeue.transports.broker.BrokerTransport"
Configure = Callable[..., Mapping[str, Any]]


@pytest.fixture
def configure(redis_url: str) -> Iterator[Configure]:
    """Change ``ENODE`` for the test, with a queue of its own: messages that other tests left would be a backlog."""
    with ExitStack() as stack:

        def change(**given: Any) -> Mapping[str, Any]:
            name = uuid.uuid4().hex
            own: dict[str, Any] = {
                "COMMANDS": {"TOPIC": f"commands-{name}"},
                "SUBSCRIBERS": {"TOPIC": f"events-{name}"},
                "QUEUE": {"QUEUES_PER_TOPIC": 2, "OPTIONS": {"prefix": name}},
            }
            changed = merged(settings.ENODE, own, given)
            stack.enter_context(override_settings(ENODE=changed))
            return changed

        yield change


def broker_at(port: int) -> Mapping[str, Any]:
    return {"BACKEND": BROKER, "LOCATION": f"tcp://127.0.0.1:{port}", "OPTIONS": {}}


@pytest.fixture
def silent_server() -> Iterator[socket.socket]:
    """Yield a server that never answers. It resets its connections when it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def silent_port(silent_server: socket.socket) -> int:
    port: int = silent_server.getsockname()[1]
    return port


def wait_until_landed() -> None:
    deadline = time.monotonic() + 60
    while any(thread.name.startswith("enode-status") for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "a thread of the status has not ended"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def patient_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no busy machine make a living database one that does not answer."""
    monkeypatch.setattr("enode_django.monitoring.health.TIMEOUT", 60.0)


@pytest.fixture
def landed() -> Iterator[None]:
    """Wait for threads in the tests' database: none may be left when it is emptied or dropped."""
    yield
    wait_until_landed()


@pytest.fixture
def unguarded(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Reading any database, also one that Django's test cases would not let a thread connect to."""
    with django_db_blocker.unblock():
        yield
