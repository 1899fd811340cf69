"""Backups of a broker's directory, made while the broker works, and brokers that start with one."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from enode_django.equeue.administration import back_up as ask_for_backup
from enode_django.equeue.broker.backup import back_up
from enode_django.equeue.broker.check import check_directory
from enode_django.equeue.broker.index import SEGMENT_ENTRIES
from enode_django.equeue.broker.retention import Retention
from enode_django.equeue.messages import Commit, Start
from enode_django.equeue.records import Buffer
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.exceptions import QueueError
from tests.equeue.brokers import RunningBroker
from tests.equeue.consuming import Handled, consuming, eventually, texts
from tests.equeue.storing import batch, bodies, chunks, delete_due, flip, messages, opened, send
from tests.equeue.test_broadcasting import ALL

SMALL = {"chunk_size": 4096}
PAGE = 4096
STATE = b"\x97\x04\x01\xc0\xc0\xa0\xc3\x92\xa0\x80"
MOST_LEFT = 2_000
"""The sender waits while the broker has more messages than this that it has not deleted."""


@pytest.fixture
def small_broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """A broker with small files, so that a backup links most of them."""
    with RunningBroker(tmp_path / "data", **SMALL) as broker:
        yield broker


def all_of(transport: BrokerTransport, topic: str, queue: int) -> list[bytes]:
    found: list[bytes] = []
    while batches := transport.pull(topic, {queue: len(found)}, limit=1_000, wait=0):
        found += batches[0].bodies
    return found


def test_a_restored_broker_has_what_was_there_at_the_backup_and_a_timeline_and_run_of_its_own(
    small_broker: RunningBroker, tmp_path: Path
) -> None:
    with closing(small_broker.transport()) as live:
        live.create_topic("orders", 2)
        sent = [b"%d" % number * 500 for number in range(20)]
        for body in sent:
            live.send("orders", {0: [body]})
        epoch = live.acquire("billing", "orders", 0, "one", 30.0, start=Start.FIRST).epoch
        live.commit("billing", "orders", {0: Commit(epoch, 5)})
        made = live.back_up("monday")
        live.send("orders", {0: texts("later"), 1: texts("later")})
        live.commit("billing", "orders", {0: Commit(epoch, 21)})
        timelines, run = live.timelines("orders"), live.status()["run"]
        assert Path(made["path"]) == small_broker.directory / "backups" / "monday"
        assert made["linked_bytes"] > made["copied_bytes"] > 0
        assert check_directory(Path(made["path"])).is_sound
        shutil.copytree(made["path"], tmp_path / "restored")
        with (
            RunningBroker(tmp_path / "restored", flush="every_write", **SMALL) as broker,
            closing(broker.transport()) as restored,
        ):
            assert all_of(restored, "orders", 0) == sent
            assert restored.end_offsets("orders") == {0: 20, 1: 0}
            assert restored.committed("billing", "orders") == {0: 5, 1: 0}
            assert restored.commit("billing", "orders", {0: Commit(epoch, 9)}) == {0}, "no lease of before holds"
            begun = restored.timelines("orders")
            assert set(begun.values()).isdisjoint(timelines.values())
            assert [name.rpartition(":")[2] for name in begun.values()] == ["20", "0"]
            first_run = restored.status()["run"]
            assert first_run > run
            assert restored.send("orders", {0: texts("new")}) == {0: 20}
            assert broker.stop() == 0
            broker.start()
            assert restored.timelines("orders") == begun
            assert restored.status()["run"] == first_run + 1
        assert all_of(live, "orders", 0) == [*sent, b"later"], "the broker that was copied goes on"


def test_a_consumer_that_broadcasts_passes_over_nothing_that_a_restored_broker_gets(
    own_broker: RunningBroker, tmp_path: Path
) -> None:
    with closing(own_broker.transport()) as transport:
        transport.create_topic("orders", 1)
        transport.send("orders", {0: texts("a")})
        transport.back_up("monday")
        handled = Handled()
        transport.send("orders", {0: texts("b", "c", "d")})
        with consuming(transport, handled, directory=tmp_path / "offsets", **ALL):
            eventually(lambda: handled.bodies == ["a", "b", "c", "d"])
        let_all_be_settled(tmp_path / "offsets" / "billing@orders.json")
        assert own_broker.stop() == 0
        shutil.move(own_broker.directory / "backups" / "monday", tmp_path / "restored")
        shutil.rmtree(own_broker.directory)
        (tmp_path / "restored").rename(own_broker.directory)
        own_broker.start()
        transport.send("orders", {0: texts("x", "y", "z", "!")})
        with consuming(transport, handled, directory=tmp_path / "offsets", **ALL):
            eventually(lambda: handled.bodies == ["a", "b", "c", "d", "x", "y", "z", "!"])


def let_all_be_settled(file: Path) -> None:
    """Mark all offsets in the file as settled, as if the consumer had reached them minutes ago."""
    kept = json.loads(file.read_text())
    assert kept["offsets"] == {"0": 4}
    file.write_text(json.dumps({**kept, "settled": kept["offsets"]}))


def test_what_the_broker_deletes_stays_in_the_backup(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    for number in range(20):
        send(store, 0, b"%d" % number * 900)
    store.checkpoint(STATE)
    before = messages(store, "orders", 0)
    made = back_up(tmp_path, "monday")
    for _ in range(3):
        send(store, 0, b"later")
        store.checkpoint(STATE)
    delete_due(store, Retention(max_messages=0, delete_unconsumed=True), lambda topic, queue: None)
    assert store.bounds("orders", 0)[0] > 10
    copy, heard = opened(made.path)
    assert heard.opened is not None
    assert heard.opened.scanned_bytes == 0
    assert messages(copy, "orders", 0) == before
    send(copy, 0, b"of the copy")
    copy.checkpoint(b"")
    assert messages(store, "orders", 0)[-1] == (22, b"later")
    copy.abandon()
    store.abandon()


def test_backups_under_load_are_whole_while_the_broker_deletes_what_they_take(tmp_path: Path) -> None:
    retention = {"retention": {"max_bytes": 20_000, "delete_unconsumed": True}, "retention_interval": 0.01}
    with (
        RunningBroker(tmp_path / "data", checkpoint_interval=0.02, **SMALL, **retention) as broker,
        closing(broker.transport()) as transport,
    ):
        transport.create_topic("orders", 1)
        stopping = threading.Event()
        sender = threading.Thread(target=send_numbers, args=(broker, stopping))
        sender.start()
        try:
            made = []
            for number in range(6):
                floor = transport.end_offsets("orders")[0]
                eventually(lambda: transport.end_offsets("orders")[0] > floor + 50)  # noqa: B023
                sent = transport.end_offsets("orders")[0]
                made.append((sent, Path(transport.back_up(str(number))["path"])))
        finally:
            stopping.set()
            sender.join()
        assert transport.queues("orders")[0].first > 0, "messages were deleted meanwhile"
    for sent, path in made:
        assert check_directory(path).findings == []
        store, _ = opened(path)
        first, end = store.bounds("orders", 0)
        assert end >= sent
        numbers = [(offset, b"%d" % offset * 100) for offset in range(first, end)]
        assert messages(store, "orders", 0, at=first) == numbers
        store.abandon()


def send_numbers(broker: RunningBroker, stopping: threading.Event) -> None:
    """Send numbers until stopped. Wait now and then until the broker has deleted most of them: it keeps a file open for
    every few messages."""
    with closing(broker.transport()) as transport:
        number = 0
        while not stopping.is_set():
            transport.send("orders", {0: [b"%d" % number * 100]})
            number += 1
            if number % 100 == 0:
                eventually(lambda: stopping.is_set() or left_in(transport) < MOST_LEFT)


def left_in(transport: BrokerTransport) -> int:
    state = transport.queues("orders")[0]
    return state.end - state.first


def test_while_a_checkpoint_takes_the_place_of_another_the_one_before_is_taken(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    send(store, 0, b"a")
    store.checkpoint(STATE)
    os.replace(tmp_path / "checkpoint", tmp_path / "checkpoint.before")
    assert back_up(tmp_path, "monday", at_least=store.position).position == store.position
    with pytest.raises(QueueError, match="is not a checkpoint"):
        back_up(tmp_path, "tuesday", at_least=store.position + 1)
    store.abandon()


def test_files_that_are_full_are_linked_and_others_copied(tmp_path: Path) -> None:
    store, _ = opened(tmp_path, chunk_size=1 << 20)
    parts = [batch(0, b"x")] * (SEGMENT_ENTRIES // 4)
    for _ in range(5):
        store.append("orders", parts)
    store.checkpoint(STATE)
    made = back_up(tmp_path, "monday")
    full, growing = sorted(made.path.glob("queues/orders/0/*.index"))
    assert (full.stat().st_nlink, growing.stat().st_nlink) == (2, 1)
    assert [path.stat().st_nlink for path in chunks(made.path)] == [2] * (len(chunks(tmp_path)) - 1) + [1]
    assert made.copied_bytes + made.linked_bytes >= made.position == store.position
    store.abandon()


def test_a_start_that_writes_messages_anew_leaves_those_of_a_backup_as_they_are(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    send(store, 0, b"0" * 500)
    store.checkpoint(STATE)
    for number in range(1, 40):
        send(store, 0, b"%d" % number * 500)
    store.checkpoint(STATE)
    made = back_up(tmp_path, "monday")
    store.abandon()
    flip(tmp_path / "checkpoint", 20)
    store, _ = opened(tmp_path)  # all behind the checkpoint before may be in the kernel's memory only
    store.abandon()
    copy, _ = opened(made.path)
    assert len(bodies(messages(copy, "orders", 0))) == 40
    copy.close(b"copy")


def write_on_a_full_disk(
    descriptor: int, data: Buffer, offset: int, write: Callable[[int, Buffer, int], int] = os.pwrite
) -> int:
    if offset + len(data) > os.fstat(descriptor).st_size:
        raise OSError(errno.ENOSPC, "No space left on device")
    return write(descriptor, data, offset)


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize(("lost_page", "kept"), [(0, 0), (1, 6)])
def test_a_start_that_cuts_the_log_leaves_those_of_a_backup_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost_page: int, kept: int, is_full: bool
) -> None:
    options = {"chunk_size": 4 * PAGE}
    sent = [b"%d" % number * 250 for number in range(10, 90)]
    store, _ = opened(tmp_path, **options)
    store.checkpoint(STATE)
    for body in sent:
        send(store, 0, body)
    store.checkpoint(STATE)
    made = back_up(tmp_path, "monday")
    store.abandon()
    with open(chunks(tmp_path)[0], "r+b") as file:  # a crash of the machine, in the backup as well: it is the same file
        file.seek(lost_page * PAGE)
        file.write(bytes(PAGE))
    flip(tmp_path / "checkpoint", 20)
    deleted = {path: path.read_bytes() for path in chunks(tmp_path)[1:]}
    for _ in range(2):  # nothing that was cut comes back
        with monkeypatch.context() as context:
            if is_full:
                context.setattr(os, "pwrite", write_on_a_full_disk)
            store, _ = opened(tmp_path, **options)
        assert bodies(messages(store, "orders", 0)) == sent[:kept]
        store.abandon()
        for path, content in deleted.items():  # as if the machine had crashed before the file was deleted
            path.write_bytes(content)
    store, _ = opened(tmp_path, **options)
    for body in sent:
        send(store, 0, body)
    store.close(STATE)
    store, _ = opened(tmp_path, **options)
    assert bodies(messages(store, "orders", 0)) == sent[:kept] + sent
    store.abandon()
    copy, _ = opened(made.path, **options)
    assert bodies(messages(copy, "orders", 0))[-60:] == sent[-60:]
    copy.close(b"copy")


def test_a_backup_that_was_cut_short_has_no_name_and_is_no_hindrance(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    with pytest.raises(QueueError, match="is not a checkpoint"):
        back_up(tmp_path, "monday")
    assert os.listdir(tmp_path / "backups") == []
    store.checkpoint(STATE)
    (tmp_path / "backups" / "monday.new" / "messages").mkdir(parents=True)
    back_up(tmp_path, "monday")
    assert os.listdir(tmp_path / "backups") == ["monday"]
    with pytest.raises(QueueError, match="already; choose another name"):
        back_up(tmp_path, "monday")
    store.abandon()


@pytest.mark.parametrize("name", ["", "..", "a/b", "/a", ".hidden", "a.new", "x" * 101])
def test_a_backup_lies_nowhere_but_among_the_backups(transport: BrokerTransport, name: str) -> None:
    with pytest.raises(QueueError, match="cannot name a backup"):
        transport.back_up(name)


@pytest.mark.django_db
def test_the_command_asks_the_broker_of_the_settings(own_broker: RunningBroker) -> None:
    out = StringIO()
    with override_settings(ENODE={"QUEUE": {"LOCATION": own_broker.location}}):
        call_command("enode", "queue", "backup", "monday", "--json", stdout=out)
        made = json.loads(out.getvalue())
        assert Path(made["path"]) == own_broker.directory / "backups" / "monday"
        with pytest.raises(CommandError, match="already; choose another name"):
            call_command("enode", "queue", "backup", "monday")


def test_without_a_broker_there_is_nothing_to_back_up(memory: MemoryTransport) -> None:
    with pytest.raises(QueueError, match="no broker"):
        ask_for_backup(memory, "monday")
