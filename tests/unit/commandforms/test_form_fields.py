from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django import forms
from django.test import override_settings

from enode_django.exceptions import DefinitionError
from enode_django.forms import CommandForm, command_form
from tests.unit.commandforms.domain import Everything, Fill, Metal, Mood, Optional, Size

KEY = "0190a1b2-0000-7000-8000-000000000001"
ENTERED = {
    "flag": "on",
    "number": "-12",
    "ratio": "0.5",
    "text": "hé <b>",
    "amount": "12.50",
    "moment": "2026-01-31T12:00:00",
    "day": "2026-01-31",
    "key": KEY,
    "blob": "YWI=",
    "metal": "WHITE_GOLD",
    "mood": "BAD",
    "sizes": '[{"width": 2}, {"width": 3, "height": 4}]',
    "tags": '["a", "b"]',
    "rates": '{"eur": "1.10"}',
    "pair": '[1, "x"]',
    "noted": "n",
}
VALUES: dict[str, Any] = {
    "flag": True,
    "number": -12,
    "ratio": 0.5,
    "text": "hé <b>",
    "amount": Decimal("12.50"),
    "moment": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "day": date(2026, 1, 31),
    "key": UUID(KEY),
    "blob": b"ab",
    "metal": Metal.WHITE_GOLD,
    "mood": Mood.BAD,
    "sizes": [Size(2), Size(3, 4)],
    "tags": {"a", "b"},
    "rates": {"eur": Decimal("1.10")},
    "pair": (1, "x"),
    "noted": "n",
}


def command_of(form: CommandForm) -> Any:
    assert form.is_valid(), form.errors
    return form.command()


def test_every_type_of_field_is_entered_and_arrives() -> None:
    command = command_of(command_form(Everything)(ENTERED, aggregate_root_id="a"))
    assert {name: getattr(command, name) for name in VALUES} == VALUES
    assert command.aggregate_root_id == "a"


def test_fields_may_be_named_by_a_list_as_in_a_form_of_a_model() -> None:
    assert list(command_form(Everything, fields=["text", "day"])().fields)[:2] == ["text", "day"]
    form = command_form(Everything, exclude=["day"])
    assert "day" not in form().fields
    assert form is command_form(Everything, exclude=("day",)), "it is made once"


@override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin")
def test_a_moment_has_a_time_zone_without_use_tz_too() -> None:
    command = command_of(command_form(Everything)(ENTERED, aggregate_root_id="a"))
    assert command.moment == datetime(2026, 1, 31, 11, tzinfo=UTC)


def test_what_is_given_at_first_is_shown_so_that_it_can_be_entered() -> None:
    form = command_form(Everything)(initial={**VALUES, "flag": False})
    shown = {name: form[name].value() for name in VALUES}
    assert (shown["metal"], shown["mood"], shown["blob"]) == ("WHITE_GOLD", "BAD", "YWI=")
    assert shown["sizes"] == '[{"width": 2, "height": 1}, {"width": 3, "height": 4}]'
    again = command_form(Everything)({**ENTERED, **{n: v for n, v in shown.items() if isinstance(v, str)}})
    assert command_of(again).sizes == VALUES["sizes"]
    html = str(form)
    assert '<option value="BAD" selected>In bad mood</option>' in html
    assert '<option value="COPPER">Copper</option>' in html
    assert 'value="2026-01-31T12:00:00"' in html
    assert "<b>" not in html


def test_what_is_left_empty_is_none_or_the_default() -> None:
    empty = dict.fromkeys(["flag", "number", "text", "metal", "sizes", "amount", "title", "count", "mood", "more"], "")
    command = command_of(command_form(Optional)(empty, aggregate_root_id="a"))
    assert (command.flag, command.number, command.text, command.metal, command.sizes) == (None,) * 5
    assert (command.amount, command.title) == (None, "")
    assert (command.count, command.mood, command.more) == (7, Mood.GOOD, {"a": 1})


def test_what_was_not_sent_has_its_default() -> None:
    command = command_of(command_form(Optional)({}, aggregate_root_id="a"))
    assert (command.amount, command.title, command.count, command.text) == (Decimal(3), "untitled", 7, None)


def test_defaults_are_shown() -> None:
    form = command_form(Optional)()
    assert (form["title"].value(), form["mood"].value(), form["more"].value()) == ("untitled", "GOOD", '{"a": 1}')


