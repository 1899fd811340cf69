"""Whatever an aggregate or a command is called, a cause leads back to it."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from enode_django.history.steps import Place, keys_of_refusal, place_of_event

IDS = st.text(st.sampled_from("a/0refusd") | st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
VERSIONS = st.integers(1, 10**18 - 1)


@given(IDS, VERSIONS, st.integers(0, 100))
def test_the_id_of_an_event_says_where_it_is(root: str, version: int, index: int) -> None:
    assert place_of_event(f"{root}/{version}/{index}") == Place(root, version)


@given(IDS, IDS)
@example("a/refused/b", "c")
def test_the_id_of_a_refusal_says_whose_it_is(root: str, command: str) -> None:
    assert (command, root) in list(keys_of_refusal(f"{root}/refused/{command}"))


@given(st.text())
def test_any_other_text_is_looked_at_without_harm(text: str) -> None:
    place_of_event(text)
    list(keys_of_refusal(text))
