"""Disks that lose flushed data, and files with arbitrary content."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from enode_django.equeue.broker import index
from enode_django.equeue.broker.batches import ALIGNMENT, NewBatch
from enode_django.equeue.records import encode_records
from tests.equeue.storing import bodies, messages, opened, send
from tests.memory import MEMORY

QUEUES = [("orders", 0), ("orders", 1), ("events", 0)]

SENDS = st.tuples(
    st.sampled_from(["orders", "events"]),
    st.lists(
        st.tuples(st.integers(0, 1), st.lists(st.binary(max_size=60), min_size=1, max_size=4)), min_size=1, max_size=4
    ),
)


@pytest.fixture(autouse=True, scope="module")
def _short_segments() -> Iterator[None]:
    """Index files of three entries, so that a few messages fill several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "SEGMENT_ENTRIES", 3)
        yield


def test_an_index_file_that_was_read_and_then_grew_is_read_again(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    send(store, 0, b"0")
    store.close(b"")
    store, _ = opened(tmp_path)
    assert len(messages(store, "orders", 0)) == 1
    for number in range(1, 10):
        send(store, 0, b"%d" % number)
    store.checkpoint(b"")
    assert messages(store, "orders", 0) == [(number, b"%d" % number) for number in range(10)]
    store.abandon()


@settings(max_examples=50, deadline=None, phases=set(Phase) - {Phase.explain})
@given(
    st.lists(SENDS, min_size=1, max_size=15),
    st.integers(0, 14),
    st.sampled_from([256, 1024, 100_000]),
    st.sampled_from(["cut", "zeros", "noise"]),
    st.data(),
)
def test_whatever_a_crash_leaves_of_the_end_a_prefix_of_whole_sends_is_there(
    sends: list[Any], checkpoint_after: int, chunk_size: int, damage: str, data: st.DataObject
) -> None:
    with TemporaryDirectory(dir=MEMORY) as name:
        directory = Path(name)
        store, _ = opened(directory, chunk_size=chunk_size)
        ends, safe = [], 0
        for number, (topic, parts) in enumerate(sends):
            store.append(topic, [NewBatch(queue, len(records), encode_records(records)) for queue, records in parts])
            filling = -(len(topic) + len(encode_records(parts[-1][1]))) % ALIGNMENT
            ends.append(store.position - (0 if damage == "cut" else filling))  # bytes that may be anything, but there
            if number == checkpoint_after:
                store.checkpoint(b"state")
                safe = store.position
        end = store.position
        store.abandon()
        # The file system may lose flushed data. Changes in it are found when it is read, not when the store is opened.
        torn = data.draw(st.integers(0 if damage == "cut" else safe, end))
        changed = _spoil(directory, torn, damage, data)
        store, _ = opened(directory, chunk_size=chunk_size)
        left = sum(1 for at in ends if at <= changed)
        expected: dict[tuple[str, int], list[bytes]] = {}
        for topic, parts in sends[:left]:
            for queue, records in parts:
                expected.setdefault((topic, queue), []).extend(records)
        for topic, queue in [*QUEUES, ("events", 1)]:
            held = expected.get((topic, queue), [])
            assert messages(store, topic, queue) == list(enumerate(held))
            assert store.bounds(topic, queue) == (0, len(held))
        assert not store.reader.damaged
        for number in range(20):
            model_end = len(expected.get(("orders", 0), [])) + number
            body = encode_records([b"after"])
            assert store.append("orders", [NewBatch(0, 1, body)]) == {0: model_end}
        store.abandon()
        store, _ = opened(directory, chunk_size=chunk_size)
        assert bodies(messages(store, "orders", 0)) == [*expected.get(("orders", 0), []), *[b"after"] * 20]
        store.abandon()


def _spoil(directory: Path, torn: int, damage: str, data: st.DataObject) -> int:
    """Change the bytes from a position on. Return the position of the first byte that has changed."""
    changed = []
    for path in sorted((directory / "messages").glob("*.chunk")):
        content, start = path.read_bytes(), int(path.stem)
        kept = content[: max(torn - start, 0)]
        rest = len(content) - len(kept)
        if damage == "cut":
            path.write_bytes(kept) if kept else path.unlink()
            changed += [start + len(kept)] * bool(rest)
        elif rest:
            noise = bytes(1) if damage == "zeros" else data.draw(st.binary(min_size=1, max_size=50))
            spoiled = kept + (noise * rest)[:rest]
            path.write_bytes(spoiled)
            changed += [start + at for at in range(len(kept), len(content)) if content[at] != spoiled[at]][:1]
    return min(changed, default=1 << 60)


@settings(max_examples=30, deadline=None, phases=set(Phase) - {Phase.explain})
@given(st.lists(st.one_of(st.binary(max_size=300), st.just(b"EQB1"), st.just(bytes(64))), max_size=20), st.booleans())
def test_random_bytes_in_place_of_messages_never_keep_the_store_from_opening(
    parts: list[bytes], valid_before: bool
) -> None:
    with TemporaryDirectory(dir=MEMORY) as name:
        directory = Path(name)
        store, _ = opened(directory)
        if valid_before:
            store.append("orders", [NewBatch(0, 1, encode_records([b"first"]))])
        store.abandon()
        path = directory / "messages" / f"{0:020}.chunk"
        with open(path, "r+b" if valid_before else "wb") as file:
            file.seek(store.position)
            file.write(b"".join(parts))
        store, _ = opened(directory)
        assert bodies(messages(store, "orders", 0)) == [b"first"] * valid_before
        assert store.append("orders", [NewBatch(0, 1, encode_records([b"x"]))]) == {0: int(valid_before)}
        store.abandon()
