"""Place the boxes and arrows in the picture of a causation. Pure.

Columns of commands and of events alternate, from left to right. The events of a command are stacked, the first one in
the command's row. The commands that follow from an event begin in the event's row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from enode_django.history.causation import Causation
from enode_django.history.steps import Happened, Step

WIDTH, HEIGHT = 210, 46
COLUMN, ROW = 260, 62
MARGIN = 12
MOST_EVENTS = 12
"""The number of events drawn for one command. Further events are drawn only if they have effects."""
_CHARACTERS = 28


class Box(NamedTuple):
    """A box for a command, an event or a refusal. ``step`` is the command that it belongs to, None for a cause that is
    not stored. ``name`` and ``detail`` are shortened, ``title`` has both in full."""

    x: int
    y: int
    kind: str
    name: str
    detail: str
    title: str
    step: Step | None
    width: int = WIDTH
    height: int = HEIGHT

    @property
    def baselines(self) -> tuple[int, int]:
        return self.y + 19, self.y + 36

    @property
    def text_x(self) -> int:
        return self.x + 10


class Arrow(NamedTuple):
    """An arrow from the right side of one box to the left side of another."""

    x1: int
    y1: int
    x2: int
    y2: int

    @property
    def path(self) -> str:
        middle = self.x2 - (COLUMN - WIDTH) // 2
        return f"M{self.x1} {self.y1}H{middle}V{self.y2}H{self.x2}"


class Picture(NamedTuple):
    width: int
    height: int
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]


def picture_of(causation: Causation) -> Picture:
    return _Drawing(causation).picture()


class _Drawing:
    def __init__(self, causation: Causation) -> None:
        self._focus = causation.focus
        self._chain = [*causation.ancestors, causation.focus]
        self._unknown = causation.unknown_cause
        self._children = _by_cause([*self._chain[1:], *causation.descendants])
        self._boxes: list[Box] = []
        self._arrows: list[Arrow] = []
        self._placed = {step.key for step in self._chain[:1]}

    def picture(self) -> Picture:
        cause = self._box(0, 0, "unknown", "caused by", self._unknown, None) if self._unknown else None
        rows = self._place(self._chain[0], 1 if cause else 0, 0, cause)
        right = max(box.x + box.width for box in self._boxes)
        return Picture(right + MARGIN, MARGIN + rows * ROW, self._boxes, self._arrows)

    def _place(self, step: Step, column: int, row: int, source: Box | None) -> int:
        """Draw a command and everything that follows from it. Return the number of rows that they take."""
        kind = "focus" if step.key == self._focus.key else "command"
        where = f"{step.aggregate_root_id} v{step.version}" if step.version is not None else step.aggregate_root_id
        own = self._box(column, row, kind, step.command_type, where, step)
        self._connect(source, own)
        used = 0
        for happened in self._drawn(step):
            name = "refused" if happened.is_refusal else "event"
            box = self._box(column + 1, row + used, name, happened.type_name, happened.id, step)
            self._connect(own, box)
            used += self._place_all(happened.id, column + 2, row + used, box) or 1
        used += self._place_all(step.command_id, column + 2, row + used, own)
        return max(used, 1)

    def _place_all(self, cause: str, column: int, row: int, source: Box) -> int:
        used = 0
        for child in self._children.get(cause, ()):
            if child.key not in self._placed:  # metadata may name causes in a circle
                self._placed.add(child.key)
                used += self._place(child, column, row + used, source)
        return used

    def _drawn(self, step: Step) -> list[Happened]:
        shown = [one for index, one in enumerate(step.happened) if index < MOST_EVENTS or one.id in self._children]
        rest = len(step.happened) - len(shown)
        return [*shown, Happened("", f"… and {rest:,} more events")] if rest else shown

    def _box(self, column: int, row: int, kind: str, name: str, detail: str, step: Step | None) -> Box:
        x, y = MARGIN + column * COLUMN, MARGIN + row * ROW
        box = Box(x, y, kind, _short(name), _short(detail), f"{name}\n{detail}", step)
        self._boxes.append(box)
        return box

    def _connect(self, source: Box | None, target: Box) -> None:
        if source is not None:
            middle = HEIGHT // 2
            self._arrows.append(Arrow(source.x + WIDTH, source.y + middle, target.x, target.y + middle))


def _by_cause(steps: Sequence[Step]) -> Mapping[str, Sequence[Step]]:
    found: dict[str, list[Step]] = {}
    for step in steps:
        if step.metadata.causation_id:
            found.setdefault(step.metadata.causation_id, []).append(step)
    return found


def _short(text: str) -> str:
    """Cut a text at its beginning: ids begin alike, and names begin with their app."""
    return text if len(text) <= _CHARACTERS else f"…{text[1 - _CHARACTERS :]}"
