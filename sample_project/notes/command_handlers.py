from __future__ import annotations

from enode_django import CommandContext, command_handler
from sample_project.notes.domain import ChangeTitle, CreateNote, DeleteNote, Note


@command_handler(CreateNote)
def create_note(command: CreateNote, context: CommandContext) -> None:
    context.add(Note.create(command.aggregate_root_id, command.title))


@command_handler(ChangeTitle)
def change_title(command: ChangeTitle, context: CommandContext) -> None:
    context.get(Note).change_title(command.title)


@command_handler(DeleteNote)
def delete_note(command: DeleteNote, context: CommandContext) -> None:
    context.get(Note).delete()
