"""The reference pages say what the code says."""

from __future__ import annotations

import dataclasses
import inspect
import re
from argparse import ArgumentParser, _SubParsersAction

import pytest
from django.apps import apps
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand
from django.test import override_settings

import enode_django
from enode_django import backend_checks, checks, deploy_checks, store_checks, subscriber_checks
from enode_django.api import checks as api_checks
from enode_django.conf import API_DEFAULTS, BROKER_DEFAULTS, Conf
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.eventing.subscribers import Subscriber
from tests.docs.pages import DOCS, code_of, rows_by_code

REFERENCE = DOCS / "reference"
NESTED = {
    *("BACKEND", "LOCATION", "OPTIONS", "DATABASES", "ENABLED", "MAX_AGGREGATES"),
    *(
        "MAX_BYTES",
        "PREFIX",
        "TTL",
        "WRITE_INTERVAL",
        "TIME_LIMIT",
        "ATTEMPTS",
        "EXPORT_DIRECTORIES",
        "INTERVAL",
        "RETENTION",
    ),
}
SPARK = {"MASTER", "CONFIG", "PY_FILES", "REPLICAS", "DATABASE_TASKS"}
REBUILDS = {"ENGINE", "SPARK_FROM"}
BROKER_OPTIONS = {"timeout", "secret", "tls"}
REDIS_OPTIONS = {
    "prefix",
    "timeout",
    "max_age",
    "max_length",
    "client",
    "delete_unconsumed",
    "wait_replicas",
    "wait_timeout",
    "allocate",
}


def default_of(field: dataclasses.Field[object]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def test_every_setting_is_documented_with_its_default() -> None:
    rows = rows_by_code(REFERENCE / "settings.md")
    defaults = {field.name: repr(default_of(field)) for field in dataclasses.fields(Conf)}
    assert set(rows) - NESTED - SPARK - REBUILDS - REDIS_OPTIONS - BROKER_OPTIONS - set(BROKER_DEFAULTS) - set(
        API_DEFAULTS
    ) == set(defaults)
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
    assert code_of(rows["LOCATION"][1][1]) == repr(current.states_location)
    assert code_of(rows["PREFIX"][0][1]) == repr(current.states_prefix)
    assert code_of(rows["TTL"][0][1]) == repr(current.states_ttl)
    assert code_of(rows["WRITE_INTERVAL"][0][1]) == repr(current.states_write_interval)
    assert code_of(rows["ENABLED"][0][1]) == repr(current.snapshots_enabled)
    assert code_of(rows["MASTER"][0][1]) == repr(current.spark_master)
    assert code_of(rows["CONFIG"][0][1]) == repr(current.spark_config)
    assert code_of(rows["PY_FILES"][0][1]) == repr(current.spark_py_files)
    assert code_of(rows["REPLICAS"][0][1]) == repr(current.spark_replicas)
    assert code_of(rows["DATABASE_TASKS"][0][1]) == repr(current.spark_database_tasks)
    assert code_of(rows["LEASE"][1][1]) == repr(current.job_lease)
    assert code_of(rows["TIME_LIMIT"][0][1]) == repr(current.job_time_limit)
    assert code_of(rows["ATTEMPTS"][0][1]) == repr(current.job_attempts)
    assert code_of(rows["INTERVAL"][0][1]) == repr(current.report_interval)
    assert code_of(rows["RETENTION"][0][1]) == repr(current.report_retention)


def test_options_of_the_redis_transport_are_documented_with_their_defaults() -> None:
    rows = rows_by_code(REFERENCE / "settings.md")
    parameters = inspect.signature(RedisStreamsTransport).parameters.values()
    options = {each.name: repr(each.default) for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert options.keys() == REDIS_OPTIONS
    assert {name: code_of(rows[name][0][1]) for name in options} == options


def test_keys_of_the_broker_are_documented_with_their_defaults() -> None:
    rows = rows_by_code(REFERENCE / "settings.md")
    assert {key: code_of(rows[key][0][1]) for key in BROKER_DEFAULTS} == {
        k: repr(v) for k, v in BROKER_DEFAULTS.items()
    }


def test_keys_of_the_api_are_documented_with_their_defaults() -> None:
    rows = rows_by_code(REFERENCE / "settings.md")
    assert {key: code_of(rows[key][0][1]) for key in API_DEFAULTS} == {key: repr(v) for key, v in API_DEFAULTS.items()}


def test_options_of_the_brokers_transport_are_documented_with_their_defaults() -> None:
    rows = rows_by_code(REFERENCE / "settings.md")
    parameters = inspect.signature(BrokerTransport).parameters.values()
    options = {each.name: repr(each.default) for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert options.keys() == BROKER_OPTIONS
    assert {name: code_of(rows[name][-1][1]) for name in options} == options


def test_every_check_is_documented_once() -> None:
    modules = (backend_checks, checks, api_checks, deploy_checks, store_checks, subscriber_checks)
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
        "enodestatus",
        "enodedev",
        "parked",
        "buildsnapshots",
        "forgetsubscriber",
        "eventschemas",
        "jobs",
        "equeue",
        "startaggregate",
        "bankdemo",
    ],
)
def test_every_option_of_a_command_is_documented_in_its_section(command: str) -> None:
    sections = (REFERENCE / "commands.md").read_text(encoding="utf-8").split("\n## ")
    (section,) = (section for section in sections if section.startswith(f"{command}\n"))
    parser = load_command_class(get_commands()[command], command).create_parser("manage.py", command)
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


@pytest.mark.parametrize("kind", [enode_django.ModelProjection, enode_django.Projection, enode_django.ProcessManager])
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
    assert len(tables) == 7
    assert tables <= set(rows)
