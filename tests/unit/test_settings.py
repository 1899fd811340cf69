from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connections
from django.test import override_settings

from enode_django.checks.definitions import check_definitions
from enode_django.checks.settings import check_settings
from enode_django.checks.store import check_store
from enode_django.conf import broken_rules, conf, make_conf
from enode_django.conf.groups import GROUPS, IMMEDIATE, REDIS_STREAMS, Conf
from enode_django.domain.handlers import command_handlers
from enode_django.domain.messages import Command
from enode_django.equeue.transport import ROOM_AROUND
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.exceptions import ConfigurationError
from enode_django.repository.redis_states import RedisStates
from enode_django.repository.sealing import Seal
from enode_django.runtime import current_bus, make_states, make_store, make_transport, use_bus
from enode_django.testing import inline
from tests.services import REAL_QUEUE


def test_settings_are_read_at_use() -> None:
    assert conf().COMMANDS.MAILBOXES == 1
    with override_settings(ENODE={"COMMANDS": {"MAILBOXES": 5}, "AGGREGATE_CACHE": {"MAX_AGGREGATES": 7}}):
        assert (conf().COMMANDS.MAILBOXES, conf().AGGREGATE_CACHE.MAX_AGGREGATES) == (5, 7)
    assert conf().COMMANDS.MAILBOXES == 1


def test_every_key_has_a_default() -> None:
    current = Conf()
    assert current.QUEUE.BACKEND.endswith("BrokerTransport")
    assert current.QUEUE.LOCATION == "tcp://127.0.0.1:7625"
    assert (current.EVENT_STORE.DATABASES, current.AGGREGATE_CACHE.MAX_AGGREGATES) == (["default"], 100_000)


def test_backends_are_made_by_their_dotted_paths() -> None:
    memory = {"BACKEND": "enode_django.equeue.transports.memory.MemoryTransport", "LOCATION": "anywhere"}
    with override_settings(ENODE={"QUEUE": memory}):
        transport = make_transport()
        assert isinstance(transport, MemoryTransport)
        assert transport.location == "anywhere"
    for key in ("QUEUE", "EVENT_STORE"):
        settings = override_settings(ENODE={key: {"BACKEND": "no.such.thing"}})
        with settings, pytest.raises(ConfigurationError, match=rf"{key}.*'no\.such\.thing'"):
            make_transport() if key == "QUEUE" else make_store()


def test_states_are_shared_only_where_a_server_is_named() -> None:
    assert make_states() is None
    cache = {"LOCATION": "redis://localhost:1/3", "PREFIX": "mine"}
    with override_settings(ENODE={"AGGREGATE_CACHE": cache, "SNAPSHOTS": {"ENABLED": False}}):
        states = make_states()
    assert isinstance(states, RedisStates)
    assert states.key("a") == "mine:state:a"


def test_shared_states_are_sealed_with_the_secrets_of_the_project() -> None:
    cache = {"LOCATION": "redis://localhost:1/3"}
    with override_settings(ENODE={"AGGREGATE_CACHE": cache}, SECRET_KEY="new", SECRET_KEY_FALLBACKS=["old"]):
        states = make_states()
    assert isinstance(states, RedisStates)
    assert [states._seal.opened("a", Seal([secret]).sealed("a", b"x")) for secret in ("new", "old")] == [b"x", b"x"]


class Tolerant(MemoryTransport):
    def __init__(self, location: str = "", **options: object) -> None:
        super().__init__(location)
        self.options = options


def test_an_option_that_the_transport_does_not_know_is_named_with_it() -> None:
    with override_settings(ENODE={"QUEUE": {"OPTIONS": {"timeout": 1.0, "timeuot": 2.0}}}):
        expected = r"'timeuot', which \S+BrokerTransport does not know; it knows timeout, secret, tls"
        with pytest.raises(ConfigurationError, match=expected):
            make_transport()
        with pytest.raises(ConfigurationError, match="'timeuot'"):
            current_bus()


