from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from django.forms import formset_factory
from django.http import QueryDict
from django.test import override_settings

from enode_django import Command, CommandStatus, execute_command
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import DefinitionError
from enode_django.forms import CommandForm, command_form
from enode_django.testing import inline
from enode_django.testing.inline import InlineCommandBus
from tests.unit.commandforms.domain import Fill, Take

TakeForm = command_form(Take)
FillForm = command_form(Fill)


@pytest.fixture
def bus() -> Iterator[InlineCommandBus]:
    with inline(MemoryEventStore()) as bus:
        execute_command(Fill("jar", coins=10))
        yield bus


def token_of(form: CommandForm) -> str:
    """Return the command id that the page hides."""
    found = re.search(r'name="command_id" value="([^"]+)"', str(form))
    assert found
    return found[1]


def versions(bus: InlineCommandBus) -> list[int | None]:
    return [record.version for record in bus.store.load("jar")]


def test_a_form_that_is_sent_twice_takes_effect_once(bus: InlineCommandBus) -> None:
    sent = {"coins": "3", "command_id": token_of(TakeForm(aggregate_root_id="jar"))}
    results = [TakeForm(sent, aggregate_root_id="jar").execute() for _ in range(2)]
    assert results[0] == results[1]
    assert results[0] is not None
    assert results[0].value == 7
    assert versions(bus) == [1, 2]


def test_a_form_that_was_changed_before_it_was_sent_again_is_another_command(bus: InlineCommandBus) -> None:
    token = token_of(TakeForm(aggregate_root_id="jar"))
    for coins in ("3", "4"):
        TakeForm({"coins": coins, "command_id": token}, aggregate_root_id="jar").execute()
    assert versions(bus) == [1, 2, 3]


def test_each_page_makes_a_command_of_its_own(bus: InlineCommandBus) -> None:
    for _ in range(2):
        sent = {"coins": "1", "command_id": token_of(TakeForm(aggregate_root_id="jar"))}
        TakeForm(sent, aggregate_root_id="jar").execute()
    for _ in range(2):
        TakeForm({"coins": "1"}, aggregate_root_id="jar").execute()
    assert versions(bus) == [1, 2, 3, 4, 5]


def test_a_new_aggregate_that_is_sent_twice_is_one(bus: InlineCommandBus) -> None:
    sent = {"coins": "3", "command_id": token_of(FillForm())}
    first, again = FillForm(sent).execute(), FillForm(sent).execute()
    assert first == again
    assert first is not None
    assert first.status is CommandStatus.SUCCESS
    other = FillForm({**sent, "command_id": token_of(FillForm())}).execute()
    assert other is not None
    assert other.aggregate_root_id != first.aggregate_root_id


@pytest.mark.parametrize("forged", ["c1", "0190a1b2-0000-7000-8000-000000000001:x", "a:b:c", ":", "\ud800"])
def test_a_forged_token_is_refused_and_replaced(bus: InlineCommandBus, forged: str) -> None:
    form = TakeForm({"coins": "3", "command_id": forged}, aggregate_root_id="jar")
    assert not form.is_valid()
    assert form.errors == {"command_id": ["This page is out of date. Load it again, check it, and send it."]}
    mended = {"coins": "3", "command_id": token_of(form)}
    assert TakeForm(mended, aggregate_root_id="jar").is_valid()


def test_a_token_is_good_for_its_class_of_commands_and_its_secret_only(bus: InlineCommandBus) -> None:
    token = token_of(FillForm())
    assert not TakeForm({"coins": "3", "command_id": token}, aggregate_root_id="jar").is_valid()
    with override_settings(SECRET_KEY="another"):
        assert not FillForm({"coins": "3", "command_id": token}).is_valid()


def named(name: str, *former: str) -> type[CommandForm]:
    class Shake(Command):
        type_name = name
        aliases = former

    return command_form(Shake)


def test_a_page_from_before_its_command_was_renamed_sends_the_same_command(bus: InlineCommandBus) -> None:
    before, after = named("commandforms.Shake"), named("commandforms.Stir", "commandforms.Shake")
    token = token_of(before(aggregate_root_id="jar"))
    first, again = (form({"command_id": token}, aggregate_root_id="jar").command() for form in (before, after))
    assert first.id == again.id


