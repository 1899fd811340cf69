"""A note, replayed."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaos.checker.decoding import Event

TYPE = "notes.Note"


@dataclass(slots=True)
class Note:
    """``titles`` are all that it ever had; ``changed_at`` is when it got the newest."""

    id: str
    version: int = 0
    title: str = ""
    changed_at: int = 0
    deleted: bool = False
    titles: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def apply(self, version: int, at: int, event: Event) -> None:
        """Raises LookupError, TypeError or ValueError for an event that is none of a note's."""
        self.version = version
        if self.deleted:
            self.problems.append(f"version {version} of note {self.id} changes it, which was deleted")
        match event.type_name:
            case "notes.NoteCreated" | "notes.TitleChanged":
                # In the first version of these events, a title was stored as it was typed.
                title = event.fields["title"]
                self.title = title.strip() if event.schema_version == 1 else title
                self.titles.add(self.title)
                self.changed_at = at
            case "notes.NoteDeleted":
                self.deleted = True
            case other:
                raise LookupError(other)
