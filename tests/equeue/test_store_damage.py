"""Damage in the middle of a file, holes after a crash of the machine, and the log of a killed broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from enode_django.equeue.broker.chunk import Chunk
from enode_django.equeue.broker.held_memory import HeldMemory
from enode_django.equeue.broker.log import chunks_in
from enode_django.equeue.broker.recovery import Sent
from tests import warm
from tests.equeue.storing import batch, bodies, chunks, flip, messages, opened, send

BODY = b"x" * 500


def place_of(path: Path, content: bytes) -> int:
    place = path.read_bytes().find(content)
    assert place >= 0
    return place


@pytest.mark.parametrize("stop", ["clean", "crash"])
@pytest.mark.parametrize("where", ["body", "header"])
def test_a_flipped_byte_costs_one_batch_which_is_reported(
    tmp_path: Path, stop: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = opened(tmp_path)
    for number in range(30):
        send(store, number % 2, b"message %02d" % number)
        store.append_control(b"control %d" % number)
        store.flush()
    store.close(b"state") if stop == "clean" else store.abandon()
    path = chunks(tmp_path)[0]
    place = place_of(path, b"message 11") - (0 if where == "body" else 60)
    flip(path, place)
    store, heard = opened(tmp_path)
    expected = [(at, b"message %02d" % number) for at, number in enumerate(range(1, 30, 2)) if number != 11]
    assert messages(store, "orders", 1) == expected
    assert bodies(messages(store, "orders", 0)) == [b"message %02d" % number for number in range(0, 30, 2)]
    assert store.bounds("orders", 1) == (0, 15)
    if stop == "crash":
        assert heard.controls == [b"control %d" % number for number in range(30)]
    messages(store, "orders", 1)
    (position,) = store.reader.damaged
    damaged = position - int(path.stem)
    assert damaged <= place < damaged + 112
    assert caplog.text.count("damaged batch in") == 1
    assert f"{path} at byte {damaged}" in caplog.text
    assert send(store, 1, b"next") == 15
    store.abandon()


def test_a_flipped_byte_in_the_last_message_of_a_queue_does_not_give_its_offset_again(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    send(store, 0, b"damaged", b"too")
    send(store, 1, b"whole")
    store.flush()
    send(store, 1, b"whole too")
    store.abandon()
    flip(chunks(tmp_path)[0], place_of(chunks(tmp_path)[0], b"damaged"))
    store, _ = opened(tmp_path)
    assert send(store, 0, b"next") == 2
    assert messages(store, "orders", 0) == [(2, b"next")]
    store.abandon()


def test_a_damaged_send_before_an_unfinished_one_is_not_cut_off_with_it(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    send(store, 0, b"damaged")
    store.flush()
    store.append("orders", [batch(1, b"there"), batch(2, b"cut off")])
    store.abandon()
    (path,) = chunks(tmp_path)
    flip(path, place_of(path, b"damaged"))
    os.truncate(path, place_of(path, b"cut off"))
    store, _ = opened(tmp_path)
    assert store.bounds("orders", 1) == (0, 0)
    assert send(store, 0, b"next") == 1
    store.abandon()


def test_a_missing_file_costs_what_was_in_it(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    for number in range(30):
        send(store, 0, b"%02d" % number + BODY)
        store.flush()
    store.abandon()
    assert len(chunks(tmp_path)) > 3
    chunks(tmp_path)[1].unlink()
    for _ in range(2):
        store, _ = opened(tmp_path)
        left = messages(store, "orders", 0)
        assert 20 <= len(left) < 30
        assert [int(body[:2]) for _, body in left] == [offset for offset, _ in left]
        assert (left[0][0], left[-1][0]) == (0, 29)
        assert len(store.reader.damaged) == 1
        store.abandon()


def test_a_file_ends_where_the_next_one_begins_even_if_it_is_longer(tmp_path: Path) -> None:
    """Its reserved space is given back after the next one is made: the machine may stop in between."""
    for start, size in ((8, 9), (12, 2)):
        (tmp_path / Chunk.name(start)).write_bytes(bytes(size))
    assert [(one.start, one.end) for one in chunks_in(tmp_path, HeldMemory())] == [(8, 12), (12, 14)]


@pytest.mark.parametrize("flushed", [False, True])
def test_a_page_that_never_reached_the_disk_ends_the_log_unless_it_was_safe(tmp_path: Path, flushed: bool) -> None:
    store, _ = opened(tmp_path, chunk_size=1 << 20)
    for number in range(40):
        send(store, 0, b"%02d" % number + BODY)
        if flushed:
            store.flush()
    store.abandon()
    with open(chunks(tmp_path)[0], "r+b") as file:
        file.seek(2 * 4096)
        file.write(bytes(4096))
    store, _ = opened(tmp_path, chunk_size=1 << 20)
    left = [offset for offset, _ in messages(store, "orders", 0)]
    if flushed:
        assert 20 < len(left) < 40
        assert left[-1] == 39
        assert store.reader.damaged
    else:
        assert 0 < len(left) < 20
        assert left == list(range(len(left)))
        assert store.bounds("orders", 0) == (0, len(left))
        assert not store.reader.damaged
    store.abandon()


@pytest.mark.parametrize("flushed", [False, True])
def test_the_last_page_of_a_file_that_never_reached_the_disk_ends_the_log_unless_it_was_safe(
    tmp_path: Path, flushed: bool
) -> None:
    """The last page is shorter than others, and the next message is in the next file."""
    store, _ = opened(tmp_path, chunk_size=4096)
    send(store, 0, b"before")
    send(store, 0, b"a" * 5_000)
    if flushed:
        store.flush()
    send(store, 0, b"behind")
    store.abandon()
    lost = chunks(tmp_path)[1]
    assert 4096 < lost.stat().st_size < 2 * 4096
    with open(lost, "r+b") as file:
        file.seek(4096)
        file.write(bytes(lost.stat().st_size - 4096))
    store, _ = opened(tmp_path, chunk_size=4096)
    assert bodies(messages(store, "orders", 0)) == ([b"before", b"behind"] if flushed else [b"before"])
    assert bool(store.reader.damaged) is flushed
    store.abandon()


@pytest.mark.parametrize("lost", ["nothing", "checkpoint", "index"])
def test_zeros_within_messages_that_share_a_flush_cost_only_those_that_they_hit(tmp_path: Path, lost: str) -> None:
    """The messages just behind the zeros were written before those were known to be safe. Later messages say that they
    were, or the checkpoint does."""
    store, _ = opened(tmp_path, chunk_size=1 << 20)
    for number in range(40):
        send(store, 0, b"%02d" % number + BODY)
        if number >= 20 and lost != "index":
            store.flush()
    store.abandon() if lost == "nothing" else store.close(b"")
    with open(chunks(tmp_path)[0], "r+b") as file:
        file.seek(4096)
        file.write(bytes(4096))
    if lost == "checkpoint":
        (tmp_path / "checkpoint").unlink()
    elif lost == "index":
        flip(next(tmp_path.glob("queues/*/*/*.index")), 0)
    store, _ = opened(tmp_path, chunk_size=1 << 20)
    left = [offset for offset, _ in messages(store, "orders", 0)]
    assert left[-1] == 39
    assert 30 <= len(left) < 35
    assert send(store, 0, b"next") == 40
    store.abandon()


@pytest.mark.parametrize("lost", [1, 50, 100, 200, 300])
def test_a_send_of_several_batches_is_there_as_a_whole_or_not_at_all(tmp_path: Path, lost: int) -> None:
    store, _ = opened(tmp_path)
    send(store, 0, b"before")
    store.append("orders", [batch(0, b"a" * 40), batch(1, b"b" * 40), batch(2, b"c" * 40)])
    end = store.position
    store.abandon()
    os.truncate(chunks(tmp_path)[0], end - lost)
    store, _ = opened(tmp_path)
    assert bodies(messages(store, "orders", 0)) == [b"before"]
    assert store.bounds("orders", 1) == store.bounds("orders", 2) == (0, 0)
    store.abandon()


def test_damage_at_the_end_of_a_send_and_the_begin_of_the_next_mixes_no_answers(tmp_path: Path) -> None:
    """The second producer may ask for its answer again: offsets of the first one's messages would be wrong."""
    store, _ = opened(tmp_path, chunk_size=1 << 20)
    store.append("orders", [batch(0, b"a0"), batch(1, b"a1")], producer=b"a" * 16, sequence=1)
    answer = store.append("orders", [batch(1, b"b1"), batch(0, b"b0")], producer=b"b" * 16, sequence=1)
    store.append("orders", [batch(2, b"behind")])
    store.flush()
    store.abandon()
    path = chunks(tmp_path)[0]
    flip(path, place_of(path, b"a1"))
    flip(path, place_of(path, b"b1"))
    store, heard = opened(tmp_path, chunk_size=1 << 20)
    store.abandon()
    (sent,) = [sent for sent in heard.sends if sent.producer == b"b" * 16]
    assert sent.offsets == answer


