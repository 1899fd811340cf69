from __future__ import annotations

from enode_django.concurrency.in_flight import position_of
from enode_django.processors.exit_statuses import HANDLER_DIED, handler_died, is_nobodys_fault, status_of_death


def test_nobody_is_to_blame_for_a_thread_that_died_and_handled_nothing() -> None:
    """For example, an event mailbox died because its table is gone: the command that is being handled is innocent."""
    assert is_nobodys_fault(status_of_death([0]))
    for status in (status_of_death([position_of(0, 0)]), handler_died(), HANDLER_DIED, -9, 0, 1, None):
        assert not is_nobodys_fault(status)