def test_a_refusal_stands_at_the_field_it_names(bus: InlineCommandBus) -> None:
    form = TakeForm({"coins": "11"}, aggregate_root_id="jar")
    assert form.execute() is None
    assert form.errors == {"coins": ["there are not so many"]}
    assert form.has_error("coins", "commandforms.TooFew")
    assert form.result is not None
    assert form.result.error_fields == {"coins": 11}


def test_a_refusal_that_names_no_field_concerns_the_form_and_stays_text(bus: InlineCommandBus) -> None:
    form = TakeForm({"coins": "1", "who": "thief"}, aggregate_root_id="jar")
    assert form.execute() is None
    assert form.non_field_errors() == ["100% <b>locked</b>"]
    assert "100% &lt;b&gt;locked" in str(form)
    assert "<b>" not in str(form)


def test_another_error_says_nothing_of_the_code(bus: InlineCommandBus) -> None:
    form = TakeForm({"coins": "1", "who": "bug"}, aggregate_root_id="jar")
    assert form.execute() is None
    assert form.non_field_errors() == ["An error kept this from being done. It took no effect."]


def test_what_is_not_there_is_said_so(bus: InlineCommandBus) -> None:
    missing = TakeForm({"coins": "1"}, aggregate_root_id="none")
    assert missing.execute() is None
    assert missing.non_field_errors() == ["There is none with this id."]
    taken = FillForm({"coins": "1"}, aggregate_root_id="jar")
    assert taken.execute() is None
    assert taken.non_field_errors() == ["There is one with this id already."]


def test_what_was_refused_may_be_sent_again_from_the_page_that_said_so(bus: InlineCommandBus) -> None:
    form = TakeForm({"coins": "11", "command_id": token_of(TakeForm(aggregate_root_id="jar"))}, aggregate_root_id="jar")
    assert form.execute() is None
    execute_command(Take("jar", coins=-5))
    again = {"coins": "11", "command_id": token_of(form)}
    result = TakeForm(again, aggregate_root_id="jar").execute()
    assert result is not None
    assert result.value == 4


def test_the_data_of_a_request_can_be_renewed(bus: InlineCommandBus) -> None:
    sent = QueryDict("coins=11&command_id=")
    form = TakeForm(sent, aggregate_root_id="jar")
    form.execute()
    assert form.data["command_id"]
    assert sent["command_id"] == ""


def test_the_version_that_was_seen_is_expected(bus: InlineCommandBus) -> None:
    page = TakeForm(aggregate_root_id="jar", expected_version=1)
    assert 'name="expected_version" value="1"' in str(page)
    sent = {"coins": "1", "expected_version": "1", "command_id": token_of(page)}
    assert TakeForm(sent, aggregate_root_id="jar", expected_version=1).execute() is not None

    late = TakeForm({"coins": "1", "expected_version": "1"}, aggregate_root_id="jar", expected_version=2)
    assert late.execute() is None
    assert late.non_field_errors() == [
        "It was changed meanwhile. Look at it as it is now, and send it again if you still want to."
    ]
    assert late.has_error("__all__", "enode.VersionMismatch")
    assert 'name="expected_version" value="2"' in str(late)  # the version that the page shows now
    assert versions(bus) == [1, 2]


@pytest.mark.parametrize("sent", ["", "-1", "x", str(2**63)])
def test_a_version_that_is_missing_or_none_is_an_error_and_replaced(bus: InlineCommandBus, sent: str) -> None:
    form = TakeForm({"coins": "1", "expected_version": sent}, aggregate_root_id="jar", expected_version=1)
    assert not form.is_valid()
    assert list(form.errors) == ["expected_version"]
    assert 'name="expected_version" value="1"' in str(form)


def test_a_version_that_was_not_asked_for_is_not_looked_at(bus: InlineCommandBus) -> None:
    form = TakeForm({"coins": "1", "expected_version": "9"}, aggregate_root_id="jar")
    assert form.execute() is not None


def test_the_id_of_the_aggregate_may_be_entered(bus: InlineCommandBus) -> None:
    AnyJar = command_form(Take, ("aggregate_root_id", "coins"))
    result = AnyJar({"aggregate_root_id": "jar", "coins": "2"}).execute()
    assert result is not None
    assert result.aggregate_root_id == "jar"
    for wrong in ("", "x" * 256, "a\0b"):
        assert list(AnyJar({"aggregate_root_id": wrong, "coins": "2"}).errors) == ["aggregate_root_id"]
    fixed = AnyJar({"aggregate_root_id": "other", "coins": "2"}, aggregate_root_id="jar")
    assert fixed.is_valid()
    assert fixed.command().aggregate_root_id == "jar"


