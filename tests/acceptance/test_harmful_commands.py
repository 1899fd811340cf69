from __future__ import annotations

import pytest

from enode_django import CommandStatus
from enode_django.eventstore.statements import TABLE
from enode_django.ids import new_id
from tests.acceptance.faulty.commands import EndProcess, NeverReturn
from tests.acceptance.stack import Stack

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]


@pytest.mark.parametrize("status", [3, 0])
def test_a_command_that_ends_its_process_is_failed_after_three_ends(stack: Stack, seed: int, status: int) -> None:
    processors = stack.start_ready()
    with stack.load(seed):
        answer = stack.client.execute(EndProcess(aggregate_root_id=new_id(), status=status))
    assert answer is not None
    assert (answer.status, answer.error_type) == (CommandStatus.FAILED, "CommandKilledWorker")
    assert processors.log.count(f"died: exit status {status}; starting another") == 3
    stack.check()
    assert [letter[1][0] for letter in stack.dead_letters()] == ["CommandKilledWorker"]


def test_a_command_that_never_returns_is_failed_after_three_time_limits(stack: Stack, seed: int) -> None:
    processors = stack.start_ready(HANDLER_TIME_LIMIT=1.0)
    with stack.load(seed):
        answer = stack.client.execute(NeverReturn(aggregate_root_id=new_id()))
    assert answer is not None
    assert (answer.status, answer.error_type) == (CommandStatus.FAILED, "CommandKilledWorker")
    assert processors.log.count("hangs in the command at queue") == 3
    assert processors.log.count("died: killed by SIGKILL; starting another") == 3
    stack.check()
    letters = [letter[1][0] for letter in stack.dead_letters()]
    assert letters
    assert set(letters) == {"CommandKilledWorker"}


def test_a_thread_that_dies_takes_its_process_down_and_the_next_one_goes_on(stack: Stack, seed: int) -> None:
    """No row can be written while the table is gone, and no retry helps: that is no error a thread may survive."""
    processors = stack.start_ready()
    with stack.load(seed):
        stack.execute(f"ALTER TABLE {TABLE} RENAME TO away")
        processors.wait_for("CRITICAL .* thread enode-.* died")
        processors.wait_for("died: exit status 70; starting another")
        stack.execute(f"ALTER TABLE away RENAME TO {TABLE}")
    assert processors.is_running
    stack.check()
