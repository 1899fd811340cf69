"""The page on reliability: the tests, rules and faults that it names are there."""

from __future__ import annotations

import re

from chaos.checker.rules import RULES
from chaos.faults import KINDS
from tests.docs.pages import DOCS

ROOT = DOCS.parent
PAGE = DOCS / "discussions" / "reliability.md"
TEST = re.compile(r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?`")


def test_every_test_that_it_names_is_there() -> None:
    named = TEST.findall(PAGE.read_text())
    assert len(named) > 30
    for path, function in named:
        assert (ROOT / path).exists(), path
        assert not function or f"def {function}(" in (ROOT / path).read_text(), f"{path}::{function}"


def test_every_acceptance_test_of_a_fault_is_named() -> None:
    page = PAGE.read_text()
    for name in ("workers_killed", "services_lost", "shards", "read_side_faults", "rebuilds", "shutdown", "broker"):
        assert f"tests/acceptance/test_{name}.py" in page, name


def test_every_rule_of_the_checker_and_every_fault_is_told() -> None:
    page = PAGE.read_text()
    assert {rule for rule in RULES if f"| `{rule}` |" not in page} == set()
    assert {fault for fault in KINDS if f"`{fault}`" not in page} == set()
