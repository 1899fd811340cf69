"""The promises, by name. Each rule is a pure function of the facts that yields its violations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from chaos.checker.facts import Facts, Violation
from chaos.checker.rules.answers import agree, failed_not_stored, success_stored
from chaos.checker.rules.checkpoints import checkpoints
from chaos.checker.rules.ends import every_command_ends
from chaos.checker.rules.money import money
from chaos.checker.rules.offsets import offsets_forward
from chaos.checker.rules.owners import one_owner
from chaos.checker.rules.processes import process_managers
from chaos.checker.rules.published import published
from chaos.checker.rules.read_models import read_models
from chaos.checker.rules.replayable import replayable
from chaos.checker.rules.sent import as_sent
from chaos.checker.rules.subscribers import subscriber_order
from chaos.checker.rules.versions import versions_without_gaps

Rule: TypeAlias = Callable[[Facts], Iterator[str]]

RULES: Mapping[str, Rule] = {
    "success-stored": success_stored,
    "failed-not-stored": failed_not_stored,
    "every-command-ends": every_command_ends,
    "answers-agree": agree,
    "versions-without-gaps": versions_without_gaps,
    "as-sent": as_sent,
    "replayable": replayable,
    "subscriber-order": subscriber_order,
    "checkpoints": checkpoints,
    "read-models": read_models,
    "process-managers": process_managers,
    "money": money,
    "one-owner": one_owner,
    "offsets-forward": offsets_forward,
    "published": published,
}
UNREADABLE = "unreadable"
"""The rule of violations for places that could not be read."""


def violations(facts: Facts) -> Iterator[Violation]:
    for name, rule in RULES.items():
        for text in rule(facts):
            yield Violation(name, text)
