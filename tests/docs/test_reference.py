"""The reference pages say what the code says."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand
from django.test import override_settings

from enode_django import checks, subscriber_checks
from enode_django.conf import Conf
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from tests.docs.pages import DOCS, code_of, rows_by_code

REFERENCE = DOCS / "reference"
NESTED = {"BACKEND", "LOCATION", "OPTIONS", "DATABASES", "MAX_AGGREGATES"}
REDIS_OPTIONS = {"prefix", "timeout", "max_length", "client"}


def default_of(field: dataclasses.Field[object]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def test_every_setting_is_documented_with_its_default() -> None:
    rows = rows_by_code(REFERENCE / "settings.md")
    defaults = {field.name: repr(default_of(field)) for field in dataclasses.fields(Conf)}
    assert set(rows) - NESTED - REDIS_OPTIONS == set(defaults)
    assert {key: code_of(rows[key][0][1]) for key in defaults} == defaults
    assert all(row[2] for found in rows.values() for row in found)


def test_keys_within_settings_are_documented_with_their_defaults() -> None:
    rows = rows_by_code(REFERENCE / "settings.md")
    current = Conf()
    queue, store = rows["BACKEND"]
    assert code_of(queue[1]) == repr(current.queue_backend)
    assert code_of(store[1]) == repr(current.event_store_backend)
    assert code_of(rows["LOCATION"][0][1]) == repr(current.queue_location)
    assert code_of(rows["OPTIONS"][0][1]) == repr(current.queue_options)
    assert code_of(rows["DATABASES"][0][1]) == repr(current.event_databases)
    assert int(code_of(rows["MAX_AGGREGATES"][0][1])) == current.max_aggregates


def test_options_of_the_redis_transport_are_documented_with_their_defaults() -> None:
    rows = rows_by_code(REFERENCE / "settings.md")
    parameters = inspect.signature(RedisStreamsTransport).parameters.values()
    options = {each.name: repr(each.default) for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert options.keys() == REDIS_OPTIONS
    assert {name: code_of(rows[name][0][1]) for name in options} == options


def test_every_check_is_documented_once() -> None:
    ids = re.findall(
        r'id="(enode_django\.[EW]\d{3})"', inspect.getsource(checks) + inspect.getsource(subscriber_checks)
    )
    rows = rows_by_code(REFERENCE / "checks.md")
    assert len(ids) == len(set(ids)) > 0
    assert set(rows) == set(ids)
    assert all(len(found) == 1 for found in rows.values())


@override_settings(ENODE={"QUEUE": {}, "QUEUES": 3})
def test_the_setting_of_a_wrong_name_gets_the_check_that_its_page_says() -> None:
    (message,) = checks.check_settings(None)
    assert message.id == "enode_django.E002"
    assert "not known" in rows_by_code(REFERENCE / "checks.md")[message.id][0][1]


@pytest.mark.parametrize("command", ["runprocessors", "bankdemo"])
def test_every_option_of_a_command_is_documented_in_its_section(command: str) -> None:
    sections = (REFERENCE / "commands.md").read_text(encoding="utf-8").split("\n## ")
    (section,) = (section for section in sections if section.startswith(f"{command}\n"))
    parser = load_command_class(get_commands()[command], command).create_parser("manage.py", command)
    ours = {text for action in parser._actions for text in action.option_strings if text.startswith("--")}
    common = {text for action in BaseCommand().create_parser("", "")._actions for text in action.option_strings}
    documented = re.findall(r"^\| `(--[\w-]+)` \|", section, re.MULTILINE)
    assert sorted(documented) == sorted(ours - common)
