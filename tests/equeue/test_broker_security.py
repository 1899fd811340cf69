from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from enode_django.equeue.broker.access import Secret
from enode_django.equeue.broker.options import BrokerOptions, Tls, parse_location
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.wire import MAGIC
from enode_django.exceptions import ConfigurationError, QueueError, TransportUnavailable
from tests.equeue.brokers import DEADLINE, RunningBroker
from tests.equeue.certificates import Authority
from tests.equeue.test_broker_bad_input import Raw


@pytest.fixture(scope="module")
def secretive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path_factory.mktemp("secretive") / "data", secret="open sesame") as broker:
        yield broker


def test_secret_lets_in(secretive: RunningBroker) -> None:
    transport = secretive.transport(secret="open sesame")
    assert transport.create_topic("t", 1) == 1
    transport.close()


@pytest.mark.parametrize(("secret", "says"), [("open barley", "does not take"), (None, "asks for a secret")])
def test_wrong_secret_is_told_at_once(secretive: RunningBroker, secret: str | None, says: str) -> None:
    transport = secretive.transport(secret=secret)
    before = time.monotonic()
    with pytest.raises(ConfigurationError, match=says):
        transport.send("t", {0: [b"x"]})
    assert time.monotonic() - before < DEADLINE / 4


def test_client_with_a_secret_trusts_no_broker_without(broker: RunningBroker) -> None:
    with pytest.raises(ConfigurationError, match="has no secret"):
        broker.transport(secret="open sesame").topics()


def test_nothing_is_done_before_the_secret_is_proven(secretive: RunningBroker) -> None:
    raw = Raw(secretive.location, greet=False)
    assert raw.ask(1, "hello", [MAGIC, 1, os.urandom(16)])[2]["secret"] is True
    assert raw.ask(2, "topics", [])[1:3] == [False, "MalformedFrame"]
    assert raw.answer() is None


def test_proof_of_another_connection_is_refused(secretive: RunningBroker) -> None:
    raw = Raw(secretive.location, greet=False)
    raw.ask(1, "hello", [MAGIC, 1, os.urandom(16)])
    assert raw.ask(2, "prove", [bytes(32)])[1:3] == [False, "ConfigurationError"]
    assert raw.answer() is None


def test_frames_before_the_handshake_are_small(secretive: RunningBroker) -> None:
    raw = Raw(secretive.location, greet=False)
    raw.send((100_000).to_bytes(4, "big"))
    assert raw.answer()[1:3] == [False, "MalformedFrame"]


def test_other_version_is_told(broker: RunningBroker) -> None:
    raw = Raw(broker.location, greet=False)
    answer = raw.ask(1, "hello", [MAGIC, 99, os.urandom(16)])
    assert answer[1:3] == [False, "ConfigurationError"]
    assert "version 99" in answer[3]
    assert "upgrade enode_django on the broker's host" in answer[3]
    assert raw.answer() is None


def test_something_else_that_listens_is_no_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport = BrokerTransport(f"tcp://127.0.0.1:{listener.getsockname()[1]}", timeout=0.2)
        with pytest.raises(TransportUnavailable, match="runbroker"):
            transport.topics()


@pytest.mark.parametrize("given", [{}, {"secret": "x"}, {"tls": Tls(certificate="c", key="k")}])
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.7", "broker.example"])
def test_address_for_others_needs_a_secret_and_tls(host: str, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="without a secret and TLS"):
        BrokerOptions(directory=Path("x"), listen=f"tcp://{host}:1", **given)
    tls = Tls(certificate="c", key="k")
    BrokerOptions(directory=Path("x"), listen=f"tcp://{host}:1", secret="x", tls=tls)
    BrokerOptions(directory=Path("x"), listen=f"tcp://{host}:1", secrets=(Secret(name="x", text="x"),), tls=tls)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.3.2.1"])
def test_address_of_this_machine_needs_nothing(host: str) -> None:
    BrokerOptions(directory=Path("x"), listen=f"tcp://{host}")


def refused_without_the_right_certificates(broker: RunningBroker, known: dict[str, str], stranger: Authority) -> None:
    with pytest.raises(ConfigurationError, match="not trusted"):
        broker.transport(secret="s", tls={**known, "ca": stranger.path}).topics()
    with pytest.raises(QueueError):
        broker.transport(secret="s", tls={"ca": known["ca"]}, timeout=2.0).topics()
    with pytest.raises(TransportUnavailable):
        broker.transport(secret="s", timeout=0.5).topics()


def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path, "authority"), Authority(tmp_path, "stranger")
    certificate, key = authority.certificate("broker")
    tls = {"certificate": certificate, "key": key, "client_ca": authority.path}
    own, own_key = authority.certificate("client")
    known = {"ca": authority.path, "certificate": own, "key": own_key}
    with RunningBroker(tmp_path / "data", tls=tls, secret="s") as broker:
        transport = broker.transport(secret="s", tls=known)
        transport.create_topic("t", 1)
        bodies = [os.urandom(100_000) for _ in range(30)]
        assert transport.send("t", {0: bodies}) == {0: 0}
        (batch,) = transport.pull("t", {0: 0}, limit=100, wait=0)
        assert list(batch.bodies) == bodies[: len(batch.bodies)]
        # In a thread of their own: Python 3.13 and newer may blame the error of one connection on the next that the
        # same thread reads from (python/cpython#148594).
        with ThreadPoolExecutor(1) as strangers:
            strangers.submit(refused_without_the_right_certificates, broker, known, stranger).result()
        assert transport.topics() == ["t"]
        transport.close()
        assert broker.stop() == 0


def test_a_tls_handshake_that_is_not_finished_ends_the_connection_and_keeps_nobody_out(tmp_path: Path) -> None:
    """Such connections do not count: twice as many as there may be keep none of the clients out."""
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.certificate("broker")
    options: dict[str, Any] = {"max_connections": 8, "handshake_timeout": 2.0}
    with RunningBroker(tmp_path / "data", tls={"certificate": certificate, "key": key}, **options) as broker:
        host, port = parse_location(broker.location)
        silent = [socket.create_connection((host, port), DEADLINE) for _ in range(16)]
        for half in silent[::2]:
            half.sendall(b"\x16\x03\x01")  # the beginning of a handshake
        with closing(broker.transport(tls={"ca": authority.path})) as transport:
            assert transport.topics() == []
            for one in silent:
                assert one.recv(1_000) == b""
                one.close()
            assert transport.topics() == []


@pytest.mark.parametrize("tls", [{"ca": "nowhere.pem"}, {"certificate": "nowhere.pem"}, {"authority": "x"}])
def test_certificates_that_cannot_be_used_are_told_at_once(tls: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="tls"):
        BrokerTransport("tcp://127.0.0.1", tls=tls)


@pytest.mark.parametrize(
    ("location", "options", "warned"),
    [
        ("tcp://192.0.2.1", {"secret": "hidden"}, True),
        ("tcp://192.0.2.1", {"secret": "hidden", "tls": True}, False),
        ("tcp://192.0.2.1", {}, False),
        ("tcp://127.0.0.1", {"secret": "hidden"}, False),
    ],
)
def test_a_secret_without_tls_for_another_machine_is_warned_of(
    location: str, options: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    BrokerTransport(location, **options).close()
    assert ("without TLS" in caplog.text) is warned
    assert "hidden" not in caplog.text
