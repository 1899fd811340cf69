"""What management commands print does not control the terminal."""

from __future__ import annotations

import io
import json
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.color import color_style

from enode_django.management import commands
from enode_django.management.commands.enodedev import Command as EnodeDev
from enode_django.management.output import PrintableCommand, printable_json

HOSTILE = "a\x1b[2J\x1b]0;owned\x07\r\x9b8m\u202eb\ud800"
ESCAPED = "a\\x1b[2J\\x1b]0;owned\\x07\\r\\x9b8m\\u202eb\\ud800"


class Tells(PrintableCommand):
    requires_system_checks: list[str] = []

    fails = False

    def handle(self, **options: Any) -> str:
        self.stdout.write(f"{HOSTILE}\n\tä…", color_style(force_color=True).WARNING, ending="!")
        self.stderr.write(HOSTILE)
        if self.fails:
            raise CommandError(f"no {HOSTILE}")
        return HOSTILE


def test_control_characters_are_escaped_and_line_breaks_and_styles_are_not() -> None:
    out, err = io.StringIO(), io.StringIO()
    call_command(Tells(), stdout=out, stderr=err)
    coloured, _, returned = out.getvalue().partition("!")
    assert coloured.startswith("\x1b[33;1m")
    assert coloured.removeprefix("\x1b[33;1m") == f"{ESCAPED}\n\tä…"
    assert ESCAPED in returned
    assert err.getvalue() == f"{ESCAPED}\n"


def test_the_message_of_an_error_is_escaped_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Tells, "fails", True)
    with pytest.raises(SystemExit):
        Tells().run_from_argv(["manage.py", "tells"])
    assert capsys.readouterr().err == f"{ESCAPED}\nCommandError: no {ESCAPED}\n"


def test_json_is_the_same_value_and_printable() -> None:
    value = {"text": f"{HOSTILE} \xa0\U0001f600\U000e0001", "n": [1]}
    text = printable_json(value)
    assert json.loads(text) == value
    assert text.replace("\n", "").isprintable()
    assert "\U0001f600" in text


def test_every_command_prints_so() -> None:
    """But the one whose parts print their own logs."""
    names = [each.name for each in iter_modules(commands.__path__)]
    classes = {import_module(f"{commands.__name__}.{name}").Command for name in names}
    assert {each for each in classes if not issubclass(each, PrintableCommand)} == {EnodeDev}
