from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from enode_django.serialization.schema_history import CurrentSchema, Problem, RecordedSchema, compare, record

NAME = "bank.Deposited"
Fields = Mapping[str, str]


def current(
    version: int, fields: Fields, *, name: str = NAME, steps: Collection[int] = (), aliases: tuple[str, ...] = ()
) -> CurrentSchema:
    return CurrentSchema(
        name=name, app="bank", schema_version=version, fields=fields, aliases=aliases, upcast_from=steps
    )


def recorded(versions: Mapping[int, Fields], *, name: str = NAME, aliases: tuple[str, ...] = ()) -> RecordedSchema:
    return RecordedSchema(name=name, app="bank", versions=versions, aliases=aliases)


def problems(now: CurrentSchema | None, *before: RecordedSchema) -> list[Problem]:
    return compare({one.name: one for one in before}, [now] if now else [])


def texts(now: CurrentSchema | None, *before: RecordedSchema) -> list[str]:
    """Return the texts of the problems that recording does not settle."""
    return [problem.text for problem in problems(now, *before) if not problem.is_news]


AMOUNT = {"amount": "Decimal"}
SAFE: list[tuple[Fields, Fields]] = [
    (AMOUNT, AMOUNT),
    ({**AMOUNT, "note": "str"}, AMOUNT),
    (AMOUNT, {**AMOUNT, "note": "Default[str]"}),
    ({"amount": "int"}, {"amount": "int | None"}),
    ({"kind": "Enum('a')"}, {"kind": "Enum('a', 'b')"}),
    ({"at": "Fields(street=str)"}, {"at": "Fields(floor=Default[int], street=str)"}),
    ({"amount": "Default[int]"}, {"amount": "int"}),
    ({**AMOUNT, "note": "str"}, {**AMOUNT, "count": "Default[int]"}),
]


@pytest.mark.parametrize(("old", "new"), SAFE)
def test_new_version_that_defaults_read_needs_no_upcaster(old: Fields, new: Fields) -> None:
    assert texts(current(2, new), recorded({1: old})) == []
    assert texts(current(2, new), recorded({1: old, 2: new})) == []


NEEDS_UPCASTER: list[tuple[Fields, Fields, str]] = [
    ({"sum": "Decimal"}, AMOUNT, "amount is new and has no default"),
    (AMOUNT, {**AMOUNT, "currency": "str"}, "currency is new and has no default"),
    (AMOUNT, {"amount": "int"}, "amount was Decimal and is int"),
    ({"amount": "int | None"}, {"amount": "int"}, r"amount was int \| None and is int"),
    ({"kind": "Enum('a', 'b')"}, {"kind": "Enum('a')"}, "kind was Enum"),
    ({"at": "Fields(street=str)"}, {"at": "Fields(city=str, street=str)"}, "at was Fields"),
    ({"sum": "Decimal"}, {"amount": "Default[Decimal]"}, "sum of version 1 looks as if it were renamed to amount"),
]


@pytest.mark.parametrize(("old", "new", "text"), NEEDS_UPCASTER)
def test_new_version_that_defaults_cannot_read_needs_an_upcaster(old: Fields, new: Fields, text: str) -> None:
    before = recorded({1: old, 2: new})
    (problem,) = problems(current(2, new), before)
    assert not problem.is_news
    with pytest.raises(AssertionError, match=rf"{text}.*@upcasts\(Deposited, from_version=1\)"):
        raise AssertionError(problem.text)
    assert problems(current(2, new, steps=[1]), before) == []


@pytest.mark.parametrize(("old", "new"), [(old, new) for old, new in SAFE[1:]])
def test_schema_that_changed_without_a_new_version_is_found(old: Fields, new: Fields) -> None:
    found = texts(current(3, new), recorded({3: old}))
    if old.keys() == new.keys() and old == {"amount": "Default[int]"}:
        assert found == []  # stored values are the same with or without a default
    else:
        assert len(found) == 1
        assert "has changed without a new version" in found[0]
        assert "schema_version = 4" in found[0]


