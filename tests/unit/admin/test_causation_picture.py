from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from enode_django.admin.causation_picture import MOST_EVENTS, Box, picture_of
from enode_django.domain.metadata import Metadata
from enode_django.history import Causation, Happened, Step


def step(name: str, cause: str | None = None, events: int = 1) -> Step:
    happened = [Happened(f"{name}/1/{index}", "some.Event") for index in range(events)]
    metadata = Metadata(causation_id=cause)
    return Step(name, "some.Command", "some.Type", name, 1, datetime.now(UTC), metadata, happened)


@st.composite
def causations(draw: st.DrawFn) -> Causation:
    """Draw steps. Each is caused by an event or the command of an earlier one."""
    steps = [step("0", draw(st.sampled_from([None, "somewhere"])), draw(st.integers(0, 3)))]
    for number in range(1, draw(st.integers(1, 12))):
        cause = draw(st.sampled_from(draw(st.sampled_from(steps)).causes))
        steps.append(step(str(number), cause, draw(st.integers(0, 3))))
    return Causation(steps[0], [], steps[0].metadata.causation_id or "", steps[1:], [])


def commands_of(boxes: Sequence[Box]) -> list[str]:
    return [box.step.command_id for box in boxes if box.step and box.kind in ("command", "focus")]


@given(causations())
def test_every_command_has_a_box_and_no_two_boxes_meet(causation: Causation) -> None:
    picture = picture_of(causation)
    wanted = [causation.focus, *causation.descendants]
    assert sorted(commands_of(picture.boxes)) == sorted(one.command_id for one in wanted)
    places = {(box.x, box.y) for box in picture.boxes}
    assert len(places) == len(picture.boxes)
    for box in picture.boxes:
        assert box.x + box.width <= picture.width
        assert box.y + box.height <= picture.height


@given(causations())
def test_every_box_but_the_first_has_one_arrow_that_comes_from_the_left(causation: Causation) -> None:
    picture = picture_of(causation)
    ends = [(arrow.x2, arrow.y2) for arrow in picture.arrows]
    assert sorted(ends) == sorted((box.x, box.y + box.height // 2) for box in picture.boxes[1:])
    sides = {(box.x + box.width, box.y + box.height // 2) for box in picture.boxes}
    for arrow in picture.arrows:
        assert arrow.x1 < arrow.x2
        assert (arrow.x1, arrow.y1) in sides


def test_metadata_that_goes_round_in_circles_is_drawn_once() -> None:
    one, other = step("a", "b/1/0"), step("b", "a/1/0")
    picture = picture_of(Causation(one, [other], "a/1/0", [other, one], []))
    assert sorted(commands_of(picture.boxes)) == ["a", "b"]


def test_of_many_events_those_are_drawn_that_something_follows_from() -> None:
    focus = step("a", events=1_000)
    last = step("b", "a/1/999")
    picture = picture_of(Causation(focus, [], "", [last], []))
    assert commands_of(picture.boxes) == ["a", "b"]
    assert len(picture.boxes) == 1 + MOST_EVENTS + 1 + 1 + 2
    assert f"… and {1_000 - MOST_EVENTS - 1} more events" in [box.name for box in picture.boxes]
