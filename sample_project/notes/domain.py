"""Notes: created, given another title, deleted."""

from __future__ import annotations

from enode_django import AggregateRoot, Command, DomainEvent, DomainException, applies


class CreateNote(Command):
    title: str


class ChangeTitle(Command):
    title: str


class DeleteNote(Command):
    pass


class NoteCreated(DomainEvent):
    title: str


class TitleChanged(DomainEvent):
    title: str


class NoteDeleted(DomainEvent):
    pass


class EmptyTitle(DomainException):
    pass


class NoteIsDeleted(DomainException):
    pass


class Note(AggregateRoot):
    title: str = ""
    deleted: bool = False

    @classmethod
    def create(cls, id: str, title: str) -> Note:
        _check(title)
        note = cls(id)
        note.apply(NoteCreated(title=title))
        return note

    def change_title(self, title: str) -> None:
        if self.deleted:
            raise NoteIsDeleted("the note is deleted")
        _check(title)
        if title != self.title:
            self.apply(TitleChanged(title=title))

    def delete(self) -> None:
        if not self.deleted:
            self.apply(NoteDeleted())

    @applies(NoteCreated, TitleChanged)
    def _titled(self, event: NoteCreated | TitleChanged) -> None:
        self.title = event.title

    @applies(NoteDeleted)
    def _deleted(self, event: NoteDeleted) -> None:
        self.deleted = True


def _check(title: str) -> None:
    if not title.strip():
        raise EmptyTitle("a note needs a title")
