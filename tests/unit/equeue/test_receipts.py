from __future__ import annotations

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from enode_django.equeue.receipts import BLOCK, Receipts

STEPS = st.lists(st.tuples(st.integers(0, 3 * BLOCK), st.integers(0, 2 * BLOCK + 9)), max_size=8)


@given(STEPS, st.integers(0, 4 * BLOCK))
def test_they_are_what_a_list_would_be(steps: list[tuple[int, int]], first: int) -> None:
    receipts, expected, number = Receipts(), list[bytes](), 0
    for count, keep in steps:
        bodies = [b"%d" % at for at in range(number, number + count)]
        number += count
        receipts.add(bodies)
        receipts.keep(keep)
        expected = (expected + bodies)[max(0, len(expected) + count - keep) :]
        assert len(receipts) == len(expected)
    assert receipts.since(0) == expected
    assert receipts.since(first) == expected[first:]
    plain = msgpack.unpackb(msgpack.packb(receipts.plain()))
    assert Receipts.restore(plain).since(0) == expected


def test_what_was_taken_down_stays_as_it_was() -> None:
    receipts = Receipts()
    receipts.add([b"%d" % number for number in range(BLOCK + 2)])
    plain = receipts.plain()
    receipts.add([b"later"] * BLOCK)
    receipts.keep(1)
    assert Receipts.restore(plain).since(0) == [b"%d" % number for number in range(BLOCK + 2)]


def test_dropped_blocks_are_let_go() -> None:
    receipts = Receipts()
    for _ in range(10):
        receipts.add([b"x"] * BLOCK)
        receipts.keep(5)
    assert len(receipts.blocks) == 1
    assert receipts.since(0) == [b"x"] * 5
