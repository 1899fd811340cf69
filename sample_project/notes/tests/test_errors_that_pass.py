"""A handler that calls a service, which is too busy at first."""

from __future__ import annotations

from django.test import SimpleTestCase

from enode_django import CommandContext, Retry, command_handler
from enode_django.testing import given
from sample_project.notes.domain import ChangeTitle, Note, NoteCreated, TitleChanged


class TranslateTitle(ChangeTitle):
    pass


class Translator:
    """A service that is too busy for the next ``busy`` calls."""

    def __init__(self) -> None:
        self.busy = 0

    def translate(self, text: str) -> str:
        if self.busy:
            self.busy -= 1
            raise Retry("the translator is busy", after=30.0)
        return text[::-1]


translator = Translator()


@command_handler
def translate_title(command: TranslateTitle, context: CommandContext) -> None:
    title = translator.translate(command.title)
    context.get(Note).change_title(ChangeTitle(command.aggregate_root_id, title=title))


class WhatPasses(SimpleTestCase):
    def test_a_title_is_translated_when_the_translator_has_time(self) -> None:
        translator.busy = 2
        note = given(Note, "n", NoteCreated(title="Milk")).when(TranslateTitle("n", title="klim"))
        note.then(TitleChanged(title="milk"))

    def test_a_title_stays_if_the_translator_is_busy_for_too_long(self) -> None:
        translator.busy = 5
        note = given(Note, "n", NoteCreated(title="Milk")).when(TranslateTitle("n", title="klim"))
        note.then_failed(Retry)
