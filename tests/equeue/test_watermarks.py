from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from enode_django.equeue.broker.held_memory import IDLE_SECONDS, HeldMemory
from enode_django.equeue.broker.reading import ReadCounts
from tests.equeue.storing import empty_memory, messages, need_kernel_that_tells, opened, send

BODY = b"x" * 900
CHUNK = 4096


def test_limits_follow_the_machine_unless_told() -> None:
    memory = HeldMemory()
    total = psutil.virtual_memory().total
    assert memory.low == pytest.approx(0.40 * total, rel=0.01)
    assert memory.high == pytest.approx(0.75 * total, rel=0.01)
    assert (HeldMemory(1, 2).low, HeldMemory(1, 2).high) == (1, 2)


def test_above_the_high_watermark_nothing_more_is_held_and_reading_goes_on(tmp_path: Path) -> None:
    store, _ = opened(tmp_path, low_watermark=0, high_watermark=3 * CHUNK, preload=0)
    for number in range(40):
        send(store, 0, b"%d" % number + BODY)
    assert [int(body[:-900]) for _, body in messages(store, "orders", 0)] == list(range(40))
    assert 2 * CHUNK <= store.held_bytes <= 3 * CHUNK
    store.abandon()
    assert store.held_bytes == 0


def test_above_the_low_watermark_what_nobody_reads_is_dropped(tmp_path: Path) -> None:
    now = [100.0]
    store, _ = opened(tmp_path, low_watermark=2 * CHUNK, high_watermark=1 << 30, monotonic=lambda: now[0])
    for number in range(40):
        send(store, 0, b"%d" % number + BODY)
    store.flush()
    messages(store, "orders", 0)
    everything = store.held_bytes
    assert everything > 8 * CHUNK
    store.drop_idle()
    assert store.held_bytes == everything
    now[0] += IDLE_SECONDS
    messages(store, "orders", 0, at=30)
    store.drop_idle()
    read_since = store.held_bytes
    assert 2 * CHUNK < read_since < everything
    now[0] += IDLE_SECONDS
    store.drop_idle()
    assert store.held_bytes <= 2 * CHUNK
    assert len(messages(store, "orders", 0)) == 40
    store.abandon()


def test_files_with_unsafe_messages_stay_open_for_the_flush(tmp_path: Path) -> None:
    now = [100.0]
    store, _ = opened(tmp_path, low_watermark=0, high_watermark=1 << 30, monotonic=lambda: now[0])
    for number in range(20):
        send(store, 0, b"%d" % number + BODY)
    messages(store, "orders", 0)
    held = store.held_bytes
    now[0] += IDLE_SECONDS
    store.drop_idle()
    assert store.held_bytes == held
    store.flush()
    store.drop_idle()
    assert store.held_bytes == 0
    store.abandon()


def test_the_newest_files_are_held_from_the_start(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    for number in range(40):
        send(store, 0, b"%d" % number + BODY)
    store.close(b"")
    for preload, least in ((0, 0), (1, 1), (3, 2 * CHUNK)):
        store, _ = opened(tmp_path, preload=preload)
        assert least <= store.held_bytes <= preload * CHUNK
        store.abandon()


def test_a_ring_answers_without_a_file(tmp_path: Path) -> None:
    store, _ = opened(tmp_path, ring_batches=100, preload=0)
    for number in range(20):
        send(store, 0, b"%d" % number + BODY)
    for chunk in tmp_path.glob("messages/*.chunk"):
        chunk.unlink()
    assert len(messages(store, "orders", 0)) == 20
    assert store.held_bytes == 0
    assert not store.reader.damaged
    store.abandon()


def test_reads_are_counted_by_where_they_are_answered_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_kernel_that_tells(tmp_path)
    store, _ = opened(tmp_path, ring_batches=3, low_watermark=0, high_watermark=2 * CHUNK, preload=0)
    for number in range(40):
        send(store, 0, b"%d" % number + BODY)
    assert len(messages(store, "orders", 0, at=37, ask=1)) == 3
    assert store.reader.counts == ReadCounts(ring=3)
    assert len(messages(store, "orders", 0, ask=1)) == 40
    assert (store.reader.counts.ring, store.reader.counts.memory + store.reader.counts.file) == (6, 37)
    assert store.reader.counts.memory == 37, "what was just written is in the kernel's memory"
    empty_memory(monkeypatch)
    assert len(messages(store, "orders", 0, ask=1)) == 40
    assert store.reader.counts.file == 37
    store.abandon()
