from __future__ import annotations

import pytest

from enode_django.concurrency.in_flight import NOTHING_IN_FLIGHT, position_of
from enode_django.processors.suspects import Hand, ended_well

HANDLING = position_of(3, 41)


@pytest.mark.parametrize(
    ("status", "notes", "well"),
    [
        (0, [NOTHING_IN_FLIGHT, NOTHING_IN_FLIGHT], True),
        (0, [NOTHING_IN_FLIGHT, HANDLING], False),
        (1, [NOTHING_IN_FLIGHT, NOTHING_IN_FLIGHT], False),
        (-9, [HANDLING], False),
        (None, [NOTHING_IN_FLIGHT], False),
    ],
)
def test_worker_that_ends_with_status_0_while_it_handles_a_command_has_died(
    status: int | None, notes: list[int], well: bool
) -> None:
    assert ended_well(status, [Hand(position) for position in notes]) is well
