"""A difference says all that is not the same, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from enode_django.history.differences import Change, differences

SCALARS = st.sampled_from([None, True, False, 0, 1, -7, "", "text", b"", b"x", Decimal(1), Decimal("1.5"), 1.5])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
STATES = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)


def changed(value: Any, changes: Iterable[Change]) -> Any:
    """Return the value with the changes made. Removals from a list go from its end backwards."""
    whole = {"": copy.deepcopy(value)}
    for change in sorted(changes, key=lambda one: one.kind == "removed"):
        *way, last = ("", *change.path)
        place: Any = whole
        for key in way:
            place = place[key]
        if change.kind == "removed":
            place[last] = _GONE
        elif isinstance(place, list) and last == len(place):
            place.append(change.after)
        else:
            place[last] = change.after
    return _without_gone(whole[""])


_GONE = object()


def _without_gone(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_gone(item) for key, item in value.items() if item is not _GONE}
    return [_without_gone(item) for item in value if item is not _GONE] if isinstance(value, list) else value


@given(STATES, STATES)
def test_the_changes_lead_from_one_to_the_other(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert changed(one, differences(one, other)) == other


@given(STATES)
def test_what_is_the_same_has_no_difference(state: dict[str, Any]) -> None:
    assert list(differences(state, copy.deepcopy(state))) == []


@given(STATES, STATES)
def test_the_way_back_says_the_opposite(one: dict[str, Any], other: dict[str, Any]) -> None:
    opposite: dict[str, Any] = {"added": "removed", "removed": "added", "changed": "changed"}
    there = {
        (change.path, opposite[change.kind], repr(change.after), repr(change.before))
        for change in differences(one, other)
    }
    back = {(change.path, change.kind, repr(change.before), repr(change.after)) for change in differences(other, one)}
    assert there == back


def test_true_is_not_one() -> None:
    assert [change.path for change in differences({"a": 1, "b": [0]}, {"a": True, "b": [0.0]})] == [("a",), ("b", 0)]
