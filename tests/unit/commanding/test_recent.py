from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from enode_django.bus.results import CommandResult, CommandStatus
from enode_django.commanding.recent_commands import RecentCommands, Remembered

RESULT = CommandResult(status=CommandStatus.NOTHING_CHANGED, command_id="c", aggregate_root_id="a")


def test_a_command_is_known_with_its_own_aggregate_only() -> None:
    recent = RecentCommands(10)
    recent.remember("c", "a", None)
    assert recent.find("c", "a") == Remembered("a", None, None)
    assert recent.find("c", "b") is None
    assert recent.find("d", "a") is None


def test_an_outcome_that_is_not_stored_is_remembered_itself() -> None:
    recent = RecentCommands(10)
    recent.remember("c", "a", RESULT)
    assert recent.find("c", "a") == Remembered("a", RESULT, None)
    recent.remember("c", "a", None)
    assert recent.find("c", "a") == Remembered("a", None, None)


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
    recent.forget("old", "a")
    recent.forget("young", "a")
    assert recent.find("old", "a") is None
    assert recent.find("young", "a") is None
    recent.remember("young", "a", None)
    assert recent.find("young", "a") == Remembered("a", None, None)


def test_the_same_command_id_of_other_aggregates_changes_nothing() -> None:
    recent = RecentCommands(10)
    recent.remember("c", "a", RESULT)
    recent.remember("c", "b", None)
    recent.remember("c", "d", None)
    assert recent.find("c", "a") == Remembered("a", RESULT, None)
    assert recent.find("c", "b") == Remembered("b", None, None)
    recent.forget("c", "a")
    assert recent.find("c", "a") is None
    assert recent.find("c", "b") == Remembered("b", None, None)
    recent.remember("c", "a", None)
    recent.forget("c", "d")
    assert [recent.find("c", root) for root in "abd"] == [Remembered("a", None), Remembered("b", None), None]


KEYS = st.tuples(st.sampled_from("cde"), st.sampled_from("ab"))


@given(st.lists(st.tuples(st.sampled_from(["remember", "remember its result", "forget"]), KEYS)), st.integers(2, 12))
def test_what_is_known_is_the_newest_of_each_command_id_and_aggregate(
    steps: list[tuple[str, tuple[str, str]]], limit: int
) -> None:
    recent = RecentCommands(limit)
    newest: dict[tuple[str, str], tuple[int, CommandResult | None]] = {}
    for number, (what, key) in enumerate(steps):
        newest.pop(key, None)
        if what == "forget":
            recent.forget(*key)
        else:
            result = RESULT if what == "remember its result" else None
            newest[key] = number, result
            recent.remember(*key, result)
        for known, (since, result) in newest.items():
            found = recent.find(*known)
            assert found == Remembered(known[1], result, None) or (found is None and number - since >= limit // 2)
        assert all(recent.find(id, root) is None for id in "cde" for root in "ab" if (id, root) not in newest)
