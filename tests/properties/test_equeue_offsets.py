from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from enode_django.equeue.offsets import OffsetWindow

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 3), min_size=1, max_size=6)),
        st.tuples(st.just("finish"), st.lists(st.integers(0, 60), max_size=8)),
    ),
    max_size=30,
)


@given(st.integers(0, 5), STEPS)
def test_window_agrees_with_the_definition(committed: int, steps: list[tuple[str, list[int]]]) -> None:
    """``add`` steps hold the gaps before each offset, ``finish`` steps any offsets at all."""
    window = OffsetWindow("orders", 0, epoch=1, committed=committed, deadline=0.0)
    unfinished: set[int] = set()
    following, before = committed, committed
    for step, numbers in steps:
        if step == "add":
            offsets = []
            for gap in numbers:
                offsets.append(following + gap)
                following = offsets[-1] + 1
            window.add(offsets)
            unfinished.update(offsets)
        else:
            window.finish_many(numbers)
            unfinished.difference_update(numbers)
        assert window.committable == min(unfinished, default=following)
        assert window.unfinished == len(unfinished)
        assert window.next_offset == following
        assert window.committable >= before
        before = window.committable
