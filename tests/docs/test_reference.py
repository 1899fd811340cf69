"""The reference pages agree with the code."""

from __future__ import annotations

import inspect
import re
from argparse import ArgumentParser, _SubParsersAction
from typing import Any

import pytest
from django.apps import apps
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand
from django.test import override_settings

import enode_django
from enode_django.admin import read_models as admin_checks
from enode_django.checks import api as api_checks
from enode_django.checks import backends as backend_checks
from enode_django.checks import definitions as definition_checks
from enode_django.checks import deploy as deploy_checks
from enode_django.checks import misspelt as misspelt_checks
from enode_django.checks import scheduling as scheduling_checks
from enode_django.checks import settings as checks
from enode_django.checks import store as store_checks
from enode_django.checks import subscribers as subscriber_checks
from enode_django.conf import keys_of, rules
from enode_django.conf.groups import GROUPS, Conf
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.eventing.subscribers import Subscriber
from enode_django.management.commands.enode import SUBCOMMANDS, load
from tests.docs.pages import DOCS, code_of, rows_by_code, tables_of

REFERENCE = DOCS / "reference"


def settings_tables() -> dict[str, list[list[str]]]:
    """The rows of the first table of each section of the settings, by its heading."""
    sections = (REFERENCE / "settings.md").read_text(encoding="utf-8").split("\n## ")
    return {section.splitlines()[0]: next(tables_of(section)) for section in sections}


@pytest.mark.parametrize(("section", "group"), [("# Settings", Conf), *GROUPS.items()])
def test_every_setting_is_documented_with_its_default(section: str, group: type[Any]) -> None:
    rows = settings_tables()[section]
    defaults = group()
    shown = {key: "{}" if key in GROUPS else repr(getattr(defaults, key)) for key in keys_of(group)}
    assert {code_of(key): code_of(default) for key, default, _ in rows} == shown
    assert all(meaning for _, _, meaning in rows)


def test_options_of_the_redis_transport_are_documented_with_their_defaults() -> None:
    rows = rows_by_code(REFERENCE / "settings.md")
    parameters = inspect.signature(RedisStreamsTransport).parameters.values()
    options = {each.name: repr(each.default) for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert {name: code_of(rows[name][0][1]) for name in options} == options


def test_options_of_the_brokers_transport_are_documented_with_their_defaults() -> None:
    rows = rows_by_code(REFERENCE / "settings.md")
    parameters = inspect.signature(BrokerTransport).parameters.values()
    options = {each.name: repr(each.default) for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert {name: code_of(rows[name][-1][1]) for name in options} == options


def test_every_check_is_documented_once() -> None:
    modules = (
        admin_checks,
        backend_checks,
        checks,
        definition_checks,
        misspelt_checks,
        rules,
        api_checks,
        deploy_checks,
        scheduling_checks,
        store_checks,
        subscriber_checks,
    )
    ids = re.findall(r'id="(enode_django\.[EW]\d{3})"', "".join(map(inspect.getsource, modules)))
    rows = rows_by_code(REFERENCE / "checks.md")
    assert len(ids) == len(set(ids)) > 0
    assert set(rows) == set(ids)
    assert all(len(found) == 1 for found in rows.values())


@override_settings(ENODE={"QUEUE": {}, "QUEUES": 3})
def test_the_setting_of_a_wrong_name_gets_the_check_that_its_page_says() -> None:
    (message,) = checks.check_settings(None)
    assert message.id == "enode_django.E002"
    assert "not known" in rows_by_code(REFERENCE / "checks.md")[message.id][0][1]


def options_of(parser: ArgumentParser) -> set[str]:
    """Those of its actions (``parked list``, ``parked retry``), too."""
    found = {text for action in parser._actions for text in action.option_strings if text.startswith("--")}
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            found.update(*map(options_of, action.choices.values()))
    return found


@pytest.mark.parametrize(
    "command",
    [
        "runprocessors",
        "runbroker",
        "enode status",
        "enodedev",
        "enode parked",
        "enode buildsnapshots",
        "enode exportevents",
        "enode forgetsubscriber",
        "enode groups",
        "enode keepsubscriber",
        "enode eventschemas",
        "enode jobs",
        "enode queue",
        "enode rehearse",
        "enode unique",
        "rebuildprojection",
        "startaggregate",
        "bankdemo",
    ],
)
def test_every_option_of_a_command_is_documented_in_its_section(command: str) -> None:
    sections = (REFERENCE / "commands.md").read_text(encoding="utf-8").split("\n## ")
    (section,) = (section for section in sections if section.startswith(f"{command}\n"))
    name = command.split()[-1]
    loaded = load(name) if name in SUBCOMMANDS else load_command_class(get_commands()[name], name)
    parser = loaded.create_parser("manage.py", command)
    documented = re.findall(r"^\| `(--[\w-]+)` \|", section, re.MULTILINE)
    assert sorted(documented) == sorted(options_of(parser) - options_of(BaseCommand().create_parser("", "")))


def test_every_parameter_of_an_event_handler_is_documented() -> None:
    text = (REFERENCE / "subscribers.md").read_text(encoding="utf-8")
    rows = rows_by_code(REFERENCE / "subscribers.md")
    parameters = inspect.signature(enode_django.event_handler).parameters.values()
    for parameter in parameters:
        named = f"*{parameter.name}" if parameter.kind is parameter.VAR_POSITIONAL else parameter.name
        assert named in rows
        if parameter.default is not parameter.empty:
            assert f"{parameter.name}={parameter.default!r}".replace("'", '"') in text


@pytest.mark.parametrize(
    "kind",
    [enode_django.ModelProjection, enode_django.MultiProjection, enode_django.Projection, enode_django.ProcessManager],
)
def test_what_a_subscriber_declares_is_documented_with_its_default(kind: type[Subscriber]) -> None:
    rows = rows_by_code(REFERENCE / "subscribers.md")
    own = "; of a process manager " if kind is enode_django.ProcessManager else ""
    for attribute in ("start", "replays"):
        default = str(getattr(kind, attribute)) if attribute == "replays" else f'"{getattr(kind, attribute)}"'
        (row,) = rows[attribute][:1]
        assert f"{own}`{default}`" in row[1] if own else row[1].startswith(f"`{default}`")
    assert {"name", "model", "models"} <= set(rows)


def test_the_tables_of_subscribers_are_documented() -> None:
    rows = rows_by_code(REFERENCE / "subscribers.md")
    models = apps.get_app_config("enode_django").get_models()
    tables = {model.__name__ for model in models if any(field.name == "subscriber" for field in model._meta.fields)}
    assert len(tables) == 9
    assert tables <= set(rows)
