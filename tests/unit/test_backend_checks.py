"""`manage.py check` reports queues and event stores that could never work. It connects to nothing."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from django.core.checks import run_checks
from django.test import override_settings

from enode_django.checks.backends import check_backends
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.memory import MemoryEventStore

BROKER = "enode_django.equeue.transports.broker.BrokerTransport"
REDIS = "enode_django.equeue.transports.redis_streams.RedisStreamsTransport"
MEMORY = f"{MemoryTransport.__module__}.MemoryTransport"
STORE = f"{MemoryEventStore.__module__}.MemoryEventStore"


def ids(**settings: Any) -> list[str | None]:
    with override_settings(ENODE=settings):
        return [message.id for message in check_backends(None)]


def only(**settings: Any) -> tuple[str | None, str]:
    with override_settings(ENODE=settings):
        (message,) = check_backends(None)
    assert message.is_serious()
    assert message.hint is not None
    return message.id, message.msg


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"QUEUE": {"LOCATION": "tcp://127.0.0.1:1"}},
        {"QUEUE": {"BACKEND": BROKER, "OPTIONS": {"timeout": 2, "secret": "s", "tls": True}}},
        {"QUEUE": {"BACKEND": REDIS}},
        {"QUEUE": {"BACKEND": REDIS, "LOCATION": "redis+cluster://one,two", "ALLOCATION": "builtins.print"}},
        {"QUEUE": {"BACKEND": REDIS, "OPTIONS": {"max_age": None, "max_length": 0, "wait_replicas": 1}}},
        {"QUEUE": {"BACKEND": MEMORY}, "EVENT_STORE": {"BACKEND": STORE}},
        {"SNAPSHOTS": {"ENABLED": False}, "SEND_IN_TESTS": True, "AUTODISCOVER_MODULES": ["domain"]},
    ],
)
def test_what_can_be_used_is_fine(settings: dict[str, Any]) -> None:
    assert ids(**settings) == []


@pytest.mark.parametrize("path", ["no.such.Thing", f"{BROKER}s", "RedisStreamsTransport", "..", "sys.path", 5])
def test_a_queue_that_cannot_be_imported_is_named(path: Any) -> None:
    id, text = only(QUEUE={"BACKEND": path})
    assert id == "enode_django.E080"
    assert repr(str(path)) in text


def test_a_queue_whose_package_is_missing_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = ("enode_django.equeue.redis", "enode_django.equeue.transports.redis")
    for name in [name for name in sys.modules if name.startswith(drivers)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    id, text = only(QUEUE={"BACKEND": REDIS})
    assert id == "enode_django.E080"
    assert 'pip install "enode_django[redis]"' in text


@pytest.mark.parametrize(
    ("queue", "told"),
    [
        ({"LOCATION": "127.0.0.1:7625"}, "like 'tcp://127.0.0.1:7625', got '127.0.0.1:7625'"),
        ({"LOCATION": "redis://:hush@127.0.0.1:6379/0"}, "like 'tcp://127.0.0.1:7625', got '…@127.0.0.1:6379/0'"),
        ({"LOCATION": None}, "got 'None'"),
        ({"BACKEND": REDIS, "LOCATION": "hush@localhost:6379"}, "has no scheme; let it begin with one of redis://"),
        ({"BACKEND": REDIS, "LOCATION": "tcp://localhost:7625"}, "begins with 'tcp'; let it begin with one of redis"),
        ({"BACKEND": REDIS, "LOCATION": "redis://localhost/first"}, "the database's number"),
        ({"OPTIONS": {"timeuot": 1}}, "'timeuot'"),
        ({"OPTIONS": {"timeout": "5"}}, "the option timeout is '5'; give it a number of seconds above 0"),
        ({"OPTIONS": {"timeout": 0}}, "the option timeout is 0"),
        ({"OPTIONS": {"secret": b"hush"}}, "the option secret is of the class bytes; give it a text"),
        ({"OPTIONS": {"tls": "/ca.pem"}}, "the option tls is of the class str; give it True"),
        ({"OPTIONS": {"tls": {"ca": "/no/such/file"}}}, "No such file"),
        ({"BACKEND": REDIS, "OPTIONS": {"wait_replicas": "1"}}, "the option wait_replicas is '1'"),
        ({"BACKEND": REDIS, "OPTIONS": {"max_age": "1 d"}}, "the option max_age is '1 d'"),
        ({"BACKEND": REDIS, "OPTIONS": {"max_length": 1.5}}, "the option max_length is 1.5"),
        ({"BACKEND": REDIS, "OPTIONS": {"client": "x"}}, "the option client is of the class str"),
        ({"BACKEND": REDIS, "OPTIONS": {"allocate": "x"}}, "the option allocate is 'x'"),
        ({"BACKEND": REDIS, "OPTIONS": {"prefix": 5}}, "the option prefix is of the class int"),
        ({"BACKEND": REDIS, "OPTIONS": {"delete_unconsumed": "no"}}, "delete_unconsumed is of the class str"),
        ({"BACKEND": f"{__name__}.without_location"}, "which takes no location and options as a transport does"),
        ({"BACKEND": "builtins.dict", "LOCATION": "x"}, "which takes no location and options as a transport does"),
    ],
)
def test_a_queue_that_cannot_be_used_is_named_with_what_it_takes(queue: dict[str, Any], told: str) -> None:
    id, text = only(QUEUE=queue)
    assert id == "enode_django.E081"
    assert told in text
    assert "hush" not in text


def without_location() -> MemoryTransport:
    return MemoryTransport()


@pytest.mark.parametrize("path", ["no.such.Store", "enode_django.eventstore.postgres", "enode_django.conf.LOCATIONS"])
def test_an_event_store_that_cannot_be_imported_is_named(path: str) -> None:
    id, text = only(EVENT_STORE={"BACKEND": path})
    assert id == "enode_django.E082"
    assert repr(path) in text


def test_they_run_with_every_check() -> None:
    with override_settings(ENODE={"QUEUE": {"LOCATION": "localhost"}}):
        assert "enode_django.E081" in [message.id for message in run_checks()]


def test_settings_that_are_no_dictionary_are_left_to_another_check() -> None:
    with override_settings(ENODE={"QUEUE": "tcp://127.0.0.1"}):
        assert check_backends(None) == []
