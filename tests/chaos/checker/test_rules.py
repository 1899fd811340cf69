"""Histories that break one rule each, and a history that keeps them all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.checker.facts import Facts
from chaos.checker.rules import RULES, violations
from tests.chaos.checker.breaking import BREAKING, SEVERAL
from tests.chaos.checker.builder import World, small_world


def broken(facts: Facts) -> set[str]:
    return {violation.rule for violation in violations(facts)}


def test_a_valid_history_breaks_no_rule() -> None:
    assert list(violations(small_world().facts())) == []


def test_nothing_breaks_no_rule() -> None:
    assert list(violations(World().facts())) == []


@pytest.mark.parametrize(
    ("rule", "history"),
    [(rule, history) for rule, histories in BREAKING.items() for history in histories],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_this_rule_complains_and_no_other(rule: str, history: Callable[[], Facts]) -> None:
    facts = history()
    assert broken(facts) == {rule}, [*violations(facts)]


@pytest.mark.parametrize("history", SEVERAL, ids=lambda history: history.__name__)
def test_what_breaks_several_rules_is_found(history: Callable[[], Facts]) -> None:
    assert len(broken(history())) > 1


def test_each_rule_has_two_histories_that_break_it() -> None:
    assert {rule for rule, histories in BREAKING.items() if len(histories) >= 2} == set(RULES)
