from __future__ import annotations

from collections.abc import Iterator

from chaos.checker.facts import Facts


def replayable(facts: Facts) -> Iterator[str]:
    """Each stored event belongs to a known type of aggregate, and is valid after the events before."""
    yield from facts.replay.problems
    for note in facts.replay.notes.values():
        yield from note.problems
