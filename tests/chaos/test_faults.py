"""The tools of faults, each alone: proxies, dials, garbage. The faults themselves need a whole world."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.counting import Counting
from chaos.dials import VARIABLE, Dials
from chaos.errors import ChaosError
from chaos.faults.base import Skipped
from chaos.faults.messages import broken
from chaos.faults.routes import refusal_of_malformed
from chaos.journal import Journal
from chaos.processes import PROJECT, Child, guarded_directory
from chaos.proxy import Proxy
from chaos.waiting import wait_until
from tests.equeue.brokers import RunningBroker

DEADLINE = 60.0


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while piece := self.request.recv(1024):
            self.request.sendall(piece)


class _Greeting(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.sendall(b"welcome")


@contextlib.contextmanager
def serving(handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    """Gives the port."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join(DEADLINE)


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets."""
    with serving(_Echo) as port:
        yield port


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    proxy = Proxy(echo)
    yield proxy
    proxy.close()


def connected(proxy: Proxy) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", proxy.port), DEADLINE)
    connection.sendall(b"hello")
    assert connection.recv(100) == b"hello"
    return connection


def test_a_proxy_hands_everything_on_in_order(proxy: Proxy) -> None:
    sent = random.Random(1).randbytes(3_000_000)
    with connected(proxy) as connection:
        sending = threading.Thread(target=connection.sendall, args=(sent,), daemon=True)
        sending.start()
        received = bytearray()
        while len(received) < len(sent):
            received += connection.recv(100_000)
        sending.join(DEADLINE)
    assert received == sent


def test_a_cut_resets_what_there_is_and_lets_new_connections_in(proxy: Proxy) -> None:
    with connected(proxy) as first, connected(proxy) as second:
        assert proxy.cut() == 2
        for connection in (first, second):
            with pytest.raises(ConnectionResetError):
                connection.recv(100)
    connected(proxy).close()


def test_silence_keeps_connections_open_and_loses_nothing(proxy: Proxy) -> None:
    with connected(proxy) as connection:
        proxy.silence()
        connection.sendall(b"later")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(100)
        proxy.resume()
        connection.settimeout(DEADLINE)
        assert connection.recv(100) == b"later"


def test_delayed_pieces_come_whole(proxy: Proxy) -> None:
    with connected(proxy) as connection:
        proxy.delay = 0.05
        connection.sendall(b"slowly")
        assert connection.recv(100) == b"slowly"


def test_a_proxy_can_lead_elsewhere(proxy: Proxy) -> None:
    with serving(_Greeting) as other, connected(proxy) as connection:
        proxy.lead_to(other)
        with pytest.raises(ConnectionResetError):
            connection.recv(100)
        with socket.create_connection(("127.0.0.1", proxy.port), DEADLINE) as another:
            assert another.recv(100) == b"welcome"


def test_what_nobody_listens_to_ends_connections(closed_port: int) -> None:
    proxy = Proxy(closed_port)
    connection = socket.create_connection(("127.0.0.1", proxy.port), DEADLINE)
    with connection, contextlib.suppress(ConnectionResetError):
        assert connection.recv(100) == b""
    proxy.close()
    proxy.close()


# -- processes under test ---------------------------------------------------------------------------------------------

LOOK = """
import datetime, json, os, sys, time
real = time.clock_gettime(time.CLOCK_REALTIME)
descriptor = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
began = time.monotonic()
os.pwrite(descriptor, b"x", 0)
os.fsync(descriptor)
took = time.monotonic() - began
now = datetime.datetime.now(datetime.UTC)
print(json.dumps({
    "time": time.time() - real,
    "ns": time.time_ns() / 1e9 - real,
    "now": now.timestamp() - real,
    "local": datetime.datetime.now().timestamp() - real,
    "utcnow": datetime.datetime.utcnow().replace(tzinfo=datetime.UTC).timestamp() - real,
    "type": type(now) is datetime.datetime,
    "took": took,
}))
"""


def look(dials: Path, file: Path) -> dict[str, float]:
    """Return the clock, relative to the machine's, and the disk as a process sees them."""
    environment = {
        **os.environ,
        VARIABLE: str(dials),
        "PYTHONPATH": f"{PROJECT / 'chaos' / 'preload'}:{PROJECT}",
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [sys.executable, "-c", LOOK, file], env=environment, capture_output=True, text=True, timeout=240, check=True
    )
    seen: dict[str, float] = json.loads(done.stdout)
    return seen


