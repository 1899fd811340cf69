"""Tests of notes with the package's pytest fixtures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection

from enode_django import Command, CommandResult
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import CommandFailed
from enode_django.testing import InlineCommandBus
from sample_project.notes import models
from sample_project.notes.domain import (
    ChangeTitle,
    CreateNote,
    DeleteNote,
    Note,
    NoteCreated,
    NoteDeleted,
    TitleChanged,
)
from sample_project.notes.projections import Notes

Execute = Callable[[Command], CommandResult]


def test_a_title_is_changed(enode_given: Callable[..., Any]) -> None:
    note = enode_given(Note, "n", NoteCreated(title="Milk"))
    note.when(ChangeTitle("n", title="Bread")).then(TitleChanged(title="Bread"))


def test_a_deleted_note_has_no_row(enode_given: Callable[..., Any]) -> None:
    row = enode_given(Notes, "n", NoteCreated(title="Milk"), TitleChanged(title="Bread")).then(title="Bread", version=2)
    row.when(NoteDeleted()).then_no_row()


def test_titles_change_in_the_order_of_the_commands(
    enode_event_store: MemoryEventStore, enode_bus: InlineCommandBus, enode_execute: Execute
) -> None:
    enode_execute(CreateNote("n", title="Milk"))
    assert enode_execute(ChangeTitle("n", title="Bread")).version == 2
    assert enode_bus.events == [NoteCreated(title="Milk"), TitleChanged(title="Bread")]
    assert enode_event_store.heads(["n"]) == {"n": 2}


def test_a_note_that_was_never_created_cannot_be_deleted(
    enode_event_store: MemoryEventStore, enode_execute: Execute
) -> None:
    with pytest.raises(CommandFailed, match="AggregateNotFound"):
        enode_execute(DeleteNote("n"))


@pytest.mark.enode(followed_by=[Notes])
def test_the_list_follows(enode_execute: Execute) -> None:
    enode_execute(CreateNote("n", title="Milk"))
    assert models.Note.objects.get().title == "Milk"


def test_the_list_follows_with_everything_else_of_the_project(
    enode_bus: InlineCommandBus, enode_execute: Execute
) -> None:
    enode_execute(CreateNote("n", title="Eggs"))
    assert [note.title for note in models.Note.objects.all()] == ["Eggs"]
    assert [result.version for result in enode_bus.results] == [1]


def test_another_fixture_may_ask_for_the_database_after_the_bus(enode_bus: InlineCommandBus, admin_user: User) -> None:
    enode_bus.execute(CreateNote("n", title="Eggs"), 0)
    assert models.Note.objects.get().title == "Eggs"


@pytest.mark.enode(followed_by=[Notes])
def test_the_bus_commits_where_a_later_fixture_lets_transactions_end(
    enode_bus: InlineCommandBus, transactional_db: None
) -> None:
    enode_bus.execute(CreateNote("n", title="Eggs"), 0)
    assert not connection.in_atomic_block
    assert models.Note.objects.get().title == "Eggs"