def test_every_change_is_named() -> None:
    (text,) = texts(
        current(1, {"a": "int", "b": "int", "d": "int"}), recorded({1: {"a": "int", "b": "str", "c": "int"}})
    )
    assert "(b was str and is int; c is gone; d is new)" in text


def test_what_is_new_only_needs_recording() -> None:
    assert [(one.name, one.is_news) for one in problems(current(1, AMOUNT))] == [(NAME, True)]
    (unrecorded,) = problems(current(2, AMOUNT), recorded({1: AMOUNT}))
    assert unrecorded == (NAME, "has version 2, which is not recorded yet", True)
    assert problems(current(2, AMOUNT), recorded({1: AMOUNT, 2: AMOUNT})) == []


def test_version_that_went_back_is_found() -> None:
    (text,) = texts(current(1, AMOUNT), recorded({1: AMOUNT, 2: AMOUNT}))
    assert "schema_version 1, and 2 is recorded" in text


def test_class_that_is_gone_is_found_unless_another_has_its_name_as_an_alias() -> None:
    (problem,) = problems(None, recorded({1: AMOUNT}))
    assert (problem.name, problem.is_news) == (NAME, False)
    assert "is gone" in problem.text
    renamed = current(1, AMOUNT, name="bank.PaidIn", aliases=(NAME,))
    (problem,) = problems(renamed, recorded({1: AMOUNT}))
    assert problem == ("bank.PaidIn", f"is recorded as {NAME!r} still", True)


def test_renamed_class_is_judged_by_the_versions_of_its_old_name() -> None:
    renamed = current(2, {"amount": "int"}, name="bank.PaidIn", aliases=(NAME,))
    (text,) = texts(renamed, recorded({1: AMOUNT}))
    assert "amount was Decimal and is int: version 1 cannot be read" in text
    changed = current(1, {"amount": "int"}, name="bank.PaidIn", aliases=(NAME,))
    (text,) = texts(changed, recorded({1: AMOUNT}))
    assert "has changed without a new version" in text


def test_alias_that_is_lost_is_found_and_one_that_is_new_is_to_be_recorded() -> None:
    (text,) = texts(current(1, AMOUNT), recorded({1: AMOUNT}, aliases=("bank.Old",)))
    assert "has lost its alias 'bank.Old'" in text
    (news,) = problems(current(1, AMOUNT, aliases=("bank.Old",)), recorded({1: AMOUNT}))
    assert news == (NAME, "has aliases that are not recorded yet: 'bank.Old'", True)


def test_each_older_version_is_judged_up_to_its_next_upcaster() -> None:
    versions: dict[int, Fields] = {
        1: {"sum": "str"},
        2: {"sum": "str", "note": "Default[str]"},
        3: {"amount": "Decimal", "note": "Default[str]"},
        4: {"amount": "Decimal", "note": "Default[str]", "tags": "Default[list[str]]"},
    }
    now = versions[4]
    assert texts(current(4, now, steps=[1, 2]), recorded(versions)) == []
    assert texts(current(4, now, steps=[1, 2, 3]), recorded(versions)) == []
    (text,) = texts(current(4, now, steps=[2]), recorded(versions))
    assert text.startswith("note is new and has no default in version 2, and the upcaster from there would get")
    assert "from_version=1" in text
    found = texts(current(4, now, steps=[1]), recorded(versions))
    assert found == ["amount is new and has no default: version 2 cannot be read; write an upcaster with "
                     "@upcasts(Deposited, from_version=2)"]  # fmt: skip


def test_version_that_was_never_recorded_is_not_judged() -> None:
    assert texts(current(4, AMOUNT, steps=[2]), recorded({1: {"sum": "int"}, 4: AMOUNT})) == []
    assert texts(current(3, AMOUNT), recorded({3: AMOUNT})) == []


