"""A notebook's name belongs to one notebook: how a project declares and tests unique values."""

from __future__ import annotations

import pytest
from django.test import TestCase

from enode_django import (
    AggregateRoot,
    Command,
    DomainEvent,
    Unique,
    ValueTaken,
    applies,
    command_handler,
    execute_command,
)
from enode_django.testing import given, inline


class NameNotebook(Command):
    type_name = "notebooks.NameNotebook"
    name: str


class NotebookNamed(DomainEvent):
    type_name = "notebooks.NotebookNamed"
    name: str


class Notebook(AggregateRoot):
    type_name = "notebooks.Notebook"
    id_prefix = "notebook-"
    name: str = ""
    unique = Unique("name", normalize=str.casefold)

    @command_handler(creates=True)
    def give_name(self, command: NameNotebook) -> None:
        self.apply(NotebookNamed(name=command.name))

    @applies
    def _named(self, event: NotebookNamed) -> None:
        self.name = event.name


class NotebookNames(TestCase):
    def test_a_name_belongs_to_one_notebook(self) -> None:
        with inline(followed_by=[]):
            execute_command(NameNotebook("notebook-1", name="Travels"))
            with pytest.raises(ValueTaken) as caught:
                execute_command(NameNotebook("notebook-2", name="TRAVELS"))
        assert caught.value.fields == ("name",)

    def test_a_scenario_refuses_a_taken_name(self) -> None:
        scenario = given().when(NameNotebook("notebook-1", name="Travels")).then(NotebookNamed(name="Travels"))
        scenario.when(NameNotebook("notebook-2", name="travels")).then_refused(ValueTaken, fields=("name",))

    def test_a_scenario_knows_the_names_that_its_past_events_have_taken(self) -> None:
        notebook = given(Notebook, "notebook-1", NotebookNamed(name="Trips"), NotebookNamed(name="Travels"))
        notebook.when(NameNotebook("notebook-2", name="travels")).then_refused(ValueTaken, fields=("name",))
        notebook.when(NameNotebook("notebook-3", name="trips")).then(NotebookNamed(name="trips"))
