"""If a checkpoint cannot be used, the one before it is. If neither can be used, losses are not silent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from enode_django.equeue.broker.retention import Retention
from enode_django.equeue.broker.store import MessageStore
from enode_django.exceptions import StorageFailed
from tests.equeue.storing import Heard, delete_due, flip, messages, opened, send

EVERYTHING = Retention(max_messages=0, delete_unconsumed=True)


def garble(path: Path) -> None:
    flip(path, 20)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def written(directory: Path, rounds: int, control: bytes = b"control %d") -> MessageStore:
    """Return a store after some rounds. Each round fills more than one file, writes a checkpoint, and deletes files."""
    store, _ = opened(directory)
    for number in range(rounds):
        for _ in range(10):
            send(store, number % 2, b"x" * 1_000)
        store.append_control(control % number if b"%" in control else control)
        store.checkpoint(b"state %d" % number)
        delete_due(store, EVERYTHING, lambda topic, queue: None)
    return store


@pytest.mark.parametrize("spoil", [garble, empty, remove])
def test_the_checkpoint_before_is_used_and_nothing_is_lost(
    tmp_path: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    store = written(tmp_path, 6)
    assert store._log.start > 0, "files were deleted"
    left = {queue: messages(store, "orders", queue) for queue in (0, 1)}
    bounds = {queue: store.bounds("orders", queue) for queue in (0, 1)}
    store.append_control(b"last")
    store.abandon()
    spoil(tmp_path / "checkpoint")
    store, heard = opened(tmp_path)
    assert heard.states == [b"state 4"]
    assert heard.controls == [b"control 5", b"last"]
    assert {queue: messages(store, "orders", queue) for queue in (0, 1)} == left
    assert {queue: store.bounds("orders", queue) for queue in (0, 1)} == bounds
    assert "the checkpoint before is used" in caplog.text
    store.checkpoint(b"new")
    store.abandon()
    spoil(tmp_path / "checkpoint")
    store, heard = opened(tmp_path)
    assert heard.states == [b"state 4"], "what could not be used is not kept as the one before"
    store.abandon()


def test_a_checkpoint_that_the_disk_cannot_read_is_one_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, 3).abandon()
    unreadable = tmp_path / "checkpoint"
    read_bytes = Path.read_bytes

    def refused(path: Path) -> bytes:
        if path == unreadable:
            raise OSError(5, "Input/output error")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    store, heard = opened(tmp_path)
    assert heard.states == [b"state 1"]
    store.abandon()


def test_a_start_that_would_lose_offsets_is_refused_unless_it_is_told_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = written(tmp_path, 6)
    start = store._log.start
    store.abandon()
    for name in ("checkpoint", "checkpoint.before"):
        garble(tmp_path / name)
    for _ in range(2):
        store, heard = MessageStore(tmp_path, chunk_size=4096), Heard()
        with pytest.raises(StorageFailed, match=f"begin at {start}.*start with --accept-loss"):
            store.open(restore=heard.restore, replay=heard.replay, sent=heard.sent)
        store.abandon()
        assert heard.order == []
    assert not caplog.text.count("as it was told to")
    store, heard = opened(tmp_path, accept_loss=True)
    assert heard.states == []
    assert heard.controls[-1] == b"control 5"
    assert store.bounds("orders", 1)[1] == 30
    assert caplog.text.count("as it was told to") == 1
    store.checkpoint(b"new")
    store.abandon()
    store, heard = opened(tmp_path)
    assert heard.states == [b"new"]
    store.abandon()


def test_a_crash_between_the_renames_leaves_the_checkpoint_that_was(tmp_path: Path) -> None:
    written(tmp_path, 3).abandon()
    (tmp_path / "checkpoint").replace(tmp_path / "checkpoint.before")
    store, heard = opened(tmp_path)
    assert heard.states == [b"state 2"]
    store.abandon()


def test_only_what_two_checkpoints_count_is_deleted(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    store.checkpoint(b"")
    for _ in range(10):
        send(store, 0, b"x" * 1_000)
    assert delete_due(store, EVERYTHING, lambda topic, queue: None) == 0
    store.checkpoint(b"")
    assert delete_due(store, EVERYTHING, lambda topic, queue: None) == 0
    assert not store.deletion.may_detach
    store.checkpoint(b"")
    assert store.deletion.may_detach
    assert delete_due(store, EVERYTHING, lambda topic, queue: None) > 0
    store.abandon()
