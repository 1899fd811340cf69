from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from enode_django.equeue.messages import Commit, Receipt
from enode_django.equeue.offsets import OffsetWindow


def window(committed: int = 5) -> OffsetWindow:
    return OffsetWindow("orders", 2, epoch=3, committed=committed, deadline=100.0)


def test_empty_window_stands_where_the_lease_began() -> None:
    empty = window()
    assert (empty.committable, empty.next_offset, empty.unfinished) == (5, 5, 0)
    assert (empty.topic, empty.queue, empty.epoch, empty.deadline, empty.closed) == ("orders", 2, 3, 100.0, False)


def test_committable_is_the_lowest_unfinished_whatever_the_order() -> None:
    some = window()
    some.add(range(5, 9))
    some.finish_many([7, 6])
    assert (some.committable, some.unfinished) == (5, 2)
    some.finish(5)
    assert (some.committable, some.unfinished) == (8, 1)
    some.finish(8)
    assert (some.committable, some.unfinished) == (9, 0)


def test_gap_is_stepped_over() -> None:
    some = window()
    some.add([7, 8, 20])
    assert some.committable == 7
    some.finish_many([7, 8])
    assert some.committable == 20
    some.finish(20)
    assert (some.committable, some.next_offset) == (21, 21)


def test_finishing_twice_or_what_was_never_added_changes_nothing() -> None:
    some = window()
    some.add(range(5, 8))
    some.finish_many([5, 5, 3, 99])
    some.finish(5)
    assert (some.committable, some.unfinished) == (6, 2)
    some.add([99])
    some.finish_many([6, 7])
    assert some.committable == 99


@pytest.mark.parametrize("offsets", [[4], [5, 5], [7, 6], range(8, 5, -1)])
def test_offsets_that_do_not_ascend_are_refused(offsets: list[int]) -> None:
    some = window()
    with pytest.raises(ValueError, match="ascend from 5"):
        some.add(offsets)
    assert (some.next_offset, some.unfinished) == (5, 0)
    some.add([5])
    with pytest.raises(ValueError, match="ascend from 6"):
        some.add([5])


def test_closed_window_takes_no_message_but_lets_those_it_has_finish() -> None:
    some = window()
    assert some.add([5])
    some.close()
    some.close()
    assert some.closed
    assert not some.add([6])
    assert not some.add([])
    some.finish(5)
    assert (some.committable, some.unfinished) == (6, 0)


def test_one_thread_adds_while_others_finish() -> None:
    some = window(0)
    batches = [range(start, start + 50) for start in range(0, 20_000, 50)]
    with ThreadPoolExecutor(4) as pool:
        for batch in batches:
            some.add(batch)
            pool.submit(some.finish_many, batch[25:])
            pool.submit(some.finish_many, batch[:25])
    assert (some.committable, some.unfinished) == (20_000, 0)


def test_receipts_go_with_the_commit_that_moves_past_their_message_and_only_with_that() -> None:
    some = window()
    some.add(range(5, 9))
    for offset in (8, 6, 5):
        some.keep(offset, b"%d" % offset)
    some.finish_many([6, 8])
    assert some.next_commit(10) == Commit(3, 5, [], 10)
    some.finish(5)
    first = some.next_commit(10)
    assert first == Commit(3, 7, [Receipt(5, b"5"), Receipt(6, b"6")], 10)
    some.finish(7)
    assert some.next_commit(10).receipts == [*first.receipts, Receipt(8, b"8")]  # the first one's outcome is unknown
    some.commit_taken(first.offset)
    assert some.committed == 7
    assert some.next_commit(10) == Commit(3, 9, [Receipt(8, b"8")], 10)
    some.commit_taken(9)
    assert some.next_commit(10).receipts == []


def test_a_commit_takes_no_more_receipts_than_are_kept() -> None:
    some = window()
    some.add(range(5, 15))
    for offset in range(5, 15):
        some.keep(offset, b"")
    some.finish_many(range(5, 15))
    assert [receipt.offset for receipt in some.next_commit(3).receipts] == [12, 13, 14]
    assert some.next_commit(0).receipts == []
