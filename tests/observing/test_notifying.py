from __future__ import annotations

import doctest
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from enode_django.processes import notifying
from enode_django.processes.notifying import Notifier


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A socket like systemd's, and its name as the environment has it."""
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        if request.param == "abstract":
            listener.bind(f"\0enode-test-{os.getpid()}")
            name = f"@enode-test-{os.getpid()}"
        else:
            listener.bind(name)
        listener.setblocking(False)
        yield listener, name


def heard(listener: socket.socket) -> list[str]:
    words = []
    while True:
        try:
            words.append(listener.recv(1_000).decode())
        except BlockingIOError:
            return words


def test_systemd_hears_that_it_is_ready_lives_and_stops(systemd: tuple[socket.socket, str]) -> None:
    listener, name = systemd
    environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
    now = 0.0
    notifier = Notifier(environment, clock=lambda: now)
    assert environment == {}, "no child speaks for it"
    notifier.ready()
    notifier.ready()
    notifier.alive("2 workers")
    assert heard(listener) == ["READY=1", "WATCHDOG=1", "STATUS=2 workers"]
    now = 0.9
    notifier.alive("3 workers")
    assert heard(listener) == [], "not more often than it must"
    now = 1.0
    notifier.alive("3 workers")
    assert heard(listener) == ["WATCHDOG=1"]
    now = 6.0
    notifier.alive("3 workers")
    notifier.stopping()
    notifier.stopping()
    assert heard(listener) == ["WATCHDOG=1", "STATUS=3 workers", "STOPPING=1"]


def test_what_a_busy_systemd_did_not_take_is_said_again(systemd: tuple[socket.socket, str]) -> None:
    listener, name = systemd
    now = 0.0
    notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3000000"}, clock=lambda: now)
    for second in range(1_000):  # nothing reads the messages, so the socket's buffer fills up
        now = float(second)
        notifier.alive()
    notifier.ready()
    assert "READY=1" not in heard(listener)
    notifier.ready()
    assert heard(listener) == ["READY=1"]


def test_without_systemd_nothing_is_said() -> None:
    notifier = Notifier({"WATCHDOG_USEC": "3000000"})
    notifier.ready()
    notifier.alive("2 workers")
    notifier.stopping()


def test_a_socket_that_is_gone_does_no_harm(tmp_path: Path) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    notifier.ready()
    notifier.alive("2 workers")


def test_a_watchdog_of_another_process_is_none_of_ours() -> None:
    assert doctest.testmod(notifying).failed == 0