def test_recorded_schemas_are_no_problem_afterwards_and_older_versions_are_kept() -> None:
    first = record({}, [current(1, {"sum": "Decimal"})])
    second = record(first, [current(2, AMOUNT, steps=[1])])
    assert second[NAME].versions == {1: {"sum": "Decimal"}, 2: AMOUNT}
    assert compare(second, [current(2, AMOUNT, steps=[1])]) == []
    renamed = current(2, AMOUNT, steps=[1], name="bank.PaidIn", aliases=("bank.Older", NAME))
    third = record(second, [renamed])
    assert list(third) == ["bank.PaidIn"]
    assert third["bank.PaidIn"].versions == second[NAME].versions
    assert compare(third, [renamed]) == []
    assert [problem.is_news for problem in compare(third, [current(2, AMOUNT, steps=[1])])] == [True, False]


def test_of_two_classes_that_become_one_the_versions_of_its_own_name_are_kept() -> None:
    before = {NAME: recorded({1: AMOUNT}), "bank.Old": recorded({1: {"sum": "int"}}, name="bank.Old")}
    result = record(before, [current(2, AMOUNT, aliases=("bank.Old",))])
    assert result[NAME].versions == {1: AMOUNT, 2: AMOUNT}
    assert list(result) == [NAME]


def test_only_the_chosen_apps_are_compared_and_recorded() -> None:
    other = CurrentSchema(name="notes.Noted", app="notes", schema_version=1, fields={})
    gone = RecordedSchema(name="notes.Gone", app="notes", versions={1: {}})
    moved = RecordedSchema(name="notes.Noted", app="bank", versions={1: {}})
    assert {one.name for one in compare({"notes.Gone": gone}, [current(1, AMOUNT), other])} == {
        NAME, "notes.Noted", "notes.Gone",
    }  # fmt: skip
    assert [one.name for one in compare({"notes.Gone": gone}, [current(1, AMOUNT), other], {"bank"})] == [NAME]
    assert compare({"notes.Noted": moved}, [other], {"bank"}) == []
    assert record({"notes.Gone": gone}, [current(1, AMOUNT), other], {"bank"}).keys() == {NAME, "notes.Gone"}


def test_record_survives_json() -> None:
    one = recorded({1: AMOUNT, 10: {**AMOUNT, "note": "Default[str]"}, 2: AMOUNT}, aliases=("bank.Old",))
    text = json.dumps(one.as_json())
    assert RecordedSchema.from_json(NAME, json.loads(text)) == one
    assert json.loads(text)["schema_version"] == 10
    assert list(json.loads(text)["versions"]) == ["1", "2", "10"]


@pytest.mark.parametrize(
    "value", [None, {}, {"versions": {}}, {"app": "bank", "aliases": [], "versions": {}}, {"versions": {"x": {}}}]
)
def test_what_is_no_record_is_refused(value: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        RecordedSchema.from_json(NAME, value)


def test_field_that_went_and_came_back_is_found() -> None:
    versions: dict[int, Fields] = {1: {"note": "str"}, 2: {}, 3: {"note": "Default[str]"}}
    (text,) = texts(current(3, versions[3]), recorded(versions))
    assert text.startswith("note of version 1 went and came back")
    assert texts(current(3, versions[3], steps=[1]), recorded(versions)) == []


def test_field_that_comes_back_behind_the_next_upcaster_is_found() -> None:
    versions: dict[int, Fields] = {1: {"note": "str"}, 2: {}, 3: {}, 4: {"note": "Default[str]"}}
    (text,) = texts(current(4, versions[4], steps=[2]), recorded(versions))
    assert text.startswith("note of version 1 went and came back")
    assert texts(current(4, versions[4], steps=[1, 2]), recorded(versions)) == []


def test_field_that_went_for_good_is_of_no_matter() -> None:
    versions: dict[int, Fields] = {1: {"note": "str"}, 2: {}, 3: {"note": "Default[str]"}, 4: {}}
    assert texts(current(4, versions[4]), recorded(versions)) == []


def test_renamed_field_is_found_also_where_its_default_came_later() -> None:
    versions: dict[int, Fields] = {1: {"sum": "int"}, 2: {"amount": "int"}, 3: {"amount": "Default[int]"}}
    (text,) = texts(current(3, versions[3]), recorded(versions))
    assert text.startswith("sum of version 1 looks as if it were renamed to amount")