def test_a_transport_that_takes_any_option_gets_them_all() -> None:
    with override_settings(ENODE={"QUEUE": {"BACKEND": f"{__name__}.Tolerant", "OPTIONS": {"anything": 1}}}):
        transport = make_transport()
    assert isinstance(transport, Tolerant)
    assert transport.options == {"anything": 1}


def test_bus_is_made_anew_when_the_settings_change_but_a_tests_own_stays() -> None:
    memory = {**REAL_QUEUE, "QUEUE": {"BACKEND": "enode_django.equeue.transports.memory.MemoryTransport"}}
    with override_settings(ENODE=memory):
        bus = current_bus()
        assert current_bus() is bus
        with override_settings(ENODE={**memory, "COMMANDS": {"TOPIC": "others"}}):
            assert current_bus() is not bus
    with inline(followed_by=[]) as own, override_settings(ENODE=memory):
        assert current_bus() is own
        with use_bus(bus):
            assert current_bus() is bus
        assert current_bus() is own


NUMBERS = ["enode_django.E003", *["enode_django.E007"] * 2]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"COMAND_TOPIC": "x"}, ["enode_django.E002"]),
        ({1: 2}, ["enode_django.E002"]),
        ({"QUEUE": {"LOCATON": "redis://elsewhere"}}, ["enode_django.E002"]),
        ({"EVENT_STORE": {"DATABASE": "default"}, "AGGREGATE_CACHE": {"MAX": 1}}, ["enode_django.E002"] * 2),
        ({"WORKERS": {"PROCESSES": 0, "MAX_ABNORMAL_ENDS": 0}}, ["enode_django.E003"] * 2),
        ({"WORKERS": {"PROCESSES": None}}, []),
        ({"JOBS": {"LEASE": 30, "TIME_LIMIT": 600.5, "ATTEMPTS": 1}}, []),
        (
            {"JOBS": {"LEASE": 0, "TIME_LIMIT": None, "ATTEMPTS": 0.5}},
            [*["enode_django.E007"] * 2, "enode_django.E003"],
        ),
        ({"JOBS": {"TIMEOUT": 3}}, ["enode_django.E002"]),
        ({"REPORTS": {"INTERVAL": None, "RETENTION": 60}}, []),
        ({"API": {"MAX_BODY": 1.5, "MAX_TIMEOUT": "60", "STREAM_SECONDS": float("nan")}}, NUMBERS),
        ({"WORKERS": {"PRELOAD": "no"}, "SEND_IN_TESTS": 1}, ["enode_django.E084"] * 2),
        ({"SNAPSHOTS": {"ENABLED": "False"}}, ["enode_django.E084"]),
        ({"COMMANDS": {"TOPIC": "", "CONSUMER_GROUP": None}, "SUBSCRIBERS": {"TOPIC": 5}}, ["enode_django.E083"] * 3),
        *(({"AUTODISCOVER_MODULES": modules}, ["enode_django.E085"]) for modules in ("domain", 5, ["domain", 5], None)),
        ({"WORKERS": {"LEASE": timedelta(0), "GRACE": timedelta(minutes=2)}}, ["enode_django.E007"]),
        ({"WORKERS": {"UNKNOWN_TYPE_DELAYS": [timedelta(0), 2]}}, []),
        ({"REPORTS": {"INTERVAL": 0, "RETENTION": "1 h"}}, ["enode_django.E007", "enode_django.E007"]),
        ({"REPORTS": {"EVERY": 3}}, ["enode_django.E002"]),
        ({"EVENT_STORE": {"DATABASES": ["elsewhere"]}}, ["enode_django.E004"]),
        ({"COMMANDS": {"MAILBOXES": 0}}, ["enode_django.E003"]),
        ({"COMMANDS": {"COPY_MAX_BATCH": "5", "MAX_UNFINISHED": True}}, ["enode_django.E003", "enode_django.E003"]),
        ({"COMMANDS": {"RECENT_COMMANDS": 0, "EVENTS_MAX_BYTES": 1.5}}, ["enode_django.E003"] * 2),
        ({"COMMANDS": {"EVENTS_MAX_BYTES": BrokerTransport.max_send - ROOM_AROUND}}, []),
        ({"COMMANDS": {"EVENTS_MAX_BYTES": BrokerTransport.max_send - ROOM_AROUND + 1}}, ["enode_django.E062"]),
        (
            {"COMMANDS": {"EVENTS_MAX_BYTES": 1 << 40}, "QUEUE": {"BACKEND": f"{__name__}.Tolerant"}},
            ["enode_django.E062"],
        ),
        ({"COMMANDS": {"EVENTS_MAX_BYTES": 1 << 40}, "QUEUE": {"BACKEND": "no.such.queue"}}, []),
        ({"COMMANDS": {"EVENTS_MAX_BYTES": 1 << 40}, "QUEUE": {"BACKEND": ".."}}, []),
        ({"COMMANDS": {"REMEMBERED_ANSWERS": -1}}, ["enode_django.E009"]),
        ({"COMMANDS": {"REMEMBERED_ANSWERS": None}}, ["enode_django.E009"]),
        ({"COMMANDS": {"REMEMBERED_ANSWERS": 0}}, []),
        ({"AGGREGATE_CACHE": {"MAX_AGGREGATES": "many"}}, ["enode_django.E003"]),
        ({"AGGREGATE_CACHE": {"MAX_AGGREGATES": None}}, ["enode_django.E003"]),
        ({"AGGREGATE_CACHE": {"MAX_BYTES": 0}}, ["enode_django.E003"]),
        ({"COMMANDS": {"COPY_MAX_BYTES": 0, "MAX_UNFINISHED_BYTES": "1 GB"}}, ["enode_django.E003"] * 2),
        ({"WORKERS": {"LEASE": "10", "COMMIT_INTERVAL": 0, "GRACE": -1.0}}, ["enode_django.E007"] * 3),
        ({"COMMANDS": {"TIME_LIMIT": None, "EXECUTE_TIMEOUT": float("nan")}}, ["enode_django.E007"] * 2),
        ({"COMMANDS": {"REFUSAL_RETENTION": 0}}, ["enode_django.E007"]),
        ({"COMMANDS": {"REFUSAL_RETENTION": None}, "WORKERS": {"LEASE": 3}}, []),
        ({"WORKERS": {"UNKNOWN_TYPE_DELAYS": 5}}, ["enode_django.E008"]),
        ({"WORKERS": {"UNKNOWN_TYPE_DELAYS": [1, "2"]}}, ["enode_django.E008"]),
        ({"WORKERS": {"UNKNOWN_TYPE_DELAYS": [-1]}}, ["enode_django.E008"]),
        ({"WORKERS": {"UNKNOWN_TYPE_DELAYS": [0, 0.5]}}, []),
        ({"EVENT_STORE": {"DATABASES": []}}, ["enode_django.E004"]),
        ({"EVENT_STORE": {"DATABASES": "default"}}, ["enode_django.E004"]),
        ({"EVENT_STORE": {"DATABASES": ["default", "default"]}}, ["enode_django.E004"]),
        ({"EVENT_STORE": {"DATABASES": [["default"]]}}, ["enode_django.E004"]),
        ({"COMMANDS": {"TOPIC": "x"}, "SUBSCRIBERS": {"TOPIC": "x"}}, ["enode_django.E005"]),
        ({"WORKERS": {"RETRY_ON": ()}}, []),
        ({"WORKERS": {"RETRY_ON": ["builtins.OSError"]}}, []),
        ({"WORKERS": {"RETRY_ON": "builtins.OSError"}}, ["enode_django.E036"]),
        ({"WORKERS": {"RETRY_ON": [OSError]}}, ["enode_django.E036"]),
        ({"WORKERS": {"RETRY_ON": ["no.Such"]}}, ["enode_django.E036"]),
        ({"WORKERS": {"RETRY_ON": ["builtins.dict"]}}, ["enode_django.E036"]),
        ({"AGGREGATE_CACHE": {"LOCATION": "redis://localhost/1", "TTL": 60, "WRITE_INTERVAL": 0.5}}, []),
        ({"AGGREGATE_CACHE": {"TTL": 0.5, "WRITE_INTERVAL": 0}}, ["enode_django.E003", "enode_django.E007"]),
        ({"AGGREGATE_CACHE": {"TTL": "long", "WRITE_INTERVAL": None}}, ["enode_django.E003", "enode_django.E007"]),
        ({"AGGREGATE_CACHE": {"LOCATION": "memcached://localhost"}}, ["enode_django.E023"]),
        ({"AGGREGATE_CACHE": {"LOCATION": 6379}}, ["enode_django.E023"]),
        ({"AGGREGATE_CACHE": {"PREFIX": None}}, ["enode_django.E023"]),
        ({"SPARK": {"MASTERS": "local"}}, ["enode_django.E002"]),
        ({"SPARK": {"MASTER": ""}}, ["enode_django.E083"]),
        ({"SPARK": {"CONFIG": {"driver.memory": "1g"}}}, ["enode_django.E024"]),
        ({"SPARK": {"REPLICAS": {"default": "nowhere"}}}, ["enode_django.E024"]),
        ({"SPARK": {"REPLICAS": ["default"], "DATABASE_TASKS": 0}}, ["enode_django.E003", "enode_django.E024"]),
        ({"SPARK": {"REPLICAS": {"default": "default"}, "DATABASE_TASKS": 3}}, []),
        (
            {"SPARK": {"CONFIG": ["spark.driver.memory"], "PY_FILES": "a.zip"}},
            ["enode_django.E085", "enode_django.E024"],
        ),
        ({"REBUILDS": {"ENGINE": "processes", "PROCESSES": 2, "SPARK_FROM": 1}}, []),
        ({"JOBS": {"EXPORT_DIRECTORIES": "/archive"}}, ["enode_django.E085"]),
        ({"JOBS": {"EXPORT_DIRECTORIES": ["/archive", ""]}}, ["enode_django.E085"]),
        (
            {"REBUILDS": {"ENGINE": "ray", "PROCESSES": 0, "SPARK_FROM": 0}},
            ["enode_django.E067", *["enode_django.E003"] * 2],
        ),
    ],
)
def test_settings_that_cannot_be_used_are_reported(settings: dict[Any, Any], expected: list[str]) -> None:
    with override_settings(ENODE=settings):
        assert [message.id for message in [*check_settings(None), *check_store(None)]] == expected


