from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from enode_django.equeue.portions import portions


@given(st.lists(st.integers(0, 9)), st.integers(0, 20), st.integers(1, 5))
def test_portions_are_bounded_in_order_and_no_smaller_than_they_must_be(
    sizes: list[int], most_bytes: int, most_items: int
) -> None:
    found = list(portions(sizes, int, most_bytes=most_bytes, most_items=most_items))
    assert [size for portion in found for size in portion] == sizes
    for portion in found:
        assert len(portion) == 1 or sum(portion) <= most_bytes
        assert 0 < len(portion) <= most_items
    for portion, following in pairwise(found):
        assert len(portion) == most_items or sum(portion) + following[0] > most_bytes


def test_items_are_made_when_their_portion_is_due() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield 10

    for count, _ in enumerate(portions(items(), int, most_bytes=50), 1):
        assert len(made) <= 5 * count + 1
