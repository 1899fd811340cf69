"""``manage.py enode eventschemas`` on the sample's apps: a change of the code is a difference to an edited file."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.test import override_settings

from enode_django import DomainEvent

Edit = Callable[[dict[str, Any]], object]


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("enode", "eventschemas", *arguments, stdout=out)
    return out.getvalue()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write the schemas of the current code. Return the file."""
    path = tmp_path / "schemas.json"
    run("--write", str(path))
    return path


def edit(file: Path, change: Edit) -> str:
    value = json.loads(file.read_text())
    change(value["events"])
    file.write_text(json.dumps(value))
    return file.read_text()


def test_it_prints_events_and_refusals_with_their_versions_fields_and_aliases() -> None:
    printed = json.loads(run())
    assert printed["events"]["bank.Deposited"] == {
        "app": "bank",
        "schema_version": 1,
        "aliases": [],
        "versions": {"1": {"amount": "Decimal", "balance": "Decimal"}},
    }
    assert "bank.InsufficientFunds" in printed["refusals"]
    assert {one["app"] for kind in printed.values() for one in kind.values()} == {"bank", "conference", "notes"}


def test_it_leaves_out_other_apps_and_the_events_of_tests(undeclared: None) -> None:
    body = {"__module__": "sample_project.bank.tests.test_domain"}
    type("OfATest", (DomainEvent,), {**body, "type_name": "bank.OfATest"})
    type("OfNoApp", (DomainEvent,), {"__module__": __name__, "type_name": "bank.OfNoApp"})
    names = json.loads(run())["events"].keys()
    assert "bank.Deposited" in names
    assert not {"bank.OfATest", "bank.OfNoApp"} & names


@pytest.mark.parametrize("packages", ["site-packages", "dist-packages"])
def test_it_leaves_out_what_was_installed_unless_that_is_named(monkeypatch: pytest.MonkeyPatch, packages: str) -> None:
    monkeypatch.setattr(apps.get_app_config("notes"), "path", f"lib/{packages}/notes")
    assert {one["app"] for one in json.loads(run())["events"].values()} == {"bank", "conference"}
    assert {one["app"] for one in json.loads(run("--app", "notes"))["events"].values()} == {"notes"}


def test_app_narrows_what_is_printed_written_and_checked(tmp_path: Path, file: Path) -> None:
    assert {one["app"] for kind in json.loads(run("--app", "notes")).values() for one in kind.values()} == {"notes"}
    path = tmp_path / "notes.json"
    run("--write", str(path), "--app", "notes")
    run("--check", str(path), "--app", "notes")
    with pytest.raises(CommandError, match=r"bank\.Deposited is not recorded yet"):
        run("--check", str(path))
    edit(file, lambda events: events.pop("notes.NoteCreated"))
    run("--check", str(file), "--app", "bank")
    with pytest.raises(CommandError, match=r"notes\.NoteCreated is not recorded yet"):
        run("--check", str(file), "--app", "bank", "--app", "notes")
    with pytest.raises(CommandError, match="nothere"):
        run("--app", "nothere")


def test_file_that_was_just_written_passes_and_is_written_again_the_same(file: Path) -> None:
    before = file.read_text()
    assert "the schemas match schemas.json" in run("--check", str(file))
    run("--write", str(file))
    assert file.read_text() == before


def test_default_is_a_file_in_the_directory_of_the_project(tmp_path: Path) -> None:
    with override_settings(BASE_DIR=tmp_path):
        run("--write")
        assert (tmp_path / "event_schemas.json").is_file()
        run("--check")
    with override_settings(BASE_DIR=str(tmp_path / "elsewhere")), pytest.raises(CommandError, match="--write"):
        run("--check")


BROKEN: list[tuple[Edit, str]] = [
    (lambda events: events["bank.Deposited"]["versions"]["1"].update(amount="int"),
     r"bank\.Deposited has changed without a new version \(amount was int and is Decimal\)"),
    (lambda events: events["bank.Deposited"]["versions"].update({"2": {}}), "versions never go back"),
    (lambda events: events.update({"bank.Gone": events["bank.Deposited"]}), r"bank\.Gone is gone"),
    (lambda events: events["bank.Deposited"]["aliases"].append("bank.Old"), r"has lost its alias 'bank\.Old'"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "text"), BROKEN)
def test_change_that_old_rows_break_on_fails_the_check_and_is_not_written(file: Path, change: Edit, text: str) -> None:
    before = edit(file, change)
    for option in ("--check", "--write"):
        with pytest.raises(CommandError, match=text) as caught:
            run(option, str(file))
        assert "What was never deployed may be taken out of schemas.json by hand" in str(caught.value)
    assert file.read_text() == before


def test_every_problem_is_listed(file: Path) -> None:
    for change, _ in (BROKEN[0], BROKEN[2]):
        edit(file, change)
    edit(file, lambda events: events.pop("notes.NoteCreated"))
    with pytest.raises(CommandError) as caught:
        run("--check", str(file))
    lines = str(caught.value).splitlines()
    assert [line.split(" ")[0] for line in lines[:3]] == ["bank.Deposited", "bank.Gone", "notes.NoteCreated"]


def test_new_class_fails_the_check_until_it_is_written(file: Path) -> None:
    edit(file, lambda events: events.pop("bank.Deposited"))
    with pytest.raises(CommandError, match=r"bank\.Deposited is not recorded yet\nWhat is not recorded: run"):
        run("--check", str(file))
    assert run("--write", str(file)).startswith("1 changes written")
    run("--check", str(file))


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"events": {"x": 1}, "refusals": {}}', "\x00"])
def test_file_that_cannot_be_read_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content)
    for option in ("--check", "--write"):
        with pytest.raises(CommandError, match=r"broken\.json is not a file of event schemas"):
            run(option, str(path))
    with pytest.raises(CommandError, match="cannot be read"):
        run("--check", str(tmp_path))
    with pytest.raises(CommandError, match="cannot be written"):
        run("--write", str(tmp_path / "missing" / "schemas.json"))