def test_the_defaults_keep_all_rules() -> None:
    assert [*broken_rules(make_conf({}), GROUPS)] == []
    assert [place for place, _, _ in broken_rules(make_conf({"WORKERS": {"PROCESSES": 0}}), GROUPS)] == [
        "ENODE['WORKERS']['PROCESSES']"
    ]


def test_times_are_seconds_or_durations() -> None:
    given = {"COMMANDS": {"REFUSAL_RETENTION": timedelta(days=3), "TIME_LIMIT": 5}}
    given["WORKERS"] = {"RETRY_DELAY": timedelta(milliseconds=250), "UNKNOWN_TYPE_DELAYS": [timedelta(minutes=1), 2.5]}
    given["AGGREGATE_CACHE"] = {"TTL": timedelta(hours=1)}
    current = make_conf(given)
    assert (current.COMMANDS.REFUSAL_RETENTION, current.COMMANDS.TIME_LIMIT) == (259_200, 5)
    assert (current.WORKERS.RETRY_DELAY, current.WORKERS.UNKNOWN_TYPE_DELAYS) == (0.25, [60, 2.5])
    assert current.AGGREGATE_CACHE.TTL == 3_600


def test_the_location_of_the_queue_follows_its_backend() -> None:
    assert make_conf({"QUEUE": {"BACKEND": REDIS_STREAMS}}).QUEUE.LOCATION == "redis://127.0.0.1:6379/0"
    assert make_conf({"QUEUE": {"BACKEND": "a.queue.of.ones.own"}}).QUEUE.LOCATION == ""
    assert make_conf({"QUEUE": {"LOCATION": "tcp://queue:1"}}).QUEUE.LOCATION == "tcp://queue:1"