def test_what_nobody_is_to_enter_cannot_be_entered(bus: InlineCommandBus) -> None:
    form = TakeForm({"coins": "1", "who": "me", "id": "forged"}, aggregate_root_id="jar", values={"who": "teller"})
    assert form.is_valid()
    command: Any = form.command()
    assert command.who == "teller"
    assert command.id != "forged"


def test_the_command_of_a_form_is_the_same_each_time(bus: InlineCommandBus) -> None:
    form = TakeForm({"coins": "1"}, aggregate_root_id="jar")
    assert form.is_valid()
    assert form.command() is form.command()


def test_a_form_that_is_not_valid_has_no_command() -> None:
    with pytest.raises(ValueError, match="is not valid; call is_valid"):
        TakeForm({"coins": "x"}, aggregate_root_id="jar").command()
    with pytest.raises(ValueError, match="is not valid; call is_valid"):
        TakeForm(aggregate_root_id="jar").command()


class Halve(Command):
    type_name = "commandforms.Halve"
    coins: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coins % 2:
            raise ValueError("an odd number cannot be halved")


def test_what_the_class_of_commands_refuses_is_an_error_of_the_form() -> None:
    form = command_form(Halve)({"coins": "3"}, aggregate_root_id="jar")
    assert not form.is_valid()
    assert form.non_field_errors() == ["an odd number cannot be halved"]


def test_fields_work_under_a_prefix(bus: InlineCommandBus) -> None:
    page = TakeForm(aggregate_root_id="jar", prefix="p", expected_version=1)
    token = page["command_id"].value()
    sent = {"p-coins": "3", "p-command_id": token, "p-expected_version": "1"}
    forms = [TakeForm(sent, aggregate_root_id="jar", prefix="p", expected_version=1) for _ in range(2)]
    assert forms[0].execute() == forms[1].execute()
    assert versions(bus) == [1, 2]


class Counted(Command):
    type_name = "commandforms.Counted"
    expected_version: int


def test_a_field_that_the_form_hides_itself_is_refused() -> None:
    with pytest.raises(DefinitionError, match="hides a field 'expected_version' of its own; exclude the command's"):
        command_form(Counted)
    assert "expected_version" not in command_form(Counted, None, ("expected_version",))().fields


def test_a_command_for_a_stored_aggregate_needs_its_id(bus: InlineCommandBus) -> None:
    form = TakeForm({"coins": "3"})
    with pytest.raises(DefinitionError, match=r"Take is for a stored .*; give aggregate_root_id to the form.*url_kw"):
        form.is_valid()
    assert FillForm({"coins": "3"}).execute(), "its handler makes a new one"


def test_a_form_without_a_command_says_so() -> None:
    class Empty(CommandForm):
        pass

    with pytest.raises(DefinitionError, match=r"Empty has no command; write it into its class Meta"):
        Empty({})


def sent_of(formset: Any, **entered: str) -> dict[str, str]:
    """Return what a browser sends: the hidden fields of each form of the page, and what was entered."""
    return {**dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]+)"', str(formset))), **entered}


@pytest.mark.parametrize(("seen", "now"), [(None, None), (1, 1), (1, 2)])
def test_a_form_of_a_formset_that_stays_empty_makes_no_command(
    bus: InlineCommandBus, seen: int | None, now: int | None
) -> None:
    """Also when the aggregate has another version than its page has shown."""
    make = formset_factory(TakeForm, extra=2)
    page, answer = (
        partial(make, form_kwargs={"aggregate_root_id": "jar", "expected_version": version}) for version in (seen, now)
    )
    formset = answer(sent_of(page(), **{"form-0-coins": "3"}))
    assert formset.is_valid(), formset.errors
    filled = [form for form in formset if form.has_changed()]
    assert [form.command().coins for form in filled] == [3]
    for form in filled:
        form.execute()
    assert versions(bus) == [1, 2]
    with pytest.raises(ValueError, match="is not valid"):
        formset.forms[1].command()
