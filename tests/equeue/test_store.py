from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from enode_django.equeue.broker.batches import NewBatch
from enode_django.equeue.broker.chunk import Chunk
from enode_django.equeue.broker.retention import Retention
from enode_django.equeue.broker.store import MessageStore
from enode_django.equeue.records import encode_records
from enode_django.exceptions import DirectoryInUse, MalformedRecords, QueueError, StorageFailed
from tests import warm
from tests.equeue.storing import (
    batch,
    bodies,
    chunks,
    delete_due,
    flip,
    messages,
    offset_at,
    opened,
    read_batches,
    send,
    time_at,
)
from tests.meta.tree import ROOT

PRODUCER = b"a producer of 16"


def test_offsets_are_contiguous_per_queue_and_messages_come_back(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    assert send(store, 0, b"a", b"b") == 0
    assert send(store, 1, b"x") == 0
    assert send(store, 0, b"c") == 2
    assert messages(store, "orders", 0) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert messages(store, "orders", 1) == [(0, b"x")]
    assert store.bounds("orders", 0) == (0, 3)
    store.abandon()


def test_a_send_answers_the_first_offset_of_each_queue(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    send(store, 3, b"before")
    assert store.append("orders", [batch(3, b"a", b"b"), batch(5, b"x"), batch(3, b"c")]) == {3: 1, 5: 0}
    assert bodies(messages(store, "orders", 3)) == [b"before", b"a", b"b", b"c"]
    assert store.append("orders", []) == {}
    store.abandon()


def test_a_queue_without_messages_is_empty(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    assert store.bounds("orders", 7) == (0, 0)
    assert read_batches(store, "orders", 7, 0, 10, 1000) == []
    assert offset_at(store, "orders", 7, 0) == 0
    store.abandon()


@pytest.mark.parametrize("ring_batches", [0, 100])
def test_reads_are_whole_batches_up_to_a_limit(tmp_path: Path, ring_batches: int) -> None:
    store, _ = opened(tmp_path, ring_batches=ring_batches, chunk_size=300)
    for number in range(10):
        send(store, 0, *[b"%d" % number * 10] * 3)
    size = len(encode_records([b"0" * 10] * 3))

    def firsts(offset: int, limit: int, max_bytes: int) -> list[int]:
        return [read.first_offset for read in read_batches(store, "orders", 0, offset, limit, max_bytes)]

    assert firsts(0, 1, 10_000) == [0]
    assert firsts(4, 2, 10_000) == [3]
    assert firsts(4, 3, 10_000) == [3, 6]
    assert firsts(0, 1000, size * 2) == [0, 3]
    assert firsts(0, 1000, size * 3 - 1) == [0, 3]
    assert firsts(5, 1000, 1) == [3]
    assert firsts(29, 1000, 10_000) == [27]
    assert firsts(30, 1000, 10_000) == []
    assert firsts(99, 1000, 10_000) == []
    store.abandon()


def test_a_body_that_is_not_what_it_says_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    damaged = bytearray(encode_records([b"a"]))
    damaged[-1] ^= 1
    for wrong in (NewBatch(0, 1, bytes(damaged)), NewBatch(0, 2, encode_records([b"a"])), NewBatch(0, 0, b"")):
        with pytest.raises(MalformedRecords):
            store.append("orders", [batch(1, b"fine"), wrong])
    with pytest.raises(QueueError, match="topic"):
        send(store, 0, b"a", topic="x" * 300)
    with pytest.raises(QueueError, match="65535"):
        store.append("orders", [batch(0, b"")] * 65_536)
    assert store.position == 0
    assert store.bounds("orders", 1) == (0, 0)
    store.abandon()


@pytest.mark.parametrize("topic", ["..", ".", "größe", "a%2Eb", "a.b", "*"])
def test_a_topic_of_any_name_has_its_own_files(tmp_path: Path, topic: str) -> None:
    store, _ = opened(tmp_path / "store")
    send(store, 0, b"other", topic="a-b")
    send(store, 0, b"mine", topic=topic)
    store.close(b"")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    store, _ = opened(tmp_path / "store")
    assert bodies(messages(store, topic, 0)) == [b"mine"]
    store.abandon()


def test_a_batch_that_came_within_the_millisecond_of_a_time_is_not_passed_over(tmp_path: Path) -> None:
    now = [1000.0]
    store, _ = opened(tmp_path, clock=lambda: now[0], monotonic=lambda: now[0])
    send(store, 0, b"before")
    now[0] = 1000.0128
    send(store, 0, b"after")
    assert offset_at(store, "orders", 0, 1000.0123) == 1
    store.abandon()


def test_what_is_larger_than_a_file_gets_one_of_its_own(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    send(store, 0, b"small")
    send(store, 0, b"x" * 10_000)
    send(store, 0, b"small again")
    assert [len(body) for body in bodies(messages(store, "orders", 0))] == [5, 10_000, 11]
    assert len(chunks(tmp_path)) == 3
    store.close(b"")
    assert sum(path.stat().st_size for path in chunks(tmp_path)) == store.position


def test_offset_at_finds_the_first_batch_of_a_time(tmp_path: Path) -> None:
    now = [1000.0]
    store, _ = opened(tmp_path, clock=lambda: now[0])
    for second in (1000, 1010, 1005, 1020):  # a clock that goes back does not take the batches' time back
        now[0] = second
        send(store, 0, b"a", b"b")
    assert [offset_at(store, "orders", 0, at) for at in (0, 1000, 1000.5, 1010, 1011, 1020, 1020.1)] == [
        0,
        0,
        2,
        2,
        6,
        6,
        8,
    ]
    assert [time_at(store, "orders", 0, at) for at in (0, 2, 4, 6)] == [1000.0, 1010.0, 1010.0, 1020.0]
    store.abandon()


def test_a_thread_may_flush_and_write_checkpoints_while_the_store_goes_on(tmp_path: Path) -> None:
    store, _ = opened(tmp_path, low_watermark=0)
    stopped = threading.Event()

    def flush_until_stopped() -> int:
        flushes = 0
        while not stopped.is_set():
            safe = store.flush()
            assert safe <= store.position
            flushes += 1
        return flushes

    with ThreadPoolExecutor(2) as threads:
        flushing = threads.submit(flush_until_stopped)
        for number in range(1000):
            send(store, number % 3, b"%d" % number * 50)
            store.drop_idle()
            if number % 100 == 0:
                store.flush()
                pending = store.begin_checkpoint([b""])
                writing = threads.submit(pending.write)
                send(store, 3, b"meanwhile")
                writing.result(timeout=240)
                store.finish_checkpoint(pending)
                delete_due(store, Retention(max_messages=300, delete_unconsumed=True), lambda topic, queue: None)
        stopped.set()
        assert flushing.result(timeout=240) > 0
    store.close(b"")
    store, _ = opened(tmp_path)
    for queue in range(3):
        first, end = store.bounds("orders", queue)
        expected = [(offset, b"%d" % (offset * 3 + queue) * 50) for offset in range(first, end)]
        assert messages(store, "orders", queue) == expected
        assert 0 < first < end
    assert not store.reader.damaged
    store.abandon()


def test_flush_says_what_is_safe(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    for number in range(50):
        send(store, 0, b"%d" % number * 100)
    assert store.flushed == 0
    assert store.unflushed_bytes == store.position
    assert store.flush() == store.position == store.flushed
    assert store.unflushed_bytes == 0
    store.abandon()


def test_after_a_clean_stop_nothing_is_read_again(tmp_path: Path) -> None:
    store, heard = opened(tmp_path)
    assert heard.order == []
    for number in range(100):
        send(store, number % 3, b"%d" % number)
        store.append_control(b"control %d" % number)
    store.close(b"what the state was")
    store, heard = opened(tmp_path)
    assert heard.states == [b"what the state was"]
    assert heard.order == ["restore"]
    assert heard.opened == (0, 0, False, False)
    assert bodies(messages(store, "orders", 1)) == [b"%d" % number for number in range(1, 100, 3)]
    assert send(store, 1, b"next") == 33
    store.abandon()


def test_after_a_crash_only_what_follows_the_checkpoint_is_read_again(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    for number in range(200):
        send(store, 0, b"%d" % number)
    store.append_control(b"old")
    store.checkpoint(b"state")
    before = store.position
    store.append_control(b"new")
    store.append("orders", [batch(0, b"a"), batch(1, b"b")], producer=PRODUCER, sequence=7)
    store.append_control(b"newer")
    written = store.position - before
    assert store.since_checkpoint == written
    store.abandon()
    store, heard = opened(tmp_path)
    assert heard.order == ["restore", "replay", "sent", "replay"]
    assert (heard.states, heard.controls) == ([b"state"], [b"new", b"newer"])
    assert heard.sends[0][:4] == ("orders", PRODUCER, 7, {0: 200, 1: 0})
    assert heard.opened is not None
    assert (heard.opened.scanned_batches, heard.opened.scanned_bytes) == (4, written)
    assert store.bounds("orders", 0) == (0, 201)
    assert store.flushed == store.position
    store.abandon()


def test_start_up_reads_in_proportion_to_what_was_written_since_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads neither the messages before the checkpoint nor the reserved space after the last message."""
    store, _ = opened(tmp_path, chunk_size=32 << 20)
    for _ in range(100):
        send(store, 0, bytes(100_000))
    store.checkpoint(b"")
    for _ in range(3):
        send(store, 0, bytes(100_000))
    read_batches(store, "orders", 0, 102, 1, 1)
    store.abandon()
    read_bytes = []
    read = Chunk.read

    def counted(chunk: Chunk, position: int, length: int) -> bytes:
        data = read(chunk, position, length)
        read_bytes.append(len(data))
        return data

    monkeypatch.setattr(Chunk, "read", counted)
    store, heard = opened(tmp_path, chunk_size=32 << 20)
    assert heard.opened is not None
    assert 300_000 < heard.opened.scanned_bytes < 301_000
    assert 300_000 < sum(read_bytes) < 3_000_000
    store.abandon()


def test_opening_again_and_again_after_crashes_changes_nothing(tmp_path: Path) -> None:
    expected: list[bytes] = []
    for number in range(5):
        store, heard = opened(tmp_path)
        assert heard.controls == [b"%d" % n for n in range(3 if number > 2 else 0, number)]
        assert bodies(messages(store, "orders", 0)) == expected
        store.append_control(b"%d" % number)
        expected.append(b"%d" % number)
        send(store, 0, expected[-1])
        if number == 2:
            store.append_control(b"gone into the state")
            store.checkpoint(b"")
        store.abandon()


def test_a_checkpoint_is_written_while_the_store_goes_on(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    send(store, 0, b"before")
    pending = store.begin_checkpoint([b"state"])
    send(store, 0, b"after")
    pending.write()
    send(store, 1, b"after that")
    store.finish_checkpoint(pending)
    send(store, 0, b"at last")
    store.abandon()
    store, heard = opened(tmp_path)
    assert heard.opened is not None
    assert heard.opened.scanned_batches == 3
    assert bodies(messages(store, "orders", 0)) == [b"before", b"after", b"at last"]
    assert bodies(messages(store, "orders", 1)) == [b"after that"]
    store.abandon()


def test_a_checkpoint_that_was_not_finished_leaves_the_one_before(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    send(store, 0, b"a")
    store.checkpoint(b"first")
    send(store, 0, b"b")
    for write in store.begin_checkpoint([b"second"]).writes:  # the crash comes before the checkpoint file itself
        write.write()
    store.abandon()
    store, heard = opened(tmp_path)
    assert heard.states == [b"first"]
    assert bodies(messages(store, "orders", 0)) == [b"a", b"b"]
    send(store, 0, b"c")
    store.close(b"third")
    store, heard = opened(tmp_path)
    assert bodies(messages(store, "orders", 0)) == [b"a", b"b", b"c"]
    store.abandon()


def test_without_a_usable_checkpoint_everything_is_read_from_the_messages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = opened(tmp_path)
    for number in range(30):
        send(store, number % 2, b"%d" % number)
        store.append_control(b"control %d" % number)
    store.close(b"state")
    flip(tmp_path / "checkpoint", 20)
    store, heard = opened(tmp_path)
    assert "cannot be used: its CRC is wrong" in caplog.text
    assert heard.states == []
    assert heard.controls == [b"control %d" % number for number in range(30)]
    assert heard.opened is not None
    assert heard.opened.rebuilt
    assert bodies(messages(store, "orders", 1)) == [b"%d" % number for number in range(1, 30, 2)]
    store.abandon()


@pytest.mark.parametrize("damage", ["missing", "short", "flipped"])
def test_a_lost_index_is_read_from_the_messages(tmp_path: Path, damage: str) -> None:
    store, _ = opened(tmp_path)
    for number in range(60):
        send(store, number % 3, b"%d" % number)
    store.close(b"")
    index = next(tmp_path.glob("queues/orders/1/*.index"))
    content = index.read_bytes()
    if damage == "missing":
        index.unlink()
    elif damage == "short":
        os.truncate(index, 50)
    else:
        flip(index, 70)
    store, _ = opened(tmp_path)
    assert bodies(messages(store, "orders", 1)) == [b"%d" % number for number in range(1, 60, 3)]
    store.close(b"")
    assert index.read_bytes() == content
    store, _ = opened(tmp_path)
    assert send(store, 1, b"next") == 20
    store.close(b"")
    store, _ = opened(tmp_path)
    assert bodies(messages(store, "orders", 1))[-2:] == [b"58", b"next"]
    assert not store.reader.damaged
    store.abandon()


def test_a_lost_index_whose_newest_message_begins_a_file_is_read_from_the_messages(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    count = 0
    while len(chunks(tmp_path)) < 2:
        send(store, 0, b"%d" % count)
        count += 1
    store.close(b"")
    next(tmp_path.glob("queues/orders/0/*.index")).unlink()
    store, _ = opened(tmp_path)
    assert bodies(messages(store, "orders", 0)) == [b"%d" % number for number in range(count)]
    store.abandon()


def test_long_queues_have_several_index_files(tmp_path: Path) -> None:
    store, _ = opened(tmp_path, chunk_size=1 << 20)
    for first in range(0, 20_000, 100):
        store.append("orders", [batch(0, b"%d" % number) for number in range(first, first + 100)])
        if first == 10_000:
            store.checkpoint(b"")
    store.close(b"")
    assert len(list(tmp_path.glob("queues/orders/0/*.index"))) == 3
    store, _ = opened(tmp_path, chunk_size=1 << 20)
    for offset in (0, 8191, 8192, 10_000, 16_383, 16_384, 19_999):
        assert messages(store, "orders", 0, at=offset)[:1] == [(offset, b"%d" % offset)]
    assert len(messages(store, "orders", 0, at=100, ask=5000)) == 19_900
    store.abandon()


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(name) for name in os.listdir("/proc/self/fd")) + 1, limits[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)


def test_a_limit_of_open_files_is_named_where_it_is_met(tmp_path: Path) -> None:
    store, _ = opened(tmp_path, chunk_size=10_000)
    send(store, 0, b"x" * 9_000)
    with no_free_descriptor(), pytest.raises(StorageFailed, match=r"ulimit -n.*LimitNOFILE"):
        send(store, 0, b"x" * 9_000)
    store.abandon()


def test_a_broker_holds_its_directory_whatever_its_host_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "h\udcff")
    store, _ = opened(tmp_path)
    assert (tmp_path / "lock").read_bytes().endswith(rb" on h\xff")
    store.abandon()


def test_a_second_broker_is_told_who_holds_the_directory(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    code = (
        "import sys; from pathlib import Path\n"
        "from enode_django.equeue.broker.store import MessageStore\n"
        "MessageStore(Path(sys.argv[1]))"
    )
    second = warm.run(["-c", code, tmp_path], cwd=ROOT)
    assert second.returncode
    assert "DirectoryInUse" in second.stderr
    assert f"process {os.getpid()} on " in second.stderr
    with pytest.raises(DirectoryInUse):
        MessageStore(tmp_path)
    store.close(b"")
    opened(tmp_path)[0].abandon()
