"""A domain for testing outcomes: one command for each thing that can become of a command."""

from __future__ import annotations

from typing import Any

from enode_django import (
    AggregateRoot,
    Command,
    CommandContext,
    DomainEvent,
    DomainException,
    applies,
    command_handler,
    execute_command,
)


class CreateNote(Command):
    type_name = "notebook.CreateNote"
    title: str = "untitled"


class ChangeTitle(Command):
    type_name = "notebook.ChangeTitle"
    title: str


class ChangeTitleLoudly(ChangeTitle):
    """Has no handler of its own."""

    type_name = "notebook.ChangeTitleLoudly"


class Count(Command):
    """Adds one; the result is the new count."""

    type_name = "notebook.Count"


class Unhandled(Command):
    type_name = "notebook.Unhandled"


class RaiseInHandler(Command):
    type_name = "notebook.RaiseInHandler"
    after_apply: bool = False


class CountWhenMended(Command):
    """As `Count`, but its handler raises for the notes that are in `broken`."""

    type_name = "notebook.CountWhenMended"


class RaiseInAggregate(Command):
    type_name = "notebook.RaiseInAggregate"


class Refuse(Command):
    type_name = "notebook.Refuse"


class TouchAnother(Command):
    """``how``: read, change or add the aggregate ``other``."""

    type_name = "notebook.TouchAnother"
    other: str
    how: str


class OpenAsDrawer(Command):
    type_name = "notebook.OpenAsDrawer"


class GiveResult(Command):
    """Sets a rich result, with or without a change."""

    type_name = "notebook.GiveResult"
    change: bool = True
    unstorable: bool = False


class WriteMuch(Command):
    type_name = "notebook.WriteMuch"
    size: int


class ExecuteInside(Command):
    type_name = "notebook.ExecuteInside"


class TellMetadata(Command):
    type_name = "notebook.TellMetadata"


class NoteCreated(DomainEvent):
    type_name = "notebook.NoteCreated"
    title: str


class TitleChanged(DomainEvent):
    type_name = "notebook.TitleChanged"
    title: str


class Counted(DomainEvent):
    type_name = "notebook.Counted"
    count: int


class Poisonous(DomainEvent):
    type_name = "notebook.Poisonous"


class NoThanks(DomainException):
    type_name = "notebook.NoThanks"
    count: int


class Drawer(AggregateRoot):
    type_name = "notebook.Drawer"

    @applies(NoteCreated)
    def _created(self, event: NoteCreated) -> None:
        pass


class Note(AggregateRoot):
    type_name = "notebook.Note"
    title: str = ""
    count: int = 0

    @classmethod
    def create(cls, id: str, title: str) -> Note:
        note = cls(id)
        note.apply(NoteCreated(title=title))
        return note

    def change_title(self, title: str) -> None:
        if title != self.title:
            self.apply(TitleChanged(title=title))

    def count_up(self) -> int:
        self.apply(Counted(count=self.count + 1))
        return self.count

    @applies(NoteCreated, TitleChanged)
    def _titled(self, event: NoteCreated | TitleChanged) -> None:
        self.title = event.title

    @applies(Counted)
    def _counted(self, event: Counted) -> None:
        self.count = event.count

    @applies(Poisonous)
    def _poisoned(self, event: Poisonous) -> None:
        self.title = "half changed"
        raise ZeroDivisionError("the aggregate is broken")


@command_handler(CreateNote)
def create_note(command: CreateNote, context: CommandContext) -> None:
    context.add(Note.create(command.aggregate_root_id, command.title))
    context.set_result({"title": command.title})


@command_handler(ChangeTitle)
def change_title(command: ChangeTitle, context: CommandContext) -> None:
    context.get(Note).change_title(command.title)
    context.set_result(type(command).__name__)


@command_handler(Count)
def count(command: Count, context: CommandContext) -> None:
    context.set_result(context.get(Note).count_up())


@command_handler(RaiseInHandler)
def raise_in_handler(command: RaiseInHandler, context: CommandContext) -> None:
    note = context.get(Note)
    if command.after_apply:
        note.count_up()
    raise RuntimeError("the handler is broken")


broken: set[str] = set()


@command_handler(CountWhenMended)
def count_when_mended(command: CountWhenMended, context: CommandContext) -> None:
    if command.aggregate_root_id in broken:
        raise RuntimeError("the handler is not mended yet")
    context.get(Note).count_up()


@command_handler(RaiseInAggregate)
def raise_in_aggregate(command: RaiseInAggregate, context: CommandContext) -> None:
    context.get(Note).apply(Poisonous())


@command_handler(Refuse)
def refuse(command: Refuse, context: CommandContext) -> None:
    raise NoThanks("not today", count=context.get(Note).count)


@command_handler(TouchAnother)
def touch_another(command: TouchAnother, context: CommandContext) -> None:
    if command.how == "add":
        context.add(Note.create(command.other, "another"))
        return
    other = context.get(Note, command.other)
    if command.how == "change":
        other.count_up()
    context.set_result(other.count)
    context.get(Note).count_up()


@command_handler(OpenAsDrawer)
def open_as_drawer(command: OpenAsDrawer, context: CommandContext) -> None:
    context.get(Drawer)


@command_handler(GiveResult)
def give_result(command: GiveResult, context: CommandContext) -> None:
    note = context.get(Note)
    if command.change:
        note.count_up()
    value: Any = object() if command.unstorable else {"list": [1, None, "ü"], "bytes": b"\0", "big": 2**70}
    context.set_result(value)


@command_handler(WriteMuch)
def write_much(command: WriteMuch, context: CommandContext) -> None:
    context.get(Note).change_title("x" * command.size)


@command_handler(ExecuteInside)
def execute_inside(command: ExecuteInside, context: CommandContext) -> None:
    execute_command(Count(aggregate_root_id=command.aggregate_root_id))


@command_handler(TellMetadata)
def tell_metadata(command: TellMetadata, context: CommandContext) -> None:
    note = context.get(Note)
    note.count_up()
    seen = context.metadata
    event = note.uncommitted_events[0].metadata
    context.set_result(
        {
            "seen": [seen.user, seen.request, seen.correlation_id, dict(seen.extra)],
            "event": [event.user, event.correlation_id, event.causation_id],
        }
    )
