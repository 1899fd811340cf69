from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import urllib.request
from pathlib import Path

import msgpack
import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from enode_django.checks import settings as checks
from enode_django.conf import conf
from enode_django.conf.groups import REDIS_STREAMS
from enode_django.equeue.broker.access import Role, Secret
from enode_django.equeue.broker.options import BrokerOptions, Tls
from enode_django.equeue.broker.retention import Retention
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.exceptions import ConfigurationError
from enode_django.processors.broker_options import broker_options
from tests import warm
from tests.equeue.brokers import DEADLINE, RunningBroker
from tests.equeue.consuming import eventually
from tests.equeue.test_checkpoints import garble, written
from tests.meta.tree import ROOT


def test_command_says_where_it_listens_is_watched_from_outside_and_ends_cleanly(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(DEADLINE)
        command = ["manage.py", "runbroker", "--listen", "tcp://127.0.0.1:0", "--metrics-port", "0"]
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
        with open(tmp_path / "log", "w") as log:
            broker = warm.start(
                [*command, "--directory", str(tmp_path / "data")], cwd=ROOT, env=environment, stderr=log
            )
        assert broker.stdout is not None
        with broker.stdout:
            found = re.search(r"/live, /ready, /metrics at (http://127\.0\.0\.1:\d+)", broker.stdout.readline())
            assert found is not None
            listens = re.search(r"tcp://127\.0\.0\.1:\d+", broker.stdout.readline())
            assert listens is not None
            with contextlib.closing(BrokerTransport(listens[0])) as transport:
                assert transport.create_topic("t", 2) == 2
            assert systemd.recv(100) == b"READY=1"
            for page in ("/live", "/ready"):
                with urllib.request.urlopen(found[1] + page, timeout=DEADLINE) as answer:
                    assert answer.read() == b"ok\n"
            assert systemd.recv(100) == b"WATCHDOG=1"
            eventually(lambda: b"enode_broker_free_bytes" in page_of(f"{found[1]}/metrics"))
            broker.send_signal(signal.SIGTERM)
            assert b"STOPPING=1" in iter(lambda: systemd.recv(100), b"")
            assert broker.wait(DEADLINE) == 0
    assert (tmp_path / "data" / "checkpoint").is_file()


def page_of(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=DEADLINE) as answer:
        body: bytes = answer.read()
    return body


def test_directory_and_address_in_use_are_told(broker: RunningBroker, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="is used by process"):
        call_command("runbroker", listen="tcp://127.0.0.1:0", directory=broker.directory)
    with pytest.raises(CommandError, match=f"cannot listen on {broker.location}"):
        call_command("runbroker", listen=broker.location, directory=tmp_path)


def test_a_start_that_would_lose_offsets_has_to_be_told_to(tmp_path: Path) -> None:
    written(tmp_path / "data", 3, msgpack.packb(["create_topic", ["orders", 2], {}])).abandon()
    for name in ("checkpoint", "checkpoint.before"):
        garble(tmp_path / "data" / name)
    with pytest.raises(CommandError, match="--accept-loss"):
        call_command("runbroker", listen="tcp://127.0.0.1:0", directory=tmp_path / "data")
    with RunningBroker(tmp_path / "data", accept_loss=True) as broker, contextlib.closing(broker.transport()) as again:
        assert again.end_offsets("orders") == {0: 20, 1: 10}
        assert broker.stop() == 0
        broker.start(accept_loss=False)
        assert again.topics() == ["orders"]


def test_address_for_others_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="without a secret and TLS"):
        call_command("runbroker", listen="tcp://0.0.0.0:0", directory=tmp_path)


@override_settings(ENODE={}, BASE_DIR=Path("base"))
def test_defaults_of_the_settings_are_those_of_the_broker() -> None:
    options = broker_options(conf())
    assert options == BrokerOptions(directory=Path("base/broker"), retention=Retention(max_age=3 * 86_400.0))
    assert (options.chosen_reserve, options.chosen_low_space) == (64 << 20, 256 << 20)


@override_settings(
    ENODE={
        "BROKER": {
            **{"LISTEN": "tcp://0.0.0.0:1", "DIRECTORY": "elsewhere", "SECRET": "s", "FLUSH": "every_write"},
            **{"TLS_CERTIFICATE": "c", "TLS_KEY": "k", "TLS_CLIENT_CA": "a", "RETENTION_AGE": None},
            **{"RETENTION_BYTES": 5, "RETENTION_MESSAGES": 6, "RETENTION_ALL": True, "DELETE_UNCONSUMED": True},
            **{"FLUSH_INTERVAL": 0.5, "CHUNK_SIZE": 7, "LOW_WATERMARK": 8, "HIGH_WATERMARK": 9, "MAX_UNFLUSHED": 10},
            **{"RING_BATCHES": 11, "RING_BYTES": 12, "RESERVE": 13, "LOW_SPACE": 14, "MAX_CONNECTIONS": 15},
            "SECRETS": {"web": {"SECRET": "w", "ROLES": ["produce"]}},
        }
    }
)
def test_settings_reach_the_broker() -> None:
    options = broker_options(conf(), directory=Path("here"))
    assert (options.directory, options.listen, options.flush) == (Path("here"), "tcp://0.0.0.0:1", "every_write")
    assert (options.flush_interval, options.chunk_size, options.max_unflushed) == (0.5, 7, 10)
    assert (options.ring_batches, options.ring_bytes) == (11, 12)
    assert (options.chosen_reserve, options.chosen_low_space) == (13, 14)
    assert (options.low_watermark, options.high_watermark, options.secret) == (8, 9, "s")
    assert options.secrets == (Secret(name="web", text="w", roles=frozenset({Role.PRODUCE})),)
    assert options.max_connections == 15
    assert options.tls == Tls(certificate="c", key="k", client_ca="a")
    assert options.retention == Retention(None, 5, 6, True, True)


