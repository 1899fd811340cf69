"""``manage.py enode queue check``: a broker's directory is read while no broker works there."""

from __future__ import annotations

import json
import os
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from enode_django.equeue.broker.check import DAMAGE, NOTE, Checked, check_directory
from enode_django.equeue.broker.chunk import Chunk
from enode_django.equeue.messages import Commit
from enode_django.exceptions import DirectoryInUse, QueueError
from tests.equeue.brokers import RunningBroker
from tests.equeue.storing import chunks, flip, opened, send
from tests.equeue.test_checkpoints import garble


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a stopped broker, with 12 messages in several files, offsets, and a lock file that is not
    locked."""
    with RunningBroker(tmp_path / "data", chunk_size=4096) as broker, closing(broker.transport()) as transport:
        transport.create_topic("orders", 2)
        for number in range(12):
            transport.send("orders", {number % 2: [b"%d" % number * 400]})
        epoch = transport.acquire("billing", "orders", 0, "one", 30.0).epoch
        transport.commit("billing", "orders", {0: Commit(epoch, 3)})
        assert broker.stop() == 0
    return tmp_path / "data"


def found(checked: Checked) -> list[tuple[str, str]]:
    return [(finding.kind, finding.place) for finding in checked.findings]


def state_of(directory: Path) -> dict[str, Any]:
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in directory.rglob("*") if path.is_file()}


def test_a_sound_directory_has_no_findings_and_is_left_as_it_is(directory: Path) -> None:
    before = state_of(directory)
    checked = check_directory(directory)
    assert checked.findings == []
    assert checked.is_sound
    assert (checked.batches, checked.messages, checked.files) == (12, 12, len(chunks(directory)))
    assert checked.records > 0
    assert state_of(directory) == before


def test_what_is_left_of_a_deleted_topic_is_no_finding(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", chunk_size=4096) as broker, closing(broker.transport()) as transport:
        for name in ("orders", "others"):
            transport.create_topic(name, 1)
            transport.send(name, {0: [b"deleted"]})
            transport.delete_topic(name, force=True)
        transport.create_topic("orders", 1)
        transport.send("orders", {0: [b"new"]})
        assert broker.stop() == 0
    checked = check_directory(tmp_path / "data")
    assert checked.findings == []
    assert checked.batches == 3


def test_a_damaged_batch_is_named_with_its_file_and_place(directory: Path) -> None:
    first = chunks(directory)[0]
    flip(first, 1_000)
    checked = check_directory(directory)
    ((kind, place),) = found(checked)
    assert (kind, place.partition(",")[0]) == (DAMAGE, f"messages/{first.name}")
    assert not checked.is_sound
    assert checked.batches in (11, 12), "the flipped byte may be one of a record"


def test_a_file_that_is_missing_or_cut_short_is_damage(directory: Path) -> None:
    some = chunks(directory)
    os.truncate(some[1], 100)
    some[-1].unlink()
    checked = check_directory(directory)
    assert DAMAGE in {kind for kind, _ in found(checked)}
    texts = " ".join(finding.text for finding in checked.findings)
    assert "the checkpoint counts them up to" in texts


def test_a_checkpoint_that_cannot_be_used_is_told_and_so_is_what_is_lost_without_any(directory: Path) -> None:
    garble(directory / "checkpoint")
    checked = check_directory(directory)
    assert found(checked) == [(NOTE, "checkpoint"), (NOTE, "checkpoint.before")]
    garble(directory / "checkpoint.before")
    assert check_directory(directory).is_sound, "the messages begin at 0: all records are there"
    chunks(directory)[0].unlink()
    assert (DAMAGE, "checkpoint") in found(check_directory(directory))


def test_an_index_that_is_damaged_or_wrong_is_a_note(directory: Path) -> None:
    zero, one = sorted(directory.glob("queues/orders/*/*.index"))
    flip(zero, 5)
    one.unlink()
    checked = check_directory(directory)
    assert found(checked) == [(NOTE, "queues/orders/0"), (NOTE, "queues/orders/1")]
    assert checked.is_sound


def test_what_a_crash_has_torn_is_a_note(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    send(store, 0, b"whole")
    store.checkpoint(b"\x93\x04\x01\x93\x90\x00\x80")
    send(store, 0, b"torn" * 100)
    end = store.position
    store.abandon()
    os.truncate(tmp_path / "messages" / Chunk.name(0), end - 8)
    checked = check_directory(tmp_path)
    assert [kind for kind, _ in found(checked)] == [NOTE]
    assert checked.batches == 1


def test_a_directory_in_use_is_left_alone_and_what_is_none_is_refused(broker: RunningBroker, tmp_path: Path) -> None:
    with pytest.raises(DirectoryInUse, match="is used by process"):
        check_directory(broker.directory)
    with pytest.raises(QueueError, match="not a directory of a broker"):
        check_directory(tmp_path)


def test_the_command_shows_what_it_found_and_fails_for_damage(directory: Path) -> None:
    out = StringIO()
    call_command("enode", "queue", "check", str(directory), stdout=out)
    assert "12 batches with 12 messages" in out.getvalue()
    flip(chunks(directory)[0], 1_000)
    out = StringIO()
    with pytest.raises(CommandError, match="is damaged"):
        call_command("enode", "queue", "check", str(directory), "--json", stdout=out)
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [row["kind"] for row in rows] == ["damage", "read"]