def test_settings_show_no_secrets() -> None:
    shown = repr(make_conf({"QUEUE": {"OPTIONS": {"secret": "hidden"}}, "BROKER": {"SECRET": "hidden"}}))
    assert "hidden" not in shown


@pytest.mark.parametrize(
    "wrong",
    [
        "redis://:hidden@queue",
        {"QUEUE": "redis://:hidden@queue"},
        {"QUEUE": {"OPTIONS": "secret=hidden"}},
        {"AGGREGATE_CACHE": {"LOCATION": ["redis://:hidden@one", "redis://:hidden@two"]}},
    ],
)
def test_a_url_in_the_wrong_place_is_reported_without_its_password(wrong: object) -> None:
    with override_settings(ENODE=wrong):
        (error,) = check_settings(None)
    assert "of the class" in error.msg
    assert "hidden" not in str(error)


@pytest.mark.parametrize(
    "settings",
    [["COMMANDS"], {"WORKERS": 4}, {"QUEUE": "redis://127.0.0.1:6379/0"}, {"QUEUE": {"OPTIONS": "prefix=mine"}}],
)
def test_settings_that_are_no_dictionary_are_reported(settings: object) -> None:
    with override_settings(ENODE=settings):
        assert [message.id for message in [*check_settings(None), *check_store(None)]] == ["enode_django.E001"]


