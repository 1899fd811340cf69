"""System checks of the settings. ``docs/reference/checks.md`` has every id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error
from django.db import connections
from django.utils.module_loading import import_string

from enode_django import conf as settings
from enode_django.conf import groups
from enode_django.exceptions import ConfigurationError


def check_settings(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    return [*_settings()]


def _settings() -> Iterator[CheckMessage]:
    try:
        given = settings.given()
    except ConfigurationError as error:
        yield Error(str(error), id="enode_django.E001")
        return
    yield from _keys("ENODE", given, groups.Conf)
    for key, group in groups.GROUPS.items():
        yield from _keys(f"ENODE[{key!r}]", given.get(key, {}), group)
    for place, value, rule in settings.broken_rules(settings.conf(), given):
        yield Error(f"{place} is {value!r}; it must be {rule.wanted}.", id=rule.id)
    for check in (_retries, _sizes, _topics, _outboxes, _states, _spark, _broker):
        yield from check()


def _keys(name: str, level: Mapping[Any, Any], cls: type[Any]) -> Iterator[CheckMessage]:
    known = settings.keys_of(cls)
    for key in sorted(level.keys() - {*known}, key=str):
        hint = f"Known are {', '.join(sorted(known))}."
        yield Error(f"{name} has the unknown key {key!r}.", hint=hint, id="enode_django.E002")


ALLOCATION_HINT = "Name a function that takes queues, members and their present queues, or leave ALLOCATION out."


def _retries() -> Iterator[CheckMessage]:
    current = settings.conf()
    paths = current.WORKERS.RETRY_ON
    if paths == groups.PASSING_ERRORS:
        return
    from enode_django.runtime import make_retries  # slow to import, and not needed for the defaults

    try:
        if not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
            raise ConfigurationError(f"ENODE['WORKERS']['RETRY_ON'] is {paths!r}; it must be a list of dotted paths")
        make_retries(current)
    except ConfigurationError as error:
        yield Error(
            f"{error}.",
            hint="List exceptions by dotted paths, such as 'django.db.OperationalError' or 'builtins.TimeoutError'.",
            id="enode_django.E036",
        )


def _sizes() -> Iterator[CheckMessage]:
    """Compare `EVENTS_MAX_BYTES` with the ``max_send`` of the queue's driver.

    Without the setting nothing is imported or checked, since the default fits. Values that are not integers, and
    drivers without a ``max_send`` on their class, are not checked.
    """
    current = settings.conf()
    size = current.COMMANDS.EVENTS_MAX_BYTES
    if "EVENTS_MAX_BYTES" not in settings.given().get("COMMANDS", {}):
        return
    from enode_django.equeue.transport import ROOM_AROUND

    try:
        max_send = getattr(import_string(current.QUEUE.BACKEND), "max_send", None)
    except (ImportError, TypeError, ValueError):  # E080 says so
        return
    if type(max_send) is not int or type(size) is not int:
        return
    largest = max_send - ROOM_AROUND
    if largest < size:
        yield Error(
            f"ENODE['COMMANDS']['EVENTS_MAX_BYTES'] is {size}, but the queue takes no message of more than {largest} "
            "bytes: workers would refuse larger ones.",
            hint=f"Set it to {largest} at most.",
            id="enode_django.E062",
        )


def _topics() -> Iterator[CheckMessage]:
    topic = settings.conf().COMMANDS.TOPIC
    if topic == settings.conf().SUBSCRIBERS.TOPIC:
        yield Error(f"ENODE uses the topic {topic!r} for commands and events.", id="enode_django.E005")


def _outboxes() -> Iterator[CheckMessage]:
    aliases = settings.conf().OUTBOX.DATABASES
    for alias in aliases if isinstance(aliases, list | tuple) else ():
        if alias not in connections or connections[alias].vendor != "postgresql":
            yield Error(
                f"ENODE['OUTBOX']['DATABASES'] names {alias!r}, which is no PostgreSQL database of DATABASES.",
                hint=f"DATABASES has {', '.join(sorted(connections))}.",
                id="enode_django.E063",
            )


def _states() -> Iterator[CheckMessage]:
    cache = settings.conf().AGGREGATE_CACHE
    texts = {"PREFIX": cache.PREFIX}
    if cache.LOCATION is not None:
        texts["LOCATION"] = cache.LOCATION
    wrong = [  # not the value, which may be a list of URLs with passwords
        f"its {key} is of the class {type(value).__name__!r}; it must be a text"
        for key, value in texts.items()
        if not isinstance(value, str)
    ]
    if not wrong and cache.LOCATION is not None:
        from enode_django.runtime import make_states  # slow to import, and not needed without a location

        try:
            make_states()
        except ConfigurationError as error:
            wrong.append(str(error))
    if wrong:
        yield Error(
            f"ENODE['AGGREGATE_CACHE'] cannot be used: {wrong[0]}.",
            hint="LOCATION is None, or the URL of a Redis server; that needs the extra 'redis'.",
            id="enode_django.E023",
        )


def _spark() -> Iterator[CheckMessage]:
    config, replicas = settings.conf().SPARK.CONFIG, settings.conf().SPARK.REPLICAS
    if not isinstance(config, Mapping) or not all(str(key).startswith("spark.") for key in config):
        yield _wrong_spark("CONFIG", config, "be a dictionary of Spark's properties, such as 'spark.driver.memory'")
    if not isinstance(replicas, Mapping) or not {*replicas, *replicas.values()} <= {*connections}:
        yield _wrong_spark("REPLICAS", replicas, "be a dictionary of aliases of DATABASES, by the alias of the shard")


def _wrong_spark(key: str, value: object, wanted: str) -> Error:
    return Error(f"ENODE['SPARK'][{key!r}] is {value!r}; it must {wanted}.", id="enode_django.E024")


def _broker() -> Iterator[CheckMessage]:
    current = settings.conf()
    if not settings.given().get("BROKER") and current.QUEUE.ALLOCATION is None:
        return
    from enode_django.processors.broker_options import broker_options  # only a setting of the broker needs it
    from enode_django.runtime import chosen_allocation

    try:
        chosen_allocation(current)
    except ConfigurationError as error:
        yield Error(f"{error}.", hint=ALLOCATION_HINT, id="enode_django.E039")
        return
    try:
        broker_options(current)
    except ConfigurationError as error:
        yield Error(str(error), hint="Correct the key of ENODE['BROKER'] that has this value.", id="enode_django.E026")
