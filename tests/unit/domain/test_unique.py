"""System checks of unique declarations."""

from __future__ import annotations

from functools import partial

import pytest

from enode_django.checks.definitions import check_definitions
from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.unique import Unique
from enode_django.exceptions import DefinitionError
from enode_django.testing import given


def found() -> list[tuple[str, str]]:
    return [(str(one.id), one.msg) for one in check_definitions(None) if str(one.id).startswith("enode_django.E27")]


def test_fields_that_do_not_exist_and_what_cannot_be_called_are_reported(undeclared: None) -> None:
    class Wrong(AggregateRoot):
        type_name = "unit.Wrong"
        email: str = ""
        unique = [Unique("email", "mail"), Unique("email", normalize="casefold")]  # type: ignore[arg-type]

    assert found() == [
        ("enode_django.E270", "unit.Wrong declares Unique('email', 'mail'), but has no field 'mail'."),
        (
            "enode_django.E271",
            "unit.Wrong declares Unique('email') with normalize = 'casefold', which cannot be called.",
        ),
    ]


def test_what_exists_passes(undeclared: None) -> None:
    class Right(AggregateRoot):
        type_name = "unit.Right"
        email: str = ""
        unique = Unique("email", normalize=str.casefold)

    assert found() == []


def test_an_aggregate_with_a_field_that_does_not_exist_cannot_be_made(undeclared: None) -> None:
    class Misspelt(AggregateRoot):
        type_name = "unit.Misspelt"
        name: str = ""
        unique = Unique("nme")

    for make in (Misspelt, Misspelt, partial(given, Misspelt)):
        with pytest.raises(DefinitionError, match=r"declares Unique\('nme'\), but has no field 'nme'; it has name"):
            make("ada")