@pytest.mark.parametrize(
    ("name", "entered", "message"),
    [
        ("number", "1.5", "Enter a whole number."),
        ("number", "9" * 5000, "Enter a whole number."),
        ("amount", "NaN", "Enter a number."),
        ("amount", "Infinity", "Enter a number."),
        ("amount", "1e999999999", "Ensure that there are no more than 1000 digits in total."),
        ("amount", "1e-999999999", "Ensure that there are no more than 1000 digits in total."),
        ("ratio", "nan", "Enter a number."),
        ("text", "a\0b", "Null characters are not allowed."),
        ("text", "", "This field is required."),
        ("metal", "Lead", "Select a valid choice. Lead is not one of the available choices."),
        ("metal", "1", "Select a valid choice. 1 is not one of the available choices."),
        ("key", "x", "Enter a valid UUID."),
        ("moment", "yesterday", "Enter a valid date/time."),
        ("blob", "?", "'?' is no base64: Only base64 data is allowed"),
        ("sizes", "", "This field is required."),
        ("sizes", "[", "Enter valid JSON."),
        ("sizes", "[" * 100_000, "Enter valid JSON."),
        ("sizes", "9" * 5000, "Enter valid JSON."),
        ("sizes", '{"width": 1}', "expected an array, got {'width': 1}"),
        ("sizes", '[{"width": "1"}]', "0.width: expected a whole number, got '1'"),
        ("sizes", '[{"width": -1}]', "0: a width is not negative"),
        ("sizes", '[{"width": 1, "depth": 2}]', "0.depth: there is no such field; known are width, height"),
        ("rates", '{"eur": NaN}', 'eur: expected a decimal number as a string, such as "12.50", got nan'),
        ("tags", '["a", "a"]', "an item is there twice"),
        ("pair", "[1]", "expected an array of 2 items, got [1]"),
    ],
)
def test_what_does_not_fit_is_an_error_of_its_field(name: str, entered: str, message: str) -> None:
    form = command_form(Everything)({**ENTERED, name: entered}, aggregate_root_id="a")
    assert not form.is_valid()
    assert form.errors == {name: [message]}
    assert "<b>" not in str(form)


def test_empty_lists_are_values() -> None:
    entered = {**ENTERED, "sizes": "[]", "tags": "[]", "rates": "{}"}
    command = command_of(command_form(Everything)(entered, aggregate_root_id="a"))
    assert (command.sizes, command.tags, command.rates) == ([], set(), {})


def test_meta_chooses_and_names_fields_and_the_body_replaces_them() -> None:
    class Short(CommandForm):
        noted = forms.ChoiceField(choices=[("n", "N"), ("m", "M")])
        sure = forms.BooleanField()

        class Meta:
            command = Everything
            exclude = ("blob", "sizes")
            labels = {"text": "What it says"}
            help_texts = {"text": "In few words"}
            widgets = {"text": forms.Textarea}

    form = Short()
    assert set(form.fields) == {*VALUES, "sure", "command_id"} - {"blob", "sizes"}
    assert (form["text"].label, form["text"].help_text) == ("What it says", "In few words")
    assert isinstance(form.fields["text"].widget, forms.Textarea)
    assert isinstance(form.fields["noted"], forms.ChoiceField)
    given = {"blob": b"z", "sizes": []}
    command = command_of(Short({**ENTERED, "sure": "on"}, aggregate_root_id="a", values=given))
    assert (command.blob, command.sizes, command.noted) == (b"z", [], "n")


def test_a_form_for_no_command_or_an_unknown_field_is_refused() -> None:
    with pytest.raises(DefinitionError, match="give it a class of commands"):
        command_form(int)  # type: ignore[type-var, arg-type]
    with pytest.raises(
        DefinitionError, match=r"names 'coin', which Fill has not; it has \('aggregate_root_id', 'coins'\)"
    ):
        command_form(Fill, ("coin",))
    with pytest.raises(DefinitionError, match="names 'coin'"):
        command_form(Fill, None, ("coin",))


@pytest.mark.parametrize("option", ["fields", "exclude"])
def test_a_text_where_a_list_of_names_belongs_is_refused_as_a_whole(option: str) -> None:
    with pytest.raises(
        DefinitionError, match=rf"Meta has {option} = '__all__'; give it a list of names, or leave it out"
    ):
        type("All", (CommandForm,), {"Meta": type("Meta", (), {"command": Fill, option: "__all__"})})


def test_a_misspelt_option_of_a_form_is_refused_since_it_would_show_what_it_is_to_hide() -> None:
    with pytest.raises(DefinitionError, match=r"Short\.Meta has 'exlude', which is no option; write exclude"):

        class Short(CommandForm):
            class Meta:
                command = Fill
                exlude = ("coins",)

    class Named(CommandForm):
        class Meta:
            command = Fill
            ref_name = "other packages have options of their own"

    assert "coins" in Named.base_fields