@pytest.mark.parametrize(
    "broker",
    [
        {"LISTEN": "redis://localhost"},
        {"LISTEN": "tcp://0.0.0.0"},
        {"FLUSH": "sometimes"},
        {"FLUSH_INTERVAL": "soon"},
        {"FLUSH_INTERVAL": 0},
        {"CHUNK_SIZE": 0},
        {"CHUNK_SIZE": 1.5},
        {"TLS_CERTIFICATE": "c"},
        {"SECRET": 5},
        {"SECRET": ""},
        {"SECRETS": ["text"]},
        {"SECRETS": {"web": "text"}},
        {"SECRETS": {"web": {"SECRET": "text"}}},
        {"SECRETS": {"web": {"SECRET": "", "ROLES": ["produce"]}}},
        {"SECRETS": {"web": {"SECRET": ["produce"], "ROLES": "text"}}},
        {"SECRETS": {"web": {"SECRET": "text", "ROLES": []}}},
        {"SECRETS": {"web": {"SECRET": "text", "ROLES": ["fly"]}}},
        {"SECRETS": {"web": {"SECRET": "text", "ROLES": [["produce"]]}}},
        {"SECRETS": {name: {"SECRET": "text", "ROLES": ["produce"]} for name in ("web", "worker")}},
        {"SECRET": "text", "SECRETS": {"web": {"SECRET": "text", "ROLES": ["produce"]}}},
        {"MAX_CONNECTIONS": 0},
        {"RETENTION_AGE": "3 days"},
        {"RETENTION_BYTES": -1},
        {"MAX_UNFLUSHED": None},
        {"RING_BATCHES": -1},
        {"RING_BATCHES": None},
        {"RING_BYTES": "much"},
        {"RESERVE": -1},
        {"LOW_SPACE": "little"},
        {"DIRECTORY": None},
    ],
)
def test_what_no_broker_can_use_is_found_by_the_check(broker: dict[str, object]) -> None:
    with override_settings(ENODE={"BROKER": broker}):
        (message,) = checks.check_settings(None)
        assert message.id == "enode_django.E026"
        assert "'text'" not in message.msg
        assert message.hint is not None
        assert "ENODE['BROKER']" in message.hint
        with pytest.raises(ConfigurationError):
            broker_options(conf())


@override_settings(ENODE={"BROKER": {"LISTENS": 1}})
def test_unknown_key_is_refused_by_the_check() -> None:
    (message,) = checks.check_settings(None)
    assert message.id == "enode_django.E002"


@override_settings(ENODE={"QUEUE": {"LOCATION": "tcp://127.0.0.1:1"}})
def test_processors_without_a_broker_say_once_how_to_get_one() -> None:
    with pytest.raises(CommandError) as refused:
        call_command("runprocessors", "--verbosity", "0")
    said = str(refused.value)
    assert "manage.py runbroker or runprocessors --with-broker" in said
    assert said.count("ENODE['QUEUE']") == 1


def test_a_broker_that_the_queue_would_not_find_is_not_started(tmp_path: Path) -> None:
    enode = {"QUEUE": {"LOCATION": "tcp://127.0.0.1:1"}, "BROKER": {"DIRECTORY": str(tmp_path / "queue")}}
    with override_settings(ENODE=enode), pytest.raises(CommandError) as refused:
        call_command("runprocessors", "--with-broker", "--verbosity", "0")
    assert str(refused.value) == (
        "no broker answers at tcp://127.0.0.1:1 (ENODE['QUEUE']), and a broker started here would listen on "
        "tcp://127.0.0.1:7625 (ENODE['BROKER']); start the first one, or let both name the same port"
    )
    assert not (tmp_path / "queue").exists()


def test_a_broker_that_no_queue_uses_is_not_started(tmp_path: Path) -> None:
    queue = {"BACKEND": REDIS_STREAMS, "LOCATION": "redis://127.0.0.1:1/0"}
    enode = {"QUEUE": queue, "BROKER": {"DIRECTORY": str(tmp_path / "queue")}}
    with override_settings(ENODE=enode), pytest.raises(CommandError, match=r"RedisStreamsTransport.*leave out --with-"):
        call_command("runprocessors", "--with-broker", "--verbosity", "0")
    assert not (tmp_path / "queue").exists()
