from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from enode_django.admin.values import DEEPEST, MOST_CHARACTERS, MOST_LINES, lines_of, text_of

SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats() | st.datetimes()
KEYS = st.text(max_size=5) | st.integers() | st.binary(max_size=5) | st.none()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=10)


@given(VALUES)
def test_any_value_has_lines_of_text(value: Any) -> None:
    for path, text, _ in lines_of(value):
        assert isinstance(path, str)
        assert isinstance(text, str)


def test_a_value_is_found_by_its_path() -> None:
    lines = lines_of({"order": [{"item": "tea", "prices": {2026: 3}}], "note": None, "empty": []})
    assert [line[:2] for line in lines] == [
        ("order[0].item", "tea"),
        ("order[0].prices[2026]", "3"),
        ("note", "None"),
        ("empty", "[]"),
    ]


def test_what_is_too_long_or_too_deep_is_cut_and_says_so() -> None:
    assert text_of("x" * 50_000) == f"{'x' * MOST_CHARACTERS} … (50,000 characters)"
    assert text_of(b"\x00" * 1_000).endswith(" … (1,000 bytes)")
    assert "without repr" in text_of(10**5_000)
    many = lines_of({"all": list(range(5_000))})
    assert len(many) == MOST_LINES + 1
    assert "only the first" in many[-1].text
    deep: Any = "core"
    for _ in range(500):
        deep = [deep]
    (line,) = lines_of(deep)
    assert line.path == "[0]" * DEEPEST
