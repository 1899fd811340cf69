"""A misspelt setting in the body of a class is found by a check: Python takes it for an attribute."""

from __future__ import annotations

from typing import Any

import pytest

from enode_django import AggregateRoot, Command, DomainEvent, ModelProjection, Projection, Unique
from enode_django.checks.definitions import check_definitions
from enode_django.checks.misspelt import misspelt_settings
from sample_project.bank.models import AccountSummary

pytestmark = pytest.mark.usefixtures("undeclared")


def found(cls: type[Any]) -> list[tuple[str, str]]:
    return [(str(one.id), one.msg) for one in misspelt_settings(cls)]


def test_a_setting_that_is_nearly_spelt_right_is_named() -> None:
    class Send(Command):
        type_name = "misspelt.Send"
        exposd = False
        api_permission = ("mail.send",)

    first, second = found(Send)
    assert first[0] == second[0] == "enode_django.W177"
    assert "has the attribute 'exposd'" in first[1]
    assert "the setting 'exposed' keeps its default" in first[1]
    assert "the setting 'api_permissions' keeps its default" in second[1]
    assert [one.msg for one in check_definitions(None) if one.id == "enode_django.W177"] == [first[1], second[1]]


def test_settings_of_each_kind_of_class_are_known() -> None:
    class Sent(DomainEvent):
        type_name = "misspelt.Sent"
        schema_versoin = 2
        aplied = False

    class Letter(AggregateRoot):
        type_name = "misspelt.Letter"
        snapshot_evry = 5
        unqiue = (Unique("address"),)
        address: str = ""

    class Letters(Projection):
        abstract = True
        models = (AccountSummary,)
        alias = ("misspelt.OldLetters",)
        agregate_field = "address"
        nmae = "misspelt.letters"

    assert len(found(Sent)) == 2
    assert len(found(Letter)) == 2
    assert len(found(Letters)) == 3


def test_other_names_fields_and_methods_are_left_alone() -> None:
    class Paid(DomainEvent):
        type_name = "misspelt.Paid"
        alias: str
        expose: bool = False

    class Rows(ModelProjection[AccountSummary]):
        abstract = True
        names: Any = ()
        titles = ("model", "mode")
        stats = 5
        _aliases = ()

        def models(self) -> None: ...

    assert found(Paid) == []
    assert found(Rows) == []
