"""Rows that wait are stored with the values that each alone would have."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.db import models
from django.db.models import F, Value
from django.db.models.functions import Now, Upper

from tests.following.domain import Added
from tests.following.inserting import Run, a_line, accounts, inserted, statements
from tests.following.lines import Colour, Line, Lines, Named, OtherLines, Part, Shelf

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "values",
    [
        {"amount": Decimal("1.005")},
        {"amount": 3, "note": Colour.RED},
        {"amount": "2.5", "note": 5},
        {"amount": 1.5, "version": True},
        {"data": {"a": [1, None]}, "booked_at": NOON},
        {"data": Value(None, models.JSONField())},
        {"data": "text", "booked_at": "2026-03-29 12:00:00+02:00"},
        {"id": 10**9},
        {"id": str(10**9)},
        {"note": Upper(Value("x"))},
        {"booked_at": Now() - Now() + Value(NOON)},
    ],
)
def test_rows_are_what_each_alone_would_be(run: Run, values: dict[str, Any]) -> None:
    def alone(event: Added, **given: Any) -> Line:
        return Line.objects.create(account=event.aggregate_root_id, **given)

    stored = []
    for projection, make in ((Lines, a_line), (OtherLines, alone)):

        def script(event: Added, make: Callable[..., Line] = make) -> Line:
            return make(event, **(values if event.aggregate_root_id == "b" else {}))

        assert run(script, projection=projection) == {}
        row = Line.objects.filter(account="b").values().get()
        del row["made_at"]
        stored.append(row if "id" in values else {**row, "id": None})
        Line.objects.all().delete()
    assert stored[0] == stored[1]


def test_an_expression_that_cannot_be_inserted_is_the_handlers_error(run: Run) -> None:
    failed = run(lambda event: a_line(event, note=F("account") if event.aggregate_root_id == "b" else ""))
    assert list(failed) == ["b"]
    assert "F() expressions" in failed["b"]
    assert accounts() == ["a", "c"]


def test_keys_may_be_natural_or_made_by_default_and_rows_refer_to_each_other(run: Run) -> None:
    def family(event: Added) -> None:
        line = Line.objects.create(account=event.aggregate_root_id)
        shelf, _ = Shelf.objects.get_or_create(number=1)
        whole = inserted(Part(line=line, shelf=shelf))
        inserted(Part(line=line, whole=whole))
        inserted(Named(name=event.aggregate_root_id, number=line.pk))

    assert run(family) == {}
    assert {part.whole.line.account for part in Part.objects.exclude(whole=None) if part.whole} == {"a", "b", "c"}
    assert {named.name: named.number for named in Named.objects.all()} == {
        line.account: line.pk for line in Line.objects.all()
    }
    assert Part.objects.filter(shelf=1).count() == 3


def test_choices_and_keys_of_several_types_wait(run: Run) -> None:
    Shelf.objects.create(number=1)
    first = Line.objects.create(account="first")

    def create(event: Added) -> None:
        a_line(event, note=Colour.RED if event.aggregate_root_id == "b" else "blue")
        inserted(Part(line=first, shelf_id=1 if event.aggregate_root_id == "b" else None))

    assert run(create) == {}
    assert statements(Line) == 2, "one of them is the first line"
    assert statements(Part) == 1
