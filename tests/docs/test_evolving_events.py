"""The page on changing events shows the output of ``enode eventschemas --check`` for the page's classes."""

from __future__ import annotations

from collections.abc import Mapping

from enode_django.serialization.schema_history import CurrentSchema, RecordedSchema, compare
from tests.docs.blocks import blocks
from tests.docs.pages import DOCS

PAGE = DOCS / "howto" / "evolving-events.md"


def now(name: str, version: int, fields: Mapping[str, str], *upcast_from: int) -> CurrentSchema:
    return CurrentSchema(name=name, app="shop", schema_version=version, fields=fields, upcast_from=upcast_from)


def before(name: str, versions: Mapping[int, Mapping[str, str]]) -> RecordedSchema:
    return RecordedSchema(name=name, app="shop", versions=versions)


def test_the_problems_that_the_page_shows_are_those_that_are_found() -> None:
    weighed = {"grams": "int", "scales": "str"}
    current = [
        now("shop.Ordered", 1, {"gift": "Default[bool]", "item": "str"}),
        now("shop.Weighed", 3, weighed, 1),
    ]
    recorded = [
        before("shop.Ordered", {1: {"item": "str"}}),
        before("shop.Weighed", {1: {"weight": "str"}, 2: {"weight": "Decimal"}, 3: weighed}),
        before("shop.Labelled", {1: {}}),
    ]
    found = compare({one.name: one for one in recorded}, current)
    (shown,) = (block.text for block in blocks(PAGE) if "CommandError" in block.text)
    lines = shown.removeprefix("CommandError: ").splitlines()
    assert [f"{problem.name} {problem.text}" for problem in found] == lines


def test_one_class_stands_for_many_whose_events_do_not_count_any_more() -> None:
    forgotten = CurrentSchema(
        name="shop.Forgotten", app="shop", schema_version=2, fields={}, aliases=("shop.Labelled", "shop.Stamped")
    )
    recorded = [before("shop.Labelled", {1: {"text": "str"}}), before("shop.Stamped", {1: {"ink": "str"}})]
    assert all(problem.is_news for problem in compare({one.name: one for one in recorded}, [forgotten]))
