from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from enode_django.exceptions import DirectoryInUse, QueueFull
from tests import warm
from tests.equeue.storing import batch, bodies, chunks, messages, opened, send

ROOT = Path(__file__).parents[2]


def fill(directory: Path, chunk_size: int, *, limit: int = -1, before: Sequence[str] = ()) -> list[Any]:
    command = ["-m", "tests.equeue.filling", str(directory), str(chunk_size), str(limit)]
    if before:
        ran = subprocess.run([*before, sys.executable, *command], capture_output=True, text=True, cwd=ROOT)
    else:
        ran = warm.run(command, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    told: list[Any] = json.loads(ran.stdout.splitlines()[-1])
    return told


def check(told: list[Any]) -> int:
    sent, refused, readable, _, again, after, damaged = told
    assert sent > 5
    assert all("make room on the disk and send again" in message for message in refused)
    assert readable
    assert again == sent
    assert after == "refused"
    assert not damaged
    return int(sent)


@pytest.mark.parametrize("chunk_size", [100_000, 40_000, 20_000])
def test_a_write_that_ends_halfway_leaves_nothing(tmp_path: Path, chunk_size: int) -> None:
    """The write ends in the middle of a reserved file (with 100,000), or no new file can be reserved."""
    limit = 31_000 if chunk_size > 31_000 else chunk_size - 1
    sent = check(fill(tmp_path, chunk_size, limit=limit))
    store, _ = opened(tmp_path, chunk_size=chunk_size)
    assert send(store, 0, b"room again") == sent
    assert len(messages(store, "orders", 0)) == sent + 1
    store.close(b"")


def test_what_a_refused_send_has_written_is_not_found_behind_a_later_one(tmp_path: Path) -> None:
    store, _ = opened(tmp_path, chunk_size=100_000)
    send(store, 0, b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
    try:
        with pytest.raises(QueueFull):
            store.append("orders", [batch(queue, b"refused" * 200) for queue in range(50)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.bounds("orders", 5) == (0, 0)
    send(store, 0, b"after")
    store.abandon()
    store, heard = opened(tmp_path, chunk_size=100_000)
    assert bodies(messages(store, "orders", 0)) == [b"before", b"after"]
    assert all(store.bounds("orders", queue) == (0, 0) for queue in range(1, 50))
    assert heard.opened is not None
    assert not heard.opened.torn
    assert not store.reader.damaged
    store.abandon()


def test_a_full_file_system_refuses_sends_and_stays_whole(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=300k none {tmp_path} && "
    probe = subprocess.run(["unshare", "-rm", "sh", "-c", mount + "true"], capture_output=True)
    if probe.returncode:
        pytest.skip("no file system of our own can be mounted here")
    keep = tmp_path.with_name("kept")
    command = mount + f'"$@"; code=$?; cp -r {tmp_path} {keep}; exit $code'
    sent = check(fill(tmp_path, 40_000, before=["unshare", "-rm", "sh", "-c", command, "sh"]))
    store, _ = opened(keep, chunk_size=40_000)
    assert len(messages(store, "orders", 0)) == sent
    assert send(store, 0, b"room again") == sent
    assert not store.reader.damaged
    store.close(b"")
    shutil.rmtree(keep)


def test_a_reservation_that_fails_leaves_no_file(tmp_path: Path) -> None:
    fill(tmp_path, 20_000, limit=19_999)
    assert len(chunks(tmp_path)) == 1


def test_space_that_cannot_be_given_back_costs_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On some file systems, even giving space back needs room. The next file exists by then."""
    store, _ = opened(tmp_path, chunk_size=4_096)
    send(store, 0, b"first" * 100)

    def refused(descriptor: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(os, "ftruncate", refused)
        with pytest.raises(QueueFull):
            send(store, 0, b"large" * 1_000)
    send(store, 0, b"second")
    store.abandon()
    store, _ = opened(tmp_path, chunk_size=4_096)
    assert bodies(messages(store, "orders", 0)) == [b"first" * 100, b"second"]
    store.abandon()


def test_a_name_in_the_lock_for_which_there_is_no_room_keeps_nobody_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(os, "pwrite", refused)
        store, _ = opened(tmp_path)
    with pytest.raises(DirectoryInUse, match="another process"):
        opened(tmp_path)
    store.abandon()
