from __future__ import annotations

from enode_django.commanding.recent import RecentCommands
from enode_django.commanding.results import CommandResult, CommandStatus

RESULT = CommandResult(status=CommandStatus.NOTHING_CHANGED, command_id="c", aggregate_root_id="a")


def test_a_command_is_known_with_its_own_aggregate_only() -> None:
    recent = RecentCommands(10)
    recent.remember("c", "a", None)
    assert recent.find("c", "a") == ("a", None)
    assert recent.find("c", "b") is None
    assert recent.find("d", "a") is None


def test_an_outcome_that_is_not_stored_is_remembered_itself() -> None:
    recent = RecentCommands(10)
    recent.remember("c", "a", RESULT)
    assert recent.find("c", "a") == ("a", RESULT)
    recent.remember("c", "a", None)
    assert recent.find("c", "a") == ("a", None)


def test_half_of_the_limit_is_remembered_at_least_and_the_limit_at_most() -> None:
    recent = RecentCommands(10)
    for n in range(100):
        recent.remember(str(n), "a", RESULT)
        known = [m for m in range(n + 1) if recent.find(str(m), "a")]
        assert known == list(range(known[0], n + 1))
        assert min(5, n + 1) <= len(known) <= 10


def test_what_is_forgotten_is_not_found_young_or_old() -> None:
    recent = RecentCommands(4)
    for name in ("old", "older", "young"):
        recent.remember(name, "a", RESULT)
    recent.forget("old")
    recent.forget("young")
    assert recent.find("old", "a") is None
    assert recent.find("young", "a") is None
    recent.remember("young", "a", None)
    assert recent.find("young", "a") == ("a", None)
