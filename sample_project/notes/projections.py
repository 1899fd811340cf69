from __future__ import annotations

from enode_django import ModelProjection, handles
from sample_project.notes.domain import NoteCreated, NoteDeleted, TitleChanged
from sample_project.notes.models import Note


class Notes(ModelProjection[Note]):
    @handles(creates=True)
    def created(self, row: Note, event: NoteCreated) -> None:
        row.title, row.changed_at = event.title, event.timestamp

    @handles
    def titled(self, row: Note, event: TitleChanged) -> None:
        row.title, row.changed_at = event.title, event.timestamp

    @handles
    def deleted(self, row: Note, event: NoteDeleted) -> None:
        self.delete(row)
