"""Limits of the broker's resources for one connection."""

from __future__ import annotations

import math
import os
import resource
import struct
import time
import uuid
from contextlib import closing
from pathlib import Path

import msgpack
import pytest

from enode_django.equeue import known_sends
from enode_django.equeue.broker import inboxes, pulling, requests, sessions
from enode_django.equeue.broker.inboxes import Inboxes
from enode_django.equeue.broker.options import BrokerOptions
from enode_django.equeue.broker.server import most_connections
from enode_django.equeue.broker.sessions import MOST_UNDER_WAY
from enode_django.equeue.frames import MAX_ALL_ITEMS, MAX_FRAME, MAX_ITEMS, MAX_KEY, encode_frame
from enode_django.equeue.records import MOST_RECORDS
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.wire import MAX_HANDSHAKE_FRAME
from enode_django.exceptions import QueueFull, TransportUnavailable
from tests.docs.pages import DOCS, tables
from tests.equeue.brokers import RunningBroker
from tests.equeue.consuming import eventually
from tests.equeue.test_broker_bad_input import Raw


def frame(*message: object) -> bytes:
    return b"".join(encode_frame(message))


def test_requests_that_wait_are_limited_and_the_rest_is_begun_when_they_end(
    broker: RunningBroker, transport: BrokerTransport
) -> None:
    topic = uuid.uuid4().hex
    transport.create_topic(topic, 1)
    raw = Raw(broker.location)
    waiting = MOST_UNDER_WAY + 10
    raw.send(b"".join(frame(number, "pull", [topic, {0: 0}, 1, 600]) for number in range(2, waiting + 2)))
    eventually(lambda: transport.status()["waiting_pulls"] == MOST_UNDER_WAY)
    assert transport.status()["waiting_pulls"] == MOST_UNDER_WAY
    transport.send(topic, {0: [b"x"]})
    assert {raw.answer()[0] for _ in range(waiting)} == set(range(2, waiting + 2))
    assert transport.status()["waiting_pulls"] == 0
    raw.close()


