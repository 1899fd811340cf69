"""The timeline with faults of its own: they begin, end, and are put off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos import timeline as module
from chaos.faults import KINDS, Fault, Skipped
from chaos.journal import Journal
from chaos.names import Setup
from chaos.plan import PlannedFault
from chaos.timeline import Timeline

DEADLINE = 60.0


class Late(Fault):
    """Can be made at the third try."""

    name = "late"
    halfway = True
    tries = 0
    happened: list[str] = []

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return ["somewhere"]

    def begin(self) -> str:
        type(self).tries += 1
        if self.tries < 3:
            raise Skipped("it is too early")
        self.happened.append("begin")
        return "done"

    def end(self) -> None:
        self.happened.append("end")


class NeverLate(Late):
    name = "never-late"
    halfway = False


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the part of a world that a timeline needs."""
    for kind in (Late, NeverLate):
        monkeypatch.setitem(KINDS, kind.name, kind)
        monkeypatch.setattr(kind, "tries", 0)
        monkeypatch.setattr(kind, "happened", [])
    monkeypatch.setattr(module, "AGAIN", 0.1)
    faults = Journal(tmp_path / "faults.jsonl")
    yield SimpleNamespace(faults=faults)
    faults.close()


class Seen(Exception):
    """Ends a timeline."""


def run_until(timeline: Timeline, condition: Callable[[], bool]) -> None:
    def tick() -> None:
        if condition():
            raise Seen

    with pytest.raises(Seen):
        timeline.run(DEADLINE, tick)


def test_what_each_round_must_have_is_tried_until_it_can_be_made(world: Any) -> None:
    timeline = Timeline(world, [PlannedFault(0.0, Late.name, "somewhere", 0.1, 0.5, 1)], lambda _: None)
    run_until(timeline, lambda: Late.happened[-1:] == ["end"])
    assert (Late.tries, Late.happened) == (3, ["begin", "end"])
    assert (timeline.made[Late.name], timeline.skipped[Late.name]) == (1, 2)


def test_another_kind_that_cannot_be_made_is_left_out(world: Any) -> None:
    plan = [PlannedFault(0.0, NeverLate.name, "somewhere", 0.1, 0.5, 1), PlannedFault(0.2, Late.name, "", 0.0, 0.5, 1)]
    timeline = Timeline(world, plan, lambda _: None)
    run_until(timeline, lambda: Late.happened == ["begin", "end"])
    assert (NeverLate.tries, NeverLate.happened) == (1, [])


def test_what_has_begun_is_mended_when_a_round_is_broken_off(world: Any) -> None:
    Late.tries = 2
    timeline = Timeline(world, [PlannedFault(0.0, Late.name, "somewhere", 2 * DEADLINE, 0.5, 1)], lambda _: None)
    run_until(timeline, lambda: Late.happened == ["begin"])
    for _ in range(2):
        timeline.mend()
    assert Late.happened == ["begin", "end"]
