"""The reserve on the broker's disk, and the measures when room is short."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enode_django.equeue.broker.measuring import Measuring
from enode_django.equeue.broker.retention import Retention
from enode_django.equeue.broker.space import DiskSpace, default_reserve, urgent
from enode_django.equeue.broker.state import BrokerState
from enode_django.equeue.broker.store import MessageStore
from enode_django.exceptions import QueueFull
from tests.equeue.storing import bodies, make_room, messages, opened, send

RESERVE = 16_384


class Free:
    """The free bytes that the file system reports."""

    def __init__(self) -> None:
        self.bytes = 1 << 40


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Iterator[Free]:
    free = Free()
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free.bytes, f_frsize=1))
    return free


def test_a_reserve_is_a_file_that_goes_when_it_is_used_and_comes_back(tmp_path: Path, free: Free) -> None:
    space = DiskSpace(tmp_path, reserve=RESERVE, low=100)
    assert space.uses_reserve
    assert not space.look()
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= RESERVE
    assert not space.uses_reserve
    space.give_up(RESERVE + 1)
    assert not space.uses_reserve, "it would not help"
    free.bytes = 99
    for _ in range(2):
        space.give_up()
        assert space.uses_reserve
        assert not (tmp_path / "reserve").exists()
    assert space.look()
    assert space.uses_reserve, "there is no room for it"
    free.bytes = RESERVE
    assert not space.look()
    assert not space.uses_reserve


def test_a_start_on_a_full_disk_takes_the_reserve_that_is_there(tmp_path: Path, free: Free) -> None:
    DiskSpace(tmp_path, reserve=RESERVE, low=0).look()
    free.bytes = 0
    space = DiskSpace(tmp_path, reserve=RESERVE, low=100)
    assert space.look(), "room is short"
    assert not space.uses_reserve
    smaller = DiskSpace(tmp_path, reserve=RESERVE // 2, low=0)
    smaller.look()
    assert (tmp_path / "reserve").stat().st_size == RESERVE // 2
    larger = DiskSpace(tmp_path, reserve=2 * RESERVE, low=0)
    larger.look()
    assert larger.uses_reserve
    larger.give_up()
    assert not (tmp_path / "reserve").exists(), "what there is of it can be used"


def test_without_a_reserve_nothing_is_refused_before_the_disk_says_so(tmp_path: Path, free: Free) -> None:
    free.bytes = 0
    space = DiskSpace(tmp_path, reserve=0, low=0)
    assert not space.look()
    space.found_full()
    assert not space.is_full
    assert not space.uses_reserve
    assert not (tmp_path / "reserve").exists()


def test_a_reserve_is_a_quarter_of_a_file_at_most_64_mb() -> None:
    assert default_reserve(4 << 20) == 1 << 20
    assert default_reserve(256 << 20) == 64 << 20
    assert default_reserve(1 << 40) == 64 << 20


def test_what_is_urgent_goes_by_no_limit_but_never_unconsumed() -> None:
    kept = Retention(max_age=5.0, max_bytes=7, all_limits=True, delete_unconsumed=True)
    assert urgent(kept).is_due(age=0, size=1, messages=0)
    assert urgent(kept) == Retention(max_age=5.0, max_bytes=0)


@pytest.fixture
def store(tmp_path: Path, free: Free) -> Iterator[MessageStore]:
    store, _ = opened(tmp_path, reserve=RESERVE, low_space=100, preload=0)
    yield store
    store.abandon()


def test_sends_are_refused_while_the_reserve_is_used_and_control_records_are_taken(
    store: MessageStore, free: Free
) -> None:
    send(store, 0, b"before")
    store.space.give_up()
    free.bytes = 0
    for _ in range(3):
        with pytest.raises(QueueFull, match="kept for those who consume"):
            send(store, 0, b"refused")
        store.append_control(b"taken")
        store.space.look()
    free.bytes = RESERVE
    store.space.look()
    send(store, 0, b"again")
    assert bodies(messages(store, "orders", 0)) == [b"before", b"again"]


def test_figures_tell_of_refused_sends_before_the_reserve_is_used(
    store: MessageStore, free: Free, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without consumers nothing uses the reserve, while each send is refused."""
    measuring = Measuring(store, BrokerState(store, patience=0.0), (), {}, dict)
    assert not measuring.status()["uses_reserve"]

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(QueueFull):
            send(store, 0, b"refused")
    free.bytes = 99
    store.space.look()
    with pytest.raises(QueueFull, match="kept for those who consume"):
        send(store, 0, b"refused")
    assert not store.space.uses_reserve
    assert measuring.status()["uses_reserve"]
    free.bytes = 100
    store.space.look()
    send(store, 0, b"taken")
    assert not measuring.status()["uses_reserve"]


def test_a_send_larger_than_a_file_for_which_there_is_no_room_does_not_stop_smaller_ones(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = os.posix_fallocate

    def full(descriptor: int, offset: int, length: int) -> None:
        if length > 4096:  # the size of a file
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(QueueFull):
        send(store, 0, bytes(10_000))
    for number in range(10):  # several files
        assert send(store, 0, bytes(1_000)) == number


def test_room_is_made_of_what_is_consumed_the_newest_file_included(store: MessageStore, free: Free) -> None:
    retention = Retention(max_age=1e9)
    for _ in range(20):
        send(store, 0, b"x" * 1_000)
    store.checkpoint(b"")
    assert make_room(store, retention, lambda topic, queue: 10) > 0
    first, end = store.bounds("orders", 0)
    assert 0 < first <= 10
    assert end == 20
    assert make_room(store, retention, lambda topic, queue: None) == 0, "nobody consumes it"
    store.space.give_up()
    for _ in range(2):
        store.checkpoint(b"")
        make_room(store, retention, lambda topic, queue: 20)
    assert store.bounds("orders", 0) == (20, 20)
    assert store.deletion.early > 3
    free.bytes = RESERVE
    store.space.look()
    assert send(store, 0, b"next") == 20


def test_a_control_record_for_which_there_is_no_room_when_it_is_written_uses_the_reserve(
    tmp_path: Path, free: Free, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems reserve nothing, although the call succeeds."""
    store, _ = opened(tmp_path, reserve=RESERVE)
    send(store, 0, b"before")
    pwritev = os.pwritev

    def full(descriptor: int, buffers: Any, offset: int) -> int:
        if (tmp_path / "reserve").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwritev(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(QueueFull):
        send(store, 0, b"refused")
    assert not store.space.uses_reserve
    store.append_control(b"taken")
    assert store.space.uses_reserve
    assert bodies(messages(store, "orders", 0)) == [b"before"]
    store.abandon()
    again, heard = opened(tmp_path)
    assert heard.controls == [b"taken"]
    again.abandon()