def memory(pid: int) -> int:
    """Return the bytes of memory that a process has now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("is_there", [True, False], ids=["read from files", "sent later"])
def test_pulls_are_not_answered_while_the_client_reads_no_answers(tmp_path: Path, is_there: bool) -> None:
    large = 4_000_000
    with RunningBroker(tmp_path / "data", ring_batches=0) as broker, closing(broker.transport()) as transport:
        transport.create_topic("orders", 1)
        if is_there:
            transport.send("orders", {0: [os.urandom(large)]})
        before = memory(broker.pid)
        raw = Raw(broker.location)
        raw.send(b"".join(frame(number, "pull", ["orders", {0: 0}, 1, 600]) for number in range(2, MOST_UNDER_WAY + 2)))
        eventually(lambda: transport.status()["waiting_pulls"] >= MOST_UNDER_WAY - 3)
        if not is_there:
            transport.send("orders", {0: [os.urandom(large)]})
        for _ in range(20):
            transport.status()
            time.sleep(0.05)
        assert memory(broker.pid) - before < MOST_UNDER_WAY // 2 * large
        answers = [raw.answer() for _ in range(MOST_UNDER_WAY)]
        assert {number for number, *_ in answers} == set(range(2, MOST_UNDER_WAY + 2))
        assert all(len(batches) == 1 for _, _, ((_, batches, _),) in answers)
        raw.close()


def test_a_frame_above_the_limit_is_refused_before_it_comes(broker: RunningBroker) -> None:
    raw = Raw(broker.location)
    raw.send(struct.pack(">I", MAX_FRAME + 1))
    assert raw.answer()[1:3] == [False, "MalformedFrame"]
    assert raw.answer() is None


def test_a_frame_of_a_handshake_above_the_limit_is_refused(broker: RunningBroker) -> None:
    raw = Raw(broker.location, greet=False)
    raw.send(struct.pack(">I", MAX_HANDSHAKE_FRAME + 1))
    assert raw.answer()[1:3] == [False, "MalformedFrame"]
    assert raw.answer() is None


@pytest.mark.parametrize(("items", "is_taken"), [(MAX_ITEMS, True), (MAX_ITEMS + 1, False)])
def test_lists_have_a_limit(broker: RunningBroker, items: int, is_taken: bool) -> None:
    raw = Raw(broker.location)
    payload = msgpack.packb([2, "topics", [None] * items])
    raw.send(struct.pack(">I", len(payload)) + payload)
    assert raw.answer()[1] is is_taken
    raw.close()


def test_an_answer_to_a_pull_has_a_limit(transport: BrokerTransport) -> None:
    topic = uuid.uuid4().hex
    transport.create_topic(topic, 1)
    sent = 2 * pulling.GIVEN_BYTES // 1_000_000
    transport.send(topic, {0: [os.urandom(1_000_000)] * sent})
    (batch,) = transport.pull(topic, {0: 0}, limit=sent, wait=0)
    assert sum(map(len, batch.bodies)) <= pulling.GIVEN_BYTES


def test_connections_above_the_limit_are_refused_until_one_ends(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", max_connections=2) as broker:
        first, second = Raw(broker.location), Raw(broker.location)
        third = Raw(broker.location, greet=False)
        _, good, error, text, _ = third.answer()
        assert (good, error) == (False, "TransportUnavailable")
        assert "2 connections" in text
        assert third.answer() is None
        with closing(broker.transport()) as transport:
            with pytest.raises(TransportUnavailable):
                transport.topics()
            first.close()
            eventually(lambda: answers(transport))
        second.close()


def test_connections_that_say_nothing_make_room_for_those_that_do(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", max_connections=8, handshake_timeout=3_600.0) as broker:
        silent = [Raw(broker.location, greet=False) for _ in range(20)]
        with closing(broker.transport()) as transport:
            for _ in range(10):
                assert transport.topics() == []
        greeted = [Raw(broker.location) for _ in range(8)]
        _, good, error, text, _ = silent[0].answer()
        assert (good, error) == (False, "TransportUnavailable")
        assert "no hello came" in text
        for raw in (*silent, *greeted):
            raw.close()


@pytest.mark.parametrize(("files", "most"), [(1_000_000, 10_000), (4_096, 3_840), (1_024, 768), (64, 32)])
def test_connections_leave_open_files_for_messages(files: int, most: int, caplog: pytest.LogCaptureFixture) -> None:
    assert most_connections(10_000, files) == most
    assert (f"allows {most} connections, not 10000" in caplog.text) == (most < 10_000)


def test_without_free_descriptors_the_broker_says_so_shortly_and_goes_on_when_there_are_some(tmp_path: Path) -> None:
    refused = "out of system resource"
    with RunningBroker(tmp_path / "data") as broker, closing(broker.transport()) as earlier:
        assert earlier.topics() == []
        limits = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (4, limits[1]))
        raw = Raw(broker.location, greet=False)
        eventually(lambda: refused in broker.log.read_text())
        assert earlier.topics() == []  # answered when the broker has tried to accept
        assert broker.log.read_text().count(refused) < 100
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, limits)
        with closing(broker.transport()) as transport:
            assert transport.topics() == []
        raw.close()


def answers(transport: BrokerTransport) -> bool:
    try:
        return transport.topics() == []
    except TransportUnavailable:
        return False


def test_inboxes_above_the_limit_are_refused_until_one_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inboxes, "MOST_INBOXES", 2)
    found = Inboxes(0)
    for address in ("a", "b", "a"):
        found.open(address, 0.0)
    with pytest.raises(QueueFull, match="2 inboxes"):
        found.open("c", 0.0)
    found.close("a")
    found.open("c", 0.0)
    assert len(found._inboxes) == 2


def test_the_page_names_the_limits() -> None:
    rows = {row[0]: row[1] for table in tables(DOCS / "reference" / "broker-protocol.md") for row in table}
    options = BrokerOptions(directory=Path("x"))
    limits = {
        "a frame": MAX_FRAME,
        "a frame of the handshake": MAX_HANDSHAKE_FRAME,
        "a request other than `send`, `commit`, `reply`": requests.MAX_PLAIN_FRAME,
        "items of a list or dictionary": MAX_ITEMS,
        "items of all lists and dictionaries in a frame": MAX_ALL_ITEMS,
        "a number that is a key of a dictionary": MAX_KEY,
        "a text": requests.MAX_TEXT,
        "records of a batch": MOST_RECORDS,
        "characters of a name": requests.MOST_TEXT,
        "queues of a topic": requests.MOST_QUEUES,
        "concurrent requests": sessions.MOST_UNDER_WAY,
        "an answer to a pull": pulling.GIVEN_BYTES,
        "seconds for the handshake": options.handshake_timeout,
        "seconds without progress within a frame": options.frame_timeout,
        "unflushed bytes": options.max_unflushed,
        "connections": options.max_connections,
        "producers whose sends are known": known_sends.PRODUCERS_KEPT,
        "inboxes": inboxes.MOST_INBOXES,
        "answers in an inbox": inboxes.MOST_ANSWERS,
        "bytes in an inbox": inboxes.MOST_BYTES,
        "seconds without a receive from an inbox": inboxes.FORGOTTEN_AFTER,
        "seconds after the start in which answers to an unknown inbox are kept": inboxes.RETURNING,
    }
    assert {name: number_of(rows[name]) for name in limits} == limits


def number_of(cell: str) -> float:
    number, unit = cell.split()[0].replace(",", ""), cell.split()[1:]
    return float(number) * math.prod({"KiB": 1 << 10, "MiB": 1 << 20}.get(each, 1) for each in unit)
