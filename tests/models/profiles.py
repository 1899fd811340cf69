"""The number and length of a model's runs."""

from __future__ import annotations

import unittest

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine

LONG = "long"
LONGER = 40
"""The long profile multiplies the number of runs by this factor."""
SHRINKS = 600
"""Seconds within which a run that failed is made short and told: hypothesis gives up after half of that."""


def as_test(machine: type[RuleBasedStateMachine], *, runs: int, steps: int = 40) -> type[unittest.TestCase]:
    """Return the machine as a test case of ``runs`` runs, each of at most ``steps`` steps."""
    is_long = settings.get_current_profile_name() == LONG
    case = machine.TestCase
    case.settings = settings(
        max_examples=runs * LONGER if is_long else runs,
        stateful_step_count=steps,
        deadline=None,
        phases=set(Phase) - {Phase.explain},
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    case.pytestmark = [pytest.mark.timeout(0 if is_long else SHRINKS)]  # type: ignore[attr-defined]
    return case
