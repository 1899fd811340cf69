"""A domain for testing outcomes: one command for each thing that can become of a command."""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction

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
    """Counts like `Count`, but the handler raises for the notes in `broken`."""

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


class LeaveTransactionOpen(Command):
    """The result is the process id of the database session."""

    type_name = "notebook.LeaveTransactionOpen"


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


broken: set[str] = set()


class Drawer(AggregateRoot):
    type_name = "notebook.Drawer"

    @applies
    def _created(self, event: NoteCreated) -> None:
        pass


class Note(AggregateRoot):
    type_name = "notebook.Note"
    title: str = ""
    count: int = 0

    @command_handler(creates=True)
    def create(self, command: CreateNote) -> dict[str, str]:
        self.apply(NoteCreated(title=command.title))
        return {"title": command.title}

    @command_handler
    def change_title(self, command: ChangeTitle) -> str:
        self.title_as(command.title)
        return type(command).__name__

    @command_handler
    def count_up(self, command: Count) -> int:
        return self.add_one()

    @command_handler
    def raise_in_handler(self, command: RaiseInHandler) -> None:
        if command.after_apply:
            self.add_one()
        raise RuntimeError("the handler is broken")

    @command_handler
    def count_when_mended(self, command: CountWhenMended) -> None:
        if self.id in broken:
            raise RuntimeError("the handler is not mended yet")
        self.add_one()

    @command_handler
    def raise_in_aggregate(self, command: RaiseInAggregate) -> None:
        self.apply(Poisonous())

    @command_handler
    def refuse(self, command: Refuse) -> None:
        raise NoThanks("not today", count=self.count)

    @command_handler
    def give_result(self, command: GiveResult) -> Any:
        if command.change:
            self.add_one()
        return object() if command.unstorable else {"list": [1, None, "ü"], "bytes": b"\0", "big": 2**70}

    @command_handler
    def write_much(self, command: WriteMuch) -> None:
        self.title_as("x" * command.size)

    @command_handler
    def tell_metadata(self, command: TellMetadata, context: CommandContext) -> dict[str, Any]:
        self.add_one()
        seen, event = context.metadata, self.uncommitted_events[0].metadata
        return {
            "seen": [seen.user, seen.request, seen.correlation_id, dict(seen.extra)],
            "event": [event.user, event.correlation_id, event.causation_id],
        }

    def title_as(self, title: str) -> None:
        if title != self.title:
            self.apply(TitleChanged(title=title))

    def add_one(self) -> int:
        self.apply(Counted(count=self.count + 1))
        return self.count

    @applies
    def _titled(self, event: NoteCreated | TitleChanged) -> None:
        self.title = event.title

    @applies
    def _counted(self, event: Counted) -> None:
        self.count = event.count

    @applies
    def _poisoned(self, event: Poisonous) -> None:
        self.title = "half changed"
        raise ZeroDivisionError("the aggregate is broken")


@command_handler
def touch_another(command: TouchAnother, context: CommandContext) -> int | None:
    if command.how == "add":
        context.add(another := Note(command.other))
        another.apply(NoteCreated(title="another"))
        return None
    other = context.get(Note, command.other)
    if command.how == "change":
        other.add_one()
    context.get(Note).add_one()
    return other.count


@command_handler
def open_as_drawer(command: OpenAsDrawer, context: CommandContext) -> None:
    context.get(Drawer)


@command_handler
def execute_inside(command: ExecuteInside) -> None:
    execute_command(Count(command.aggregate_root_id))


@command_handler
def leave_transaction_open(command: LeaveTransactionOpen, context: CommandContext) -> int:
    transaction.set_autocommit(False)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id(), pg_backend_pid()")
        (_, session) = cursor.fetchone()
    return int(session)
