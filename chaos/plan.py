"""The plan of a round's faults: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

SHORTEST_WAVE, LONGEST_WAVE = 10.0, 22.0
CALM = 4.0
"""Seconds without faults after each wave, so that a round also shows how the system recovers."""
SHORTEST_GAP, LONGEST_GAP = 0.2, 3.0
"""Seconds between the starts of two faults of a wave."""


class Choice(NamedTuple):
    """A kind of fault for the plan: its targets, its shortest and longest duration in seconds, and its weight. A
    ``halfway`` one also occurs in the middle of every round."""

    targets: Sequence[str]
    shortest: float = 0.0
    longest: float = 0.0
    weight: float = 1.0
    halfway: bool = False


class PlannedFault(NamedTuple):
    """A planned fault, which begins ``at`` seconds after the start of the faults and lasts ``seconds``. ``share`` (0 to
    1) and ``seed`` decide its details."""

    at: float
    kind: str
    target: str
    seconds: float
    share: float
    seed: int

    @property
    def end(self) -> float:
        return self.at + self.seconds


class _Wave(NamedTuple):
    begin: float
    end: float
    faults: list[PlannedFault]

    def nearest(self, at: float, seconds: float = 0.0) -> float:
        """Return the start of a fault of ``seconds`` in this wave that is nearest to a time."""
        return max(self.begin, min(at, self.end - seconds))


def make_plan(seed: int, seconds: float, choices: Mapping[str, Choice]) -> list[PlannedFault]:
    """Plan waves of faults with a calm after each; everything is over after ``seconds``.

    Within a wave faults overlap, but a target has only one at a time. Kinds are drawn from a shuffled deck, in which a
    kind occurs as often as its weight, at least once; a used-up deck is replaced. A kind without targets is left out.
    The wave nearest to the middle has a fault of each ``halfway`` kind, as near to the middle as possible.
    """
    chance = random.Random(f"plan {seed}")
    usable = {name: choices[name] for name in sorted(choices) if choices[name].targets}
    waves: list[_Wave] = []
    deck: list[str] = []
    begin = 0.0
    while usable and begin + SHORTEST_WAVE + CALM <= seconds:
        end = min(begin + chance.uniform(SHORTEST_WAVE, LONGEST_WAVE), seconds - CALM)
        waves.append(_Wave(begin, end, _wave(chance, usable, deck, begin, end)))
        begin = end + CALM
    if waves:
        middle = seconds / 2
        _put_in(chance, usable, min(waves, key=lambda wave: abs(wave.nearest(middle) - middle)), middle)
    return [fault for wave in waves for fault in wave.faults]


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
            deck.clear()  # too late in this wave for the rest of the deck
            continue
        choice = choices[kind]
        free = sorted({*choice.targets} - _busy(wave, at))
        if free:
            seconds = chance.uniform(choice.shortest, min(choice.longest, end - at))
            wave.append(PlannedFault(at, kind, chance.choice(free), seconds, chance.random(), chance.getrandbits(32)))
    return wave


def _put_in(chance: random.Random, choices: Mapping[str, Choice], wave: _Wave, at: float) -> None:
    """Add a fault of each ``halfway`` kind to a wave. It replaces other faults of its target at that time."""
    for kind, choice in choices.items():
        if choice.halfway and choice.shortest <= wave.end - wave.begin:
            begin = wave.nearest(at, choice.shortest)
            seconds = max(choice.shortest, chance.uniform(choice.shortest, min(choice.longest, wave.end - begin)))
            target = chance.choice(sorted(choice.targets))
            fault = PlannedFault(begin, kind, target, seconds, chance.random(), chance.getrandbits(32))
            wave.faults[:] = sorted([fault, *(one for one in wave.faults if not _collide(one, fault))])


def _collide(one: PlannedFault, other: PlannedFault) -> bool:
    return one.target == other.target and one.end >= other.at and other.end >= one.at


def _shuffled(chance: random.Random, choices: Mapping[str, Choice]) -> list[str]:
    """Return all kinds in random order; one of weight 2 occurs twice."""
    deck = [name for name, choice in choices.items() for _ in range(max(1, round(choice.weight)))]
    chance.shuffle(deck)
    return deck


def _next_that_fits(deck: list[str], choices: Mapping[str, Choice], seconds: float) -> str | None:
    """Take the first kind from the deck whose shortest duration fits; return None if there is none."""
    for place, name in enumerate(deck):
        if choices[name].shortest <= seconds:
            return deck.pop(place)
    return None


def _busy(wave: Collection[PlannedFault], at: float) -> set[str]:
    return {fault.target for fault in wave if fault.end > at}
