"""A note, replayed."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaos.checker.decoding import Event

TYPE = "notes.Note"


@dataclass(slots=True)
class Note:
    """A note. ``titles`` are all its titles so far; ``changed_at`` is the time of the newest."""

    id: str
    version: int = 0
    title: str = ""
    changed_at: int = 0
    deleted: bool = False
    titles: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def apply(self, version: int, at: int, event: Event) -> None:
        """Apply an event. Raises LookupError, TypeError or ValueError if it is not a note's."""
        self.version = version
        if self.deleted:
            self.problems.append(f"version {version} of note {self.id} changes it, which was deleted")
        match event.type_name:
            case "notes.NoteCreated" | "notes.TitleChanged":
                # In version 1 of these events titles were stored with surrounding blanks.
                title = event.fields["title"]
                self.title = title.strip() if event.schema_version == 1 else title
                self.titles.add(self.title)
                self.changed_at = at
            case "notes.NoteDeleted":
                self.deleted = True
            case other:
                raise LookupError(other)
