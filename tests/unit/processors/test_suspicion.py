from __future__ import annotations

import pytest

from enode_django.commanding.entries import position_of
from enode_django.commanding.processor import IDLE
from enode_django.processors.suspicion import HANDLER_DIED, ended_well, status_of_death, to_blame

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
    assert ended_well(status, notes) is well


def test_no_command_is_to_blame_for_a_thread_that_died_and_handled_none() -> None:
    """An event mailbox, say, whose table is gone: what a command mailbox handles just then is innocent."""
    notes = [HANDLING, IDLE]
    assert to_blame(status_of_death([IDLE]), notes) == []
    for status in (status_of_death([HANDLING]), HANDLER_DIED, -9, 0, None):
        assert to_blame(status, notes) == [(3, 41)]
