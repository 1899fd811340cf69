"""The sender of a command for a taken value gets an error: in code, forms, serializers, the API and scenarios."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from enode_django import ValueTaken, execute_command, try_command
from enode_django.api.outcomes import problem_of
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.forms import command_form
from enode_django.serializers import CommandRefused, CommandSerializer
from enode_django.testing import given, inline
from enode_django.testing.inline import InlineCommandBus
from tests.unique.customers import Move, Moved, Register, Registered


@pytest.fixture(autouse=True)
def bus() -> Iterator[InlineCommandBus]:
    with inline(MemoryEventStore()) as bus:
        execute_command(Register("customer-ada", email="ada@x.org"))
        yield bus


def test_it_is_raised_with_its_fields() -> None:
    with pytest.raises(ValueTaken, match="This address is registered") as caught:
        execute_command(Register("customer-bob", email="ADA@x.org"))
    assert caught.value.fields == ("email",)
    assert caught.value.aggregate_root_id == "customer-bob"
    execute_command(Move("customer-ada", email="countess@x.org"))
    assert try_command(Register("customer-bob", email="ada@x.org")).version == 1


def test_a_form_shows_it_at_the_field() -> None:
    form = command_form(Register)({"email": "Ada@x.org", "name": "Bob"})
    assert form.is_valid()
    assert form.execute() is None
    assert form.errors == {"email": ["This address is registered."]}
    assert form.has_error("email", "enode.ValueTaken")


def test_a_form_without_the_field_shows_it_above() -> None:
    form = command_form(Register, ("name",))({"name": "Bob"}, values={"email": "ada@x.org"})
    assert form.execute() is None
    assert form.non_field_errors() == ["This address is registered."]


def test_a_serializer_shows_it_at_the_field_with_409() -> None:
    class RegisterSerializer(CommandSerializer):
        class Meta:
            command = Register

    serializer = RegisterSerializer(data={"email": "ada@x.org"})
    assert serializer.is_valid()
    with pytest.raises(CommandRefused) as caught:
        serializer.save()
    assert (caught.value.status_code, caught.value.detail) == (409, {"email": ["This address is registered."]})


def test_the_api_names_the_fields_in_a_problem_with_409() -> None:
    with pytest.raises(ValueTaken) as caught:
        execute_command(Register("customer-bob", email="ada@x.org"))
    problem = problem_of(caught.value)
    assert problem.status_code == 409
    assert problem.body["type"] == "urn:problem-type:enode.ValueTaken"
    assert problem.body["detail"] == "This address is registered."
    assert problem.body["fields"] == ["email"]


def test_a_scenario_claims_and_refuses() -> None:
    scenario = given(Registered(email="ada@x.org")).when(Move("customer-ada", email="bob@x.org"))
    scenario.then(Moved(email="bob@x.org"))
    scenario.when(Register("customer-bob", email="bob@x.org")).then_refused(ValueTaken, fields=("email",))
    scenario.when(Register("customer-bob", email="ada@x.org")).then(Registered(email="ada@x.org"))
