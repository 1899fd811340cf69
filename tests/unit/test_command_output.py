"""The output of management commands does not control the terminal."""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.color import color_style

from enode_django.management import commands, subcommands
from enode_django.management.commands.enode import SUBCOMMANDS
from enode_django.management.commands.enode import Command as Enode
from enode_django.management.commands.enodedev import Command as EnodeDev
from enode_django.management.output import PrintableCommand, printable_json
from tests import warm
from tests.meta.tree import ROOT

SECONDS = 120.0
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


def test_what_an_output_cannot_encode_is_escaped_so_that_json_keeps_its_value() -> None:
    """As with ``LC_ALL=C PYTHONUTF8=0``, or in a terminal of Latin-1."""
    value = {"id": "\xe4 \u0416 \U0001f600"}

    class TellsJson(Tells):
        def handle(self, **options: Any) -> None:
            self.stdout.write(printable_json(value))

    for encoding in ("ascii", "latin-1"):
        out = io.TextIOWrapper(io.BytesIO(), encoding)
        call_command(TellsJson(), stdout=out)
        out.seek(0)
        assert json.loads(text := out.read()) == value
        assert ("\xe4" in text) is (encoding == "latin-1")


def test_the_message_of_an_error_is_escaped_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Tells, "fails", True)
    with pytest.raises(SystemExit):
        Tells().run_from_argv(["manage.py", "tells"])
    assert capsys.readouterr().err == f"{ESCAPED}\nCommandError: no {ESCAPED}\n"


class Degraded(PrintableCommand):
    requires_system_checks: list[str] = []

    lines = 1

    def handle(self, **options: Any) -> None:
        for number in range(self.lines):
            self.stdout.write(f"line {number}")
        self.stderr.write("all is done")
        raise SystemExit(1)


class Interrupted(PrintableCommand):
    requires_system_checks: list[str] = []

    def handle(self, **options: Any) -> None:
        raise KeyboardInterrupt


def without_reader(*arguments: str) -> tuple[int, str]:
    """Run Python with an output that nobody reads. Return its exit status, and its errors."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as out, tempfile.TemporaryFile("w+") as errors:
        status = warm.start(arguments, cwd=ROOT, stdout=out, stderr=errors).wait(SECONDS)
        errors.seek(0)
        return status, errors.read()


@pytest.mark.parametrize("lines", [1, 100_000], ids=["less than the buffers hold", "more"])
def test_a_command_whose_output_nobody_reads_any_more_does_its_work_and_keeps_its_exit_status(lines: int) -> None:
    code = f"""if True:
        from tests.unit.test_command_output import Degraded
        Degraded.lines = {lines}
        Degraded().run_from_argv(["manage.py", "degraded"])
    """
    assert without_reader("-c", code) == (1, "all is done\n")


def test_the_list_of_sub_commands_may_have_no_reader() -> None:
    assert without_reader("manage.py", "enode") == (0, "")


def test_a_command_with_closed_outputs_does_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after ``>&- 2>&-``: Python sets an output to None if its file descriptor is closed."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    call_command(Tells())
    call_command(Enode())
    with pytest.raises(SystemExit) as end:
        Degraded().run_from_argv(["manage.py", "degraded"])
    assert end.value.code == 1


class Gone(io.StringIO):
    """Neither a file nor a pipe of this process, such as a wrapper around a connection."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("is_service", [True, False], ids=["a service", "another command"])
def test_only_a_service_goes_on_if_its_output_finds_no_room(is_service: bool) -> None:
    code = f"""if True:
        from tests.unit.test_command_output import Tells
        Tells.is_service = {is_service}
        for _ in range(2):
            Tells().run_from_argv(["manage.py", "tells"])
    """
    with open("/dev/full", "w") as full:
        status = warm.start(["-c", code], cwd=ROOT, stdout=full, stderr=full).wait(SECONDS)
    # It is 1 after an error of the command, and 120 if Python itself finds no room for what is buffered at the end.
    assert (status == 0) is is_service


@pytest.mark.parametrize("name", ["runprocessors", "runbroker"])
def test_these_are_services(name: str) -> None:
    assert import_module(f"{commands.__name__}.{name}").Command.is_service


def test_the_output_that_a_caller_gave_may_have_lost_its_reader_too() -> None:
    err = io.StringIO()
    call_command(Tells(), stdout=Gone(), stderr=err)
    assert err.getvalue() == f"{ESCAPED}\n"


def test_a_pipe_that_a_caller_gave_is_not_exchanged() -> None:
    reader, writer = os.pipe()
    with open(writer, "w") as out:
        before = os.fstat(writer)
        os.close(reader)
        call_command(Tells(), stdout=out, stderr=io.StringIO())
        assert os.fstat(writer) == before
        with pytest.raises(BrokenPipeError):
            out.close()


def test_an_interrupted_command_says_so_and_has_not_succeeded(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        Interrupted().run_from_argv(["manage.py", "interrupted"])
    assert end.value.code == 130
    assert capsys.readouterr().err == "interrupted: a part may have been done\n"


def test_json_is_the_same_value_and_printable() -> None:
    value = {"text": f"{HOSTILE} \xa0\U0001f600\U000e0001", "n": [1]}
    text = printable_json(value)
    assert json.loads(text) == value
    assert text.replace("\n", "").isprintable()
    assert "\U0001f600" in text


def test_every_command_prints_so() -> None:
    """The exceptions are the command whose parts print their own logs, and the one that only leads to others."""
    modules = [each.name for at in (commands, subcommands) for each in iter_modules(at.__path__, f"{at.__name__}.")]
    classes = {import_module(module).Command for module in modules}
    assert {each for each in classes if not issubclass(each, PrintableCommand)} == {Enode, EnodeDev}


def test_every_sub_command_is_listed_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(SUBCOMMANDS) == sorted(each.name for each in iter_modules(subcommands.__path__))
    Enode().run_from_argv(["manage.py", "enode"])
    shown = capsys.readouterr().out.splitlines()
    lines = [line.split(maxsplit=1) for line in shown if line.startswith("    ") and line[4] != " "]
    assert lines == [[name, does] for name, does in SUBCOMMANDS.items()]


def test_a_sub_command_imports_no_other_one() -> None:
    code = """if True:
        import sys
        from django.core.management import execute_from_command_line
        try:
            execute_from_command_line(["manage.py", "enode", "jobs", "list", "--limit", "x"])
        except SystemExit as end:
            assert end.code == 2
        package = "enode_django.management.subcommands."
        print(sorted(name.removeprefix(package) for name in sys.modules if name.startswith(package)))
    """
    done = warm.run(["-c", code], cwd=ROOT)
    assert done.stdout == "['jobs']\n"
    assert "usage: manage.py enode jobs list" in done.stderr


def test_a_sub_command_is_called_with_its_options() -> None:
    out = io.StringIO()
    call_command("enode", "eventschemas", check=str(ROOT / "event_schemas.json"), stdout=out)
    assert "match event_schemas.json" in out.getvalue()
    with pytest.raises(TypeError, match="Unknown option"):
        call_command("enode", "jobs", "list", colour="red")


def test_a_database_that_is_away_is_an_error_and_no_traceback() -> None:
    environment = {**os.environ, "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"}
    done = warm.run(["manage.py", "enode", "groups", "--skip-checks"], cwd=ROOT, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith("CommandError: connection failed")
