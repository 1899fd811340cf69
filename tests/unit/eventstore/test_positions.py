from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enode_django.eventstore import positions
from enode_django.eventstore.positions import (
    BEGINNING,
    END,
    FIRST,
    Begun,
    Position,
    sequences_before,
    stretches,
)

NUMBERS = st.integers(0, 2**63 - 1)
POSITIONS = st.builds(Position, NUMBERS, NUMBERS, NUMBERS)


def test_the_examples_hold() -> None:
    assert doctest.testmod(positions).failed == 0


@given(POSITIONS)
def test_a_position_is_the_same_after_it_was_text(position: Position) -> None:
    assert Position.parse(str(position)) == position
    assert BEGINNING <= position <= END


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.2", "1.2.3.4", "-1.2.3", "1.2.x", " 1.2.3", "1.2.3\n", "１.2.3", "1.2.9223372036854775808", "9" * 300],
)
def test_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a position; give one as str\(position\) made it"):
        Position.parse(text)


# A small model: generations 0, 5 and 9, with rows of a few transactions each.

GENERATIONS = [FIRST, Begun(5, 10), Begun(9, 20)]
ROWS = [
    Position(generation, transaction_id, after + number)
    for generation, after in GENERATIONS
    for number, transaction_id in enumerate([3, 1, 4, 1, 5, 2], 1)
]
NEAR = st.builds(Position, st.integers(0, 11), st.integers(0, 6), st.just(0))


@given(NEAR, NEAR)
def test_stretches_hold_the_rows_between_two_positions(after: Position, before: Position) -> None:
    found = [
        row
        for stretch in stretches(GENERATIONS, after, before)
        for row in ROWS
        if stretch.begin.transaction_id <= row.transaction_id < stretch.end
        and stretch.after_sequence < row.sequence <= stretch.until_sequence
    ]
    assert sorted(found) == sorted(row for row in ROWS if after <= row < before)


@given(st.builds(Position, st.integers(0, 11), st.integers(0, 6), st.integers(1, 30)))
def test_a_stretch_goes_on_inside_a_transaction(after: Position) -> None:
    first = stretches(GENERATIONS, after, END)[:1]
    assert all(stretch.begin == after for stretch in first if stretch.generation == after.generation)


@given(NEAR)
def test_rows_before_a_position_are_known_by_their_sequences(position: Position) -> None:
    below, until = sequences_before(GENERATIONS, position)
    found = [
        row
        for row in ROWS
        if row.sequence <= below or (row.sequence <= until and row.transaction_id < position.transaction_id)
    ]
    assert found == [row for row in ROWS if row < position]