@pytest.mark.parametrize("offset", [0.0, 100_000.0, -100_000.0])
def test_a_process_goes_by_the_dial_of_its_clock(tmp_path: Path, offset: float) -> None:
    dials = Dials(tmp_path / "dials")
    dials.clock_offset = offset
    seen = look(tmp_path / "dials", tmp_path / "file")
    for clock in ("time", "ns", "now", "local", "utcnow"):
        assert 0 <= seen[clock] - offset < 50_000, clock
    assert seen["type"], "what now() returns is what encoders know"
    dials.close()


def test_a_process_goes_by_the_dial_of_its_disk(tmp_path: Path) -> None:
    dials = Dials(tmp_path / "dials")
    dials.disk_delay = 0.3
    assert (dials.clock_offset, dials.disk_delay) == (0.0, 0.3)
    assert look(tmp_path / "dials", tmp_path / "file")["took"] >= 2 * 0.3
    dials.close()


def test_dials_are_seen_by_others_that_have_them_open(tmp_path: Path) -> None:
    one, other = Dials(tmp_path / "dials"), Dials(tmp_path / "dials")
    one.clock_offset, one.disk_delay = -3.5, 0.25
    assert (other.clock_offset, other.disk_delay) == (-3.5, 0.25)
    one.close()
    other.close()


def test_a_child_restarts_and_leaves_nothing_of_its_group_behind() -> None:
    program = "import subprocess, sys; subprocess.Popen(['sleep', '600']); print('up', flush=True); sys.stdin.read()"
    with guarded_directory() as directory:
        child = Child("sleeper", [sys.executable, "-c", program], {}, directory / "sleeper.log")
        for times in (1, 2):
            child.start()
            wait_until(lambda: child.log_path.read_text().count("up") == times, "it is up", DEADLINE)  # noqa: B023
            assert len(child.members()) == 2
            child.kill_group()
            assert (child.members(), child.wanted, child.is_running) == ([], False, False)
    assert not directory.exists()


def test_waiting_in_vain_says_for_what() -> None:
    with pytest.raises(ChaosError, match=r"waited 0 s in vain: the end of time"):
        wait_until(lambda: False, lambda: "the end of time", 0)


# -- journals and counts ----------------------------------------------------------------------------------------------


def test_journals_are_counted_while_they_grow(tmp_path: Path) -> None:
    journal, counting = Journal(tmp_path / "client-1.jsonl"), Counting(tmp_path)
    journal.note(what="send", command={"id": "a"})
    counting.look()
    assert (counting.sends, counting.answers) == (1, 0)
    journal.note(what="send", command={"id": "b"})
    journal.note(what="answer", id="a")
    with (tmp_path / "client-1.jsonl").open("a") as torn:
        torn.write('{"at": 1, "what": "answ')
    for _ in range(2):
        counting.look()
        assert (counting.sends, counting.answers) == (2, 1)
    journal.close()


def test_garbage_is_no_message() -> None:
    chance = random.Random(7)
    body = bytes(range(100))
    found = [broken(chance, body) for _ in range(200)]
    assert body not in found
    assert any(body.startswith(one) and len(one) > 50 for one in found), "some are cut off"
    assert broken(chance, b"") is not None


def test_a_malformed_batch_is_refused_and_stops_nothing(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data") as broker:
        with contextlib.closing(broker.transport()) as transport:
            transport.create_topic("bank", 1)
            assert refusal_of_malformed(transport.location, "bank") == "sent a batch of three, which was refused"
            transport.send("bank", {0: [b"sound"]})
            assert transport.end_offsets("bank") == {0: 1}
            location = transport.location
        assert broker.stop() == 0
        with pytest.raises(Skipped, match="the broker is away"):
            refusal_of_malformed(location, "bank")
