"""The verdict on a run, from its violations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from chaos.checker.facts import Facts, Violation
from chaos.checker.rules import RULES, UNREADABLE

SHOWN = 50
"""The most violations of each rule that are printed."""


@dataclass
class Verdict:
    """A verdict. ``counts`` are the numbers of violations by rule, 0 if it holds; ``shown`` are the first ones."""

    figures: dict[str, int]
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((UNREADABLE, *RULES), 0))
    shown: dict[str, list[str]] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return not any(self.counts.values())

    def add(self, violations: Iterable[Violation]) -> None:
        for rule, text in violations:
            self.counts[rule] += 1
            shown = self.shown.setdefault(rule, [])
            if len(shown) < SHOWN:
                shown.append(" ".join(text.split()))

    def lines(self) -> Iterator[str]:
        yield "judged: " + ", ".join(f"{count:,} {name}" for name, count in self.figures.items())
        for rule, count in self.counts.items():
            if count or rule != UNREADABLE:
                yield f"{'BROKEN' if count else 'holds '} {rule}" + (f" ({count:,} times)" if count else "")
            for text in self.shown.get(rule, ()):
                yield f"  {rule}: {text}"
            if count > SHOWN:
                yield f"  {rule}: … and {count - SHOWN:,} more"
        yield "verdict: " + ("all rules hold" if self.holds else f"{sum(self.counts.values()):,} violations")

    def as_json(self) -> str:
        parts = {"holds": self.holds, "figures": self.figures, "counts": self.counts, "violations": self.shown}
        return json.dumps(parts, indent=2)


def figures(facts: Facts) -> dict[str, int]:
    """Return the numbers of checked facts: a check of nothing proves nothing."""
    return {
        "commands sent": len(facts.sent),
        "answers": len(facts.answers),
        "rows stored": len(facts.stored),
        "refusals": len(facts.refusals),
        "streams published": len(facts.published or ()),
        "events handled": len(facts.handled),
        "rows of read models": sum(map(len, facts.tables.values())),
        "records of the queue": len(facts.log),
        "samples": len(facts.samples),
        "accounts": len(facts.replay.accounts),
        "transfers": len(facts.replay.transfers),
        "notes": len(facts.replay.notes),
        "follow-up commands": len(facts.replay.follow_ups),
        "dead letters": len(facts.dead),
        "messages that are none": facts.garbage,
    }
