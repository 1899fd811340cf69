from __future__ import annotations

import pytest

from enode_django import Command, CommandStatus
from enode_django.eventstore.statements import TABLE
from enode_django.ids import new_id
from tests.acceptance.faulty.commands import EndProcess, NeverReturn
from tests.acceptance.stack import Stack

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

LIMIT = 8.0
"""Seconds that a command may take: enough for an innocent one of a slow machine, and waited for three times."""


def test_a_command_that_ends_its_process_or_never_returns_is_failed_after_three_ends(stack: Stack, seed: int) -> None:
    """The other worker goes on, and a third kind of end, that of a thread, is nobody's fault."""
    processors = stack.start_ready(2, COMMANDS={"TIME_LIMIT": LIMIT})
    with stack.load(seed):
        fail(stack, EndProcess(new_id(), status=0))
        assert processors.count("died: exit status 0; starting another") >= 3
        fail(stack, NeverReturn(new_id()))
        assert processors.count("hangs in the command at queue") >= 3
        assert processors.count("died: killed by SIGKILL; starting another") >= 3
    stack.check()
    # A copy of a deposit to no account may have been handled while nobody waited for it: that is a letter, too.
    letters = {letter for letter in stack.dead_letters() if letter[0].startswith("faulty.")}
    assert letters == {(f"faulty.{name}", "CommandKilledWorker") for name in ("EndProcess", "NeverReturn")}


def fail(stack: Stack, command: Command) -> None:
    answer = stack.client.execute(command)
    assert answer is not None
    assert (answer.status, answer.error_type) == (CommandStatus.FAILED, "CommandKilledWorker")


FAULT = """
    CREATE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM there_is_none(); RETURN NEW; END $$
"""


def test_a_thread_that_dies_takes_its_process_down_and_the_next_one_goes_on(stack: Stack, seed: int) -> None:
    """While a trigger calls a function that does not exist, no row can be written and no retry helps. A thread must not
    survive this error."""
    processors = stack.start_ready()
    with stack.load(seed):
        stack.execute(FAULT)
        stack.execute(f"CREATE TRIGGER fault BEFORE INSERT ON {TABLE} FOR EACH ROW EXECUTE FUNCTION fault()")
        processors.wait_for("CRITICAL .* thread enode-.* died")
        processors.wait_for("died: exit status 70; starting another")
        stack.execute("DROP FUNCTION fault CASCADE")
    assert processors.is_running
    stack.check()


def test_a_missing_table_is_waited_for(stack: Stack, seed: int) -> None:
    """A deploy may start workers before it migrates."""
    processors = stack.start_ready()
    with stack.load(seed):
        stack.execute(f"ALTER TABLE {TABLE} RENAME TO away")
        processors.wait_for("run manage.py migrate: until then commands wait")
        stack.execute(f"ALTER TABLE away RENAME TO {TABLE}")
    assert processors.count("died") == 0
    stack.check()
