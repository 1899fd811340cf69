from __future__ import annotations

from django.contrib.auth.models import User
from django.test import SimpleTestCase, TestCase

from enode_django import execute_command
from enode_django.testing import StoredEvent, given, inline, restore_event
from sample_project.notes import models
from sample_project.notes.domain import (
    ChangeTitle,
    CreateNote,
    DeleteNote,
    EmptyTitle,
    Note,
    NoteCreated,
    NoteDeleted,
    NoteIsDeleted,
    TitleChanged,
)
from sample_project.notes.projections import Notes

CREATED = NoteCreated(title="Milk")


class TheRules(SimpleTestCase):
    def test_a_note_is_created_with_a_title(self) -> None:
        given(Note, "n").when(CreateNote("n", title="Milk")).then(CREATED)
        given(Note, "n").when(CreateNote("n", title=" ")).then_refused(EmptyTitle)

    def test_a_title_that_is_the_same_changes_nothing(self) -> None:
        note = given(Note, "n", CREATED)
        note.when(ChangeTitle("n", title="Bread")).then(TitleChanged(title="Bread"))
        note.when(ChangeTitle("n", title="Bread")).then_nothing()
        note.when(ChangeTitle("n", title="")).then_refused(EmptyTitle)

    def test_a_deleted_note_stays_deleted(self) -> None:
        note = given(Note, "n", CREATED)
        note.when(DeleteNote("n")).then(NoteDeleted())
        note.when(DeleteNote("n")).then_nothing()
        note.when(ChangeTitle("n", title="Bread")).then_refused(NoteIsDeleted)

    def test_blanks_around_a_title_are_none_of_it(self) -> None:
        note = given(Note, "n").when(CreateNote("n", title=" Milk ")).then(CREATED)
        note.when(ChangeTitle("n", title="Milk ")).then_nothing()

    def test_titles_of_the_first_version_are_read_without_their_blanks(self) -> None:
        assert restore_event(StoredEvent("notes.NoteCreated", 1, {"title": " Milk "})) == CREATED
        assert restore_event(StoredEvent("notes.TitleChanged", 1, {"title": "Bread "})) == TitleChanged(title="Bread")
        assert restore_event(StoredEvent("notes.NoteCreated", 2, {"title": "Milk"})) == CREATED


class TheList(TestCase):
    @inline(followed_by=[Notes])
    def test_it_shows_the_notes_as_they_are(self) -> None:
        execute_command(CreateNote("n", title="Milk"))
        execute_command(CreateNote("m", title="Eggs"))
        execute_command(ChangeTitle("n", title="Bread"))
        assert list(models.Note.objects.order_by("pk").values_list("title", "version")) == [("Eggs", 1), ("Bread", 2)]
        execute_command(DeleteNote("n"))
        assert [note.title for note in models.Note.objects.all()] == ["Eggs"]

    @inline(followed_by=[Notes])
    def test_people_look_and_do_not_touch(self) -> None:
        execute_command(CreateNote("n", title="Milk"))
        self.client.force_login(User.objects.create_superuser("clerk"))
        assert self.client.get("/admin/notes/note/").context["cl"].result_count == 1
        assert self.client.post("/admin/notes/note/n/change/", {"title": "Beer"}).status_code == 403