def test_event_store_outside_postgresql_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "sqlite", raising=False)
    (error,) = check_store(None)
    assert error.id == "enode_django.E006"
    assert '"ENGINE": "django.db.backends.postgresql"' in str(error.hint)
    with override_settings(ENODE={"EVENT_STORE": {"BACKEND": "a.store.of.ones.own"}}):
        assert check_store(None) == []


def test_a_database_without_autocommit_is_refused_where_workers_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "AUTOCOMMIT", False)
    (error,) = check_store(None)
    assert error.id == "enode_django.E183"
    with override_settings(ENODE={"QUEUE": {"BACKEND": IMMEDIATE}}):
        assert check_store(None) == [], "a command belongs to the caller's transaction"


def messages(name: str) -> list[tuple[str | None, str]]:
    return [(message.id, message.msg) for message in check_definitions(None) if name in message.msg]


def test_two_handlers_for_one_command_are_an_error() -> None:
    class HandledTwice(Command):
        type_name = "checked_twice.HandledTwice"

    def one(command: Any, context: Any) -> None: ...
    def two(command: Any, context: Any) -> None: ...

    for handler in (one, two):
        command_handlers.add(HandledTwice, handler)
    try:
        ((id, text),) = messages("HandledTwice")
    finally:
        for handler in (one, two):
            command_handlers.remove(HandledTwice, handler)
    assert id == "enode_django.E010"
    assert ".one, " in text
    assert messages("HandledTwice") == []


@pytest.mark.usefixtures("undeclared")
def test_names_given_twice_or_not_at_all_and_fields_that_cannot_be_stored_are_reported() -> None:
    for name in ("FirstOfTwo", "SecondOfTwo"):
        type(name, (Command,), {"type_name": "checked_names.Two", "__module__": __name__})

    class Nameless(Command):
        pass

    class Unstorable(Command):
        type_name = "checked_names.Unstorable"
        thing: object

    class Unresolved(Command):
        type_name = "checked_names.Unresolved"
        thing: Missing  # type: ignore[name-defined]  # noqa: F821

    assert [id for id, _ in messages("SecondOfTwo")] == ["enode_django.E011"]
    assert [id for id, _ in messages("Nameless")] == ["enode_django.W012"]
    ((id, text),) = messages("Unstorable")
    assert id == "enode_django.E013"
    assert "Unstorable.thing" in text
    assert [id for id, _ in messages("Unresolved")] == ["enode_django.E013"]


def test_the_sample_passes_every_check() -> None:
    ours = [message for message in run_checks() if str(message.id).startswith("enode_django.")]
    tests = ("tests.", "Aggregates of ")  # those of tests share ids with those of the sample
    assert [message for message in ours if not any(one in message.msg for one in tests)] == []
