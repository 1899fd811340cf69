from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enode_django.equeue.broker import index as indexing
from enode_django.equeue.broker.index import Entry, QueueIndex, Segment


@pytest.fixture(autouse=True, scope="module")
def _short_segments() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexing, "SEGMENT_ENTRIES", 4)
        yield


def filled(steps: list[tuple[int, int, int, int]]) -> tuple[QueueIndex, list[Entry]]:
    """Return an index whose full segments are only in files, and its entries. A step is the number of messages lost
    before an entry, its messages, and the bytes and the time since the entry before."""
    files: dict[Segment, array[int]] = {}
    index = QueueIndex(lambda segment, reads_file: files[segment])
    entries, position, time = [], 0, 0
    for lost, messages, gap, later in steps:
        position, time = position + gap, time + later
        entries.append(Entry(index.end + lost, position, time, messages, 100))
        index.add(entries[-1])
    for segment in index.segments:
        assert segment.words is not None
        files[segment] = segment.words
        segment.saved = segment.count
    for segment in index.segments:
        index.release(segment)
    assert all(segment.words is None for segment in index.segments[:-1])
    return index, entries


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(1, 50), st.integers(0, 3)), min_size=1, max_size=30
)


@given(STEPS, st.data())
def test_searches_find_what_a_list_would(steps: list[tuple[int, int, int, int]], data: st.DataObject) -> None:
    index, entries = filled(steps)
    offset = data.draw(st.integers(0, index.end + 2))
    assert list(index.at_offset(offset)) == [entry for entry in entries if entry.end > offset]
    position = data.draw(st.integers(0, entries[-1].position + 2))
    time = data.draw(st.integers(0, entries[-1].time + 2))
    assert list(index.at_time(time)) == [entry for entry in entries if entry.time >= time]
    assert index.first(position) == next(
        (entry.first_offset for entry in entries if entry.position >= position), index.end
    )


@given(STEPS, st.data())
def test_segments_below_a_position_are_dropped_as_a_whole(
    steps: list[tuple[int, int, int, int]], data: st.DataObject
) -> None:
    index, entries = filled(steps)
    position = data.draw(st.integers(0, entries[-1].position + 2))
    index.drop_below(position)
    left = list(index.at_offset(0))
    needed = [entry for entry in entries if entry.position >= position]
    assert left[len(left) - len(needed) :] == needed
    assert len(left) - len(needed) < 4
    assert index.end == entries[-1].end


def test_a_queue_goes_on_behind_what_was_dropped() -> None:
    index, entries = filled([(0, 2, 10, 1)] * 5)
    index.drop_below(1000)
    assert (index.first(1000), index.end) == (10, 10)
    index.add(Entry(10, 1000, 9, 1, 100))
    assert (index.first(1000), index.end) == (10, 11)
    assert list(accumulate(entry.messages for entry in entries))[-1] == 10


def test_one_segment_is_a_bounded_part_of_memory() -> None:
    index, _ = filled([(0, 1, 8, 0)] * 30)
    assert [segment.count for segment in index.segments] == [4] * 7 + [2]
