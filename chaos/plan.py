"""Which faults a round meets, and when: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

SHORTEST_WAVE, LONGEST_WAVE = 10.0, 22.0
CALM = 4.0
"""Seconds after each wave in which nothing is wrong, so that a round also shows how the system comes back."""
SHORTEST_GAP, LONGEST_GAP = 0.2, 3.0
"""Seconds between the beginnings of two faults of a wave."""


class Choice(NamedTuple):
    """A kind of fault as the plan sees it: what it may befall, how long it lasts, how often it is drawn."""

    targets: Sequence[str]
    shortest: float = 0.0
    longest: float = 0.0
    weight: float = 1.0


class PlannedFault(NamedTuple):
    """``at`` and ``seconds`` are counted from the beginning of the faults. ``share`` (0 to 1) and ``seed`` decide what
    the kind leaves open."""

    at: float
    kind: str
    target: str
    seconds: float
    share: float
    seed: int

    @property
    def end(self) -> float:
        return self.at + self.seconds


def make_plan(seed: int, seconds: float, choices: Mapping[str, Choice]) -> list[PlannedFault]:
    """Plan waves of faults with a calm after each; everything is over after ``seconds``.

    Within a wave faults overlap, but no target has two at once. Each kind comes once before any comes again, as far as
    the time lasts. A kind without targets is left out.
    """
    chance = random.Random(f"plan {seed}")
    usable = {name: choices[name] for name in sorted(choices) if choices[name].targets}
    plan: list[PlannedFault] = []
    deck: list[str] = []
    begin = 0.0
    while usable and begin + SHORTEST_WAVE + CALM <= seconds:
        end = min(begin + chance.uniform(SHORTEST_WAVE, LONGEST_WAVE), seconds - CALM)
        plan += _wave(chance, usable, deck, begin, end)
        begin = end + CALM
    return plan


def _wave(
    chance: random.Random, choices: Mapping[str, Choice], deck: list[str], begin: float, end: float
) -> list[PlannedFault]:
    wave: list[PlannedFault] = []
    at = begin
    while (at := at + chance.uniform(SHORTEST_GAP, LONGEST_GAP)) < end:
        if not deck:
            deck += _shuffled(chance, choices)
        kind = _next_that_fits(deck, choices, end - at)
        if kind is None:
            deck.clear()  # too late in this wave for all that is left
            continue
        choice = choices[kind]
        free = sorted({*choice.targets} - _busy(wave, at))
        if free:
            seconds = chance.uniform(choice.shortest, min(choice.longest, end - at))
            wave.append(PlannedFault(at, kind, chance.choice(free), seconds, chance.random(), chance.getrandbits(32)))
    return wave


def _shuffled(chance: random.Random, choices: Mapping[str, Choice]) -> list[str]:
    """All kinds, the heavier ones rather first; one of weight 2 is there twice."""
    deck = [name for name, choice in choices.items() for _ in range(max(1, round(choice.weight)))]
    chance.shuffle(deck)
    return deck


def _next_that_fits(deck: list[str], choices: Mapping[str, Choice], seconds: float) -> str | None:
    """Take the first kind out of the deck that can last its shortest time."""
    for place, name in enumerate(deck):
        if choices[name].shortest <= seconds:
            return deck.pop(place)
    return None


def _busy(wave: Collection[PlannedFault], at: float) -> set[str]:
    return {fault.target for fault in wave if fault.end > at}
