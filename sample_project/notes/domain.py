"""Notes with a title."""

from __future__ import annotations

from typing import Any

from enode_django import AggregateRoot, Command, DomainEvent, DomainException, applies, command_handler, upcasts


class CreateNote(Command):
    title: str


class ChangeTitle(Command):
    title: str


class DeleteNote(Command):
    pass


class NoteCreated(DomainEvent):
    schema_version = 2
    title: str


class TitleChanged(DomainEvent):
    schema_version = 2
    title: str


@upcasts(NoteCreated, TitleChanged, from_version=1)
def without_blanks(fields: dict[str, Any]) -> dict[str, Any]:
    """Strip the title. In version 1 titles were stored with surrounding blanks."""
    return {"title": fields["title"].strip()}


class NoteDeleted(DomainEvent):
    pass


class EmptyTitle(DomainException):
    pass


class NoteIsDeleted(DomainException):
    pass


class Note(AggregateRoot):
    title: str = ""
    deleted: bool = False

    @command_handler(creates=True)
    def create(self, command: CreateNote) -> None:
        self.apply(NoteCreated(title=_checked(command.title)))

    @command_handler
    def change_title(self, command: ChangeTitle) -> None:
        if self.deleted:
            raise NoteIsDeleted("the note is deleted")
        title = _checked(command.title)
        if title != self.title:
            self.apply(TitleChanged(title=title))

    @command_handler
    def delete(self, command: DeleteNote) -> None:
        if not self.deleted:
            self.apply(NoteDeleted())

    @applies
    def _titled(self, event: NoteCreated | TitleChanged) -> None:
        self.title = event.title

    @applies
    def _deleted(self, event: NoteDeleted) -> None:
        self.deleted = True


def _checked(title: str) -> str:
    """Return the title without surrounding blanks. Raises `EmptyTitle`."""
    stripped = title.strip()
    if not stripped:
        raise EmptyTitle("a note needs a title")
    return stripped
