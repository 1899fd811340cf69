"""After a failed sync, the next broker does not take data in the kernel's cache for safe."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enode_django.equeue.broker.store import MessageStore
from enode_django.exceptions import StorageFailed
from tests.equeue.forgetful_disk import ForgetfulDisk
from tests.equeue.storing import bodies, flip, messages, opened, send

Disk = Callable[[Path], ForgetfulDisk]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ForgetfulDisk:
    return ForgetfulDisk(tmp_path, monkeypatch)


def fail_to_flush(disk: ForgetfulDisk, store: MessageStore) -> None:
    disk.fails = True
    with pytest.raises(StorageFailed):
        store.flush()
    store.abandon()


def sent(store: MessageStore, first: int, last: int) -> None:
    for number in range(first, last):
        send(store, 0, b"%d" % number * 100)


def found(store: MessageStore) -> list[bytes]:
    return [body[: len(body) // 100] for body in bodies(messages(store, "orders", 0))]


def expected(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_a_file_that_begins_behind_safe_messages_is_there_after_a_crash_of_the_machine(
    tmp_path: Path, disk: ForgetfulDisk
) -> None:
    store, _ = opened(tmp_path)
    for number in range(60):  # several files
        sent(store, number, number + 1)
        store.flush()
    store.abandon()
    disk.crash()
    store, _ = opened(tmp_path)
    assert found(store) == expected(60)
    store.close(b"state")


@pytest.mark.parametrize("checkpointed", [True, False])
@pytest.mark.parametrize("flushed", [0, 1, 5])
def test_what_is_there_after_a_failed_sync_is_there_after_a_crash_of_the_machine(
    tmp_path: Path, disk: ForgetfulDisk, flushed: int, checkpointed: bool
) -> None:
    store, _ = opened(tmp_path)
    sent(store, 0, flushed)
    store.flush()
    if checkpointed:
        store.checkpoint(b"state")
    sent(store, flushed, 60)  # several files
    fail_to_flush(disk, store)
    store, _ = opened(tmp_path)
    assert found(store) == expected(60)
    assert store.unflushed_bytes == 0
    store.abandon()
    disk.crash()
    store, _ = opened(tmp_path)
    assert found(store) == expected(60)
    assert not store.reader.damaged
    store.close(b"state")


def test_so_it_is_when_there_is_no_room_for_another_file(tmp_path: Path, disk: ForgetfulDisk) -> None:
    store, _ = opened(tmp_path)
    sent(store, 0, 2)
    store.flush()
    sent(store, 2, 5)
    fail_to_flush(disk, store)
    disk.is_full = True
    store, _ = opened(tmp_path)
    store.abandon()
    disk.crash()
    store, _ = opened(tmp_path)
    assert found(store) == expected(5)
    store.abandon()


@pytest.mark.parametrize("size", [100, 3_000])
def test_damage_that_was_passed_over_is_passed_over_again(tmp_path: Path, disk: ForgetfulDisk, size: int) -> None:
    """There are zeros around the damage. Whether it counts as a hole must not depend on where the file begins."""
    store, _ = opened(tmp_path, chunk_size=1 << 20)
    for number in range(3):
        send(store, 0, b"%d" % number + bytes(size))
    store.flush()
    for number in range(3, 9):
        send(store, 0, b"%d" % number + bytes(size))
    fail_to_flush(disk, store)
    (file,) = (tmp_path / "messages").glob("*.chunk")
    flip(file, file.read_bytes().index(b"5" + bytes(size)))
    seen = []
    for _ in range(3):
        store, _ = opened(tmp_path, chunk_size=1 << 20)
        seen.append([body[:1] for body in bodies(messages(store, "orders", 0))])
        store.abandon()
        disk.crash()
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][:5] == expected(5)


def test_a_sync_that_fails_again_keeps_the_broker_from_starting(tmp_path: Path, disk: ForgetfulDisk) -> None:
    store, _ = opened(tmp_path)
    sent(store, 0, 3)
    fail_to_flush(disk, store)
    disk.fails = True
    with pytest.raises(StorageFailed):
        opened(tmp_path)


def test_what_was_known_to_be_safe_is_not_written_again(tmp_path: Path) -> None:
    store, _ = opened(tmp_path, chunk_size=1 << 20)
    sent(store, 0, 50)
    store.flush()
    send(store, 0, b"50" * 100)  # says up to where all was safe when it was taken
    store.abandon()
    (file,) = (tmp_path / "messages").glob("*.chunk")
    inode = file.stat().st_ino
    for _ in range(2):
        store, _ = opened(tmp_path, chunk_size=1 << 20)
        assert found(store) == expected(51)
        store.close(b"")
    files = sorted((tmp_path / "messages").glob("*.chunk"))
    assert [file.stat().st_ino == inode for file in files] == [True, False]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["send", "send", "flush", "checkpoint", "fail", "stop"]), max_size=25))
def test_whatever_an_open_store_has_shown_stays(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    directory = tmp_path_factory.mktemp("store")
    with monkeypatch.context() as patch:
        disk, count, safe = ForgetfulDisk(directory, patch), 0, 0
        store, _ = opened(directory, chunk_size=1024)
        for step in steps:
            if step == "send":
                sent(store, count, count + 1)
                count += 1
            elif step == "flush":
                store.flush()
                safe = count
            elif step == "checkpoint":
                store.checkpoint(b"")
                safe = count
            else:
                fail_to_flush(disk, store) if step == "fail" and store.unflushed_bytes else store.abandon()
                store, _ = opened(directory, chunk_size=1024)
                count = safe = len(found(store))
            assert found(store) == expected(count)
        store.abandon()
        disk.crash()
        store, _ = opened(directory, chunk_size=1024)
        assert found(store)[:safe] == expected(safe)
        store.abandon()


def test_what_is_sent_during_a_flush_does_not_count_as_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = opened(tmp_path)
    sent(store, 0, 1)
    end, sync = store.position, os.fdatasync

    def sync_and_send(descriptor: int) -> None:
        sync(descriptor)
        sent(store, 1, 2)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", sync_and_send)
        assert store.flush() == end
    assert store.flushed == end < store.position
    assert store.flush() == store.position
    store.abandon()


def test_flush_of_a_new_file_needs_no_free_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    store, _ = opened(tmp_path)
    sent(store, 0, 60)  # several files
    with monkeypatch.context() as exhausted:
        exhausted.setattr(os, "open", refuse)
        store.flush()
    assert store.unflushed_bytes == 0
    store.abandon()
