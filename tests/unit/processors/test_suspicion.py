from __future__ import annotations

import pytest

from enode_django.concurrency.in_flight import IDLE, position_of
from enode_django.processors.suspicion import Hand, ended_well

HANDLING = position_of(3, 41)


@pytest.mark.parametrize(
    ("status", "notes", "well"),
    [
        (0, [IDLE, IDLE], True),
        (0, [IDLE, HANDLING], False),
        (1, [IDLE, IDLE], False),
        (-9, [HANDLING], False),
        (None, [IDLE], False),
    ],
)
def test_worker_that_ends_with_status_0_while_it_handles_a_command_has_died(
    status: int | None, notes: list[int], well: bool
) -> None:
    assert ended_well(status, [Hand(position) for position in notes]) is well