def test_a_failed_flush_stops_the_store(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from enode_django.exceptions import QueueFull, StorageFailed
from tests.equeue.storing import opened, send
store, _ = opened(Path(sys.argv[1]))
send(store, 0, b"a")
os.close(store._log.chunks[0].fileno())  # the disk is gone
for call in (store.flush, store.flush, lambda: send(store, 0, b"b")):
    try:
        call()
    except StorageFailed as error:
        assert error.retriable, "whoever waits for the broker waits until it is started again"
        print("refused")
"""
    ran = warm.run(["-c", code, tmp_path], cwd=Path.cwd())
    assert ran.stdout.split() == ["refused"] * 3, ran.stderr


WRITER = """
import sys
from pathlib import Path
from tests.equeue.storing import batch, opened
store, heard = opened(Path(sys.argv[1]), chunk_size=20_000)
number = store.bounds("orders", 0)[1]
known = int([b"-1", *heard.states, *heard.controls][-1])
for missing in range(known + 1, number):  # whoever wrote before was killed between the message and its control
    store.append_control(b"%d" % missing)
while True:
    store.append("orders", [batch(queue, b"%d" % number) for queue in range(3)], producer=b"p" * 16, sequence=number)
    store.append_control(b"%d" % number)
    if number % 7 == 0:
        store.flush()
    if number % 50 == 0:
        store.checkpoint(b"%d" % number)
    print(number, flush=True)
    number += 1
"""


@pytest.mark.parametrize("wanted", [1, 120])
def test_nothing_that_a_killed_broker_has_taken_is_lost(tmp_path: Path, wanted: int) -> None:
    taken = -1
    unsure: set[int] = set()
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, text=True, pipesize=4096
        )
        assert writer.stdout is not None
        for _ in range(wanted):
            taken = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        taken = int(([str(taken), *writer.stdout.read().splitlines(keepends=True)])[-1].strip() or taken)
        writer.wait()
        store, heard = opened(tmp_path, chunk_size=20_000)
        ends = {store.bounds("orders", queue) for queue in range(3)}
        assert len(ends) == 1
        ((first, end),) = ends
        assert first == 0
        assert end in (taken + 1, taken + 2)
        for queue in range(3):
            assert messages(store, "orders", queue) == [(number, b"%d" % number) for number in range(end)]
        known = int(heard.states[-1]) if heard.states else -1
        controls = [int(record) for record in heard.controls]
        unsure.add(end - 1)  # each time the writer may have been killed between a send and its control record
        wanted_controls = range(known + 1, end)
        assert controls == [number for number in wanted_controls if number not in unsure or number in controls]
        assert not store.reader.damaged
        _check_answers(heard.sends, known, end)
        store.abandon()


def _check_answers(sends: list[Sent], known: int, end: int) -> None:
    assert [sent.sequence for sent in sends] == list(range(known + 1, end))
    assert all(sent.offsets == dict.fromkeys(range(3), sent.sequence) for sent in sends)
