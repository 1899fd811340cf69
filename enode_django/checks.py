"""System checks. Every id is documented in ``docs/reference/checks.md``."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections
from django.utils.module_loading import import_string

from enode_django import conf as settings
from enode_django.domain.aggregate import AggregateRoot, applied_events
from enode_django.domain.declarations import declared, schema_of
from enode_django.domain.handlers import command_handlers
from enode_django.domain.messages import DomainEvent
from enode_django.exceptions import ConfigurationError, DefinitionError
from enode_django.serialization.registry import Kind, types


def check_settings(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    return [*_settings()]


def check_definitions(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    return [*_handlers(), *_names(), *_fields(), *_appliers()]


def _settings() -> Iterator[CheckMessage]:
    try:
        given = settings.given()
    except ConfigurationError as error:
        yield Error(str(error), id="enode_django.E001")
        return
    levels = [("ENODE", given, settings.KEYS)]
    levels += [(f"ENODE[{key!r}]", given.get(key, {}), known) for key, known in settings.NESTED_KEYS.items()]
    for name, level, known in levels:
        for key in sorted(level.keys() - known, key=str):
            yield Error(
                f"{name} has the unknown key {key!r}.",
                hint=f"Known are {', '.join(sorted(known))}.",
                id="enode_django.E002",
            )
    yield from _numbers()
    yield from _retries()
    yield from _sizes()
    yield from _topics()
    yield from _states()
    yield from _spark()
    yield from _rebuilds()
    yield from _exports()
    yield from _broker()


ALLOCATION_HINT = "Name a function that takes queues, members, and what they have, or leave ALLOCATION out."

_COUNTS = (
    "QUEUES_PER_TOPIC",
    "COMMAND_MAILBOXES",
    "EVENT_MAILBOXES",
    "COPY_MAX_BATCH",
    "COPY_MAX_BYTES",
    "PULL_MAX_BATCH",
    "EVENT_PULL_MAX_BATCH",
    "MAX_UNFINISHED",
    "MAX_UNFINISHED_BYTES",
    "RECENT_COMMANDS",
    "EVENTS_MAX_BYTES",
    "MAX_ABNORMAL_ENDS",
    "HANDLER_ATTEMPTS",
)
_COUNTS_OR_NONE = ("PROCESSES",)
_TIMES = (
    "COMMIT_INTERVAL",
    "LONG_POLL",
    "LEASE",
    "GRACE",
    "HANDLER_TIME_LIMIT",
    "SUBSCRIBER_TIME_LIMIT",
    "HANDLER_RETRY_DELAY",
    "SWEEP_INTERVAL",
    "EXECUTE_TIMEOUT",
)
_TIMES_OR_NONE = ("REFUSAL_RETENTION_DAYS", "DEAD_LETTER_RETENTION_DAYS")


def _numbers() -> Iterator[CheckMessage]:
    current = settings.conf()
    counts = {f"ENODE[{key!r}]": getattr(current, key) for key in _COUNTS}
    counts |= {f"ENODE[{key!r}]": getattr(current, key) for key in _COUNTS_OR_NONE if getattr(current, key) is not None}
    for key in ("MAX_AGGREGATES", "MAX_BYTES", "TTL"):
        counts[f"ENODE['AGGREGATE_CACHE'][{key!r}]"] = current.AGGREGATE_CACHE.get(key, 1)
    counts["ENODE['JOBS']['ATTEMPTS']"] = current.job_attempts
    for name, value in counts.items():
        if type(value) is not int or value < 1:
            yield Error(f"{name} is {value!r}; it must be a whole number above 0.", id="enode_django.E003")
    times = {f"ENODE[{key!r}]": getattr(current, key) for key in _TIMES}
    times |= {f"ENODE[{key!r}]": getattr(current, key) for key in _TIMES_OR_NONE if getattr(current, key) is not None}
    times["ENODE['AGGREGATE_CACHE']['WRITE_INTERVAL']"] = current.AGGREGATE_CACHE.get("WRITE_INTERVAL", 1)
    times["ENODE['JOBS']['LEASE']"] = current.job_lease
    times["ENODE['JOBS']['TIME_LIMIT']"] = current.job_time_limit
    times["ENODE['REPORTS']['RETENTION']"] = current.report_retention
    if current.report_interval is not None:
        times["ENODE['REPORTS']['INTERVAL']"] = current.report_interval
    for name, value in times.items():
        if not _is_number(value) or value <= 0:
            yield Error(f"{name} is {value!r}; it must be a number above 0.", id="enode_django.E007")
    delays = current.UNKNOWN_TYPE_DELAYS
    if not isinstance(delays, list | tuple) or not all(_is_number(delay) and delay >= 0 for delay in delays):
        yield Error(
            f"ENODE['UNKNOWN_TYPE_DELAYS'] is {delays!r}; it must be a list of numbers that are not below 0.",
            id="enode_django.E008",
        )
    remembered = current.REMEMBERED_ANSWERS
    if type(remembered) is not int or remembered < 0:
        yield Error(
            f"ENODE['REMEMBERED_ANSWERS'] is {remembered!r}; it must be a whole number that is not below 0.",
            id="enode_django.E009",
        )


def _is_number(value: object) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _retries() -> Iterator[CheckMessage]:
    current = settings.conf()
    paths = current.HANDLER_RETRY_ON
    if paths == settings.PASSING_ERRORS:
        return
    from enode_django.runtime import make_retries  # it wires everything, which a check of the defaults is spared

    try:
        if not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
            raise ConfigurationError(f"ENODE HANDLER_RETRY_ON is {paths!r}, no list of dotted paths")
        make_retries(current)
    except ConfigurationError as error:
        yield Error(
            f"{error}.",
            hint="List exceptions by dotted paths, such as 'django.db.OperationalError' or 'builtins.TimeoutError'.",
            id="enode_django.E036",
        )


def _sizes() -> Iterator[CheckMessage]:
    """Compare `EVENTS_MAX_BYTES` with the ``max_send`` of the queue's driver.

    Without the setting nothing is imported or checked, since the default fits. A driver without ``max_send`` on its
    class is passed over.
    """
    current = settings.conf()
    if "EVENTS_MAX_BYTES" not in settings.given():
        return
    from enode_django.equeue.transports.base import ROOM_AROUND

    try:
        max_send = getattr(import_string(current.queue_backend), "max_send", None)
    except (ImportError, TypeError, ValueError):  # E080 says so
        return
    if type(max_send) is not int or type(current.EVENTS_MAX_BYTES) is not int:
        return
    largest = max_send - ROOM_AROUND
    if largest < current.EVENTS_MAX_BYTES:
        yield Error(
            f"ENODE['EVENTS_MAX_BYTES'] is {current.EVENTS_MAX_BYTES}, but the queue takes no message of more than "
            f"{largest} bytes: workers refuse what is larger.",
            hint=f"Set it to {largest} at most.",
            id="enode_django.E062",
        )


def _topics() -> Iterator[CheckMessage]:
    current = settings.conf()
    if current.COMMAND_TOPIC == current.EVENT_TOPIC:
        yield Error(f"ENODE uses the topic {current.COMMAND_TOPIC!r} for commands and events.", id="enode_django.E005")


def _states() -> Iterator[CheckMessage]:
    current = settings.conf()
    texts = {"PREFIX": current.states_prefix}
    if current.states_location is not None:
        texts["LOCATION"] = current.states_location
    wrong = [f"its {key} is {value!r}, no text" for key, value in texts.items() if not isinstance(value, str)]
    if not wrong and current.states_location is not None:
        from enode_django.runtime import make_states  # it wires everything, which a check without a location is spared

        try:
            make_states()
        except ConfigurationError as error:
            wrong.append(str(error))
    if wrong:
        yield Error(
            f"ENODE['AGGREGATE_CACHE'] cannot be used: {wrong[0]}.",
            hint="LOCATION is None, or a Redis server's, for which the extra 'redis' is installed.",
            id="enode_django.E023",
        )


def _spark() -> Iterator[CheckMessage]:
    given = settings.conf().SPARK
    master, config, files = given.get("MASTER", "local"), given.get("CONFIG", {}), given.get("PY_FILES", [])
    if not isinstance(master, str) or not master:
        yield _wrong_spark("MASTER", master, "name a master of Spark, such as 'local[*]' or 'spark://host:7077'")
    if not isinstance(config, Mapping) or not all(str(key).startswith("spark.") for key in config):
        yield _wrong_spark("CONFIG", config, "be a dictionary of Spark's properties, such as 'spark.driver.memory'")
    if not isinstance(files, list | tuple) or not all(isinstance(file, str) for file in files):
        yield _wrong_spark("PY_FILES", files, "be a list of paths or URLs of .py, .zip or .egg files")
    replicas, most = given.get("REPLICAS", {}), given.get("DATABASE_TASKS")
    if not isinstance(replicas, Mapping) or not {*replicas, *replicas.values()} <= {*connections}:
        yield _wrong_spark("REPLICAS", replicas, "be a dictionary of aliases of DATABASES, by the alias of the shard")
    if most is not None and (not isinstance(most, int) or most < 1):
        yield _wrong_spark("DATABASE_TASKS", most, "be a whole number above 0, or None")


def _rebuilds() -> Iterator[CheckMessage]:
    current = settings.conf()
    if current.rebuild_engine not in settings.ENGINES:
        known = ", ".join(map(repr, settings.ENGINES))
        yield _wrong_rebuilds("ENGINE", current.rebuild_engine, f"be one of {known}")
    counts = {"SPARK_FROM": current.rebuild_spark_from, "PROCESSES": current.rebuild_processes}
    for key, count in counts.items():
        if count is not None and not _is_count(count):
            yield _wrong_rebuilds(key, count, "be a whole number above 0, or None")


def _exports() -> Iterator[CheckMessage]:
    directories = settings.conf().JOBS.get("EXPORT_DIRECTORIES", [])
    is_list = isinstance(directories, list | tuple)
    if not is_list or not all(isinstance(each, str) and each for each in directories):
        yield Error(
            f"ENODE['JOBS']['EXPORT_DIRECTORIES'] is {directories!r}; it must be a list of directories, or of URIs "
            "that Spark can write to.",
            id="enode_django.E092",
        )


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _wrong_rebuilds(key: str, value: object, wanted: str) -> Error:
    return Error(f"ENODE['REBUILDS'][{key!r}] is {value!r}; it must {wanted}.", id="enode_django.E067")


def _wrong_spark(key: str, value: object, wanted: str) -> Error:
    return Error(f"ENODE['SPARK'][{key!r}] is {value!r}; it must {wanted}.", id="enode_django.E024")


def _broker() -> Iterator[CheckMessage]:
    current = settings.conf()
    if not current.BROKER and current.ALLOCATION is None:
        return
    from enode_django.broker_settings import broker_options, chosen_allocation  # the broker, which few checks need

    try:
        chosen_allocation(current)
    except ConfigurationError as error:
        yield Error(f"{error}.", hint=ALLOCATION_HINT, id="enode_django.E039")
        return
    try:
        broker_options(current)
    except ConfigurationError as error:
        yield Error(str(error), id="enode_django.E026")


def _handlers() -> Iterator[CheckMessage]:
    for command, names in command_handlers.duplicates():
        yield Error(
            f"{command.__qualname__} has several handlers: {names}.",
            hint="Keep one.",
            obj=command,
            id="enode_django.E010",
        )
    for stray in sorted(command_handlers.strays, key=lambda stray: stray.name):
        yield Error(
            f"{stray.name}() is marked with @command_handler in a class that is no aggregate root.",
            hint="Derive the class from AggregateRoot, or move the function out of it.",
            id="enode_django.E150",
        )


def _names() -> Iterator[CheckMessage]:
    for name, one, other in types.duplicates():
        yield Error(
            f"{one.__module__}.{one.__qualname__} and {other.__module__}.{other.__qualname__} are both named {name!r}.",
            hint="Give one of them another type_name in its body, or take the alias away.",
            id="enode_django.E011",
        )
    for cls in types.unnamed():
        yield Warning(
            f"{cls.__module__}.{cls.__qualname__} belongs to no installed app: it cannot be sent or stored.",
            hint='Give it a type_name = "label.Name" in its body, or install its app.',
            id="enode_django.W012",
        )


def _fields() -> Iterator[CheckMessage]:
    for cls in declared():
        try:
            schema_of(cls)
        except DefinitionError as error:
            yield Error(f"{cls.__module__}: {error}", obj=cls, id="enode_django.E013")


def _appliers() -> Iterator[CheckMessage]:
    """Warn about events without an applier, in apps that have aggregates: events of other apps may be applied in
    another project."""
    aggregates = _named(AggregateRoot)
    applied = {event for cls in aggregates for event in applied_events(cls)}
    for event, name in _named(DomainEvent).items():
        candidates = sorted(cls.__qualname__ for cls, known in aggregates.items() if _app(known) == _app(name))
        if candidates and not _is_applied(event, applied):
            yield Warning(
                f"{event.__module__}.{event.__qualname__} is applied by no aggregate: apply() would refuse it, and no "
                f"aggregate that has such an event could be loaded.",
                hint=f"Mark a method of {' or '.join(candidates)} with @applies({event.__name__}), or say applied = "
                "False in the body of the event.",
                obj=event,
                id="enode_django.W028",
            )


def _named(kind: type[Kind]) -> dict[type[Kind], str]:
    """Return the registered classes, each with its present name. A class that a reloaded module defined again replaces
    the one before."""
    classes = {types.class_of(kind, name) for name in types.names_of(kind)}
    return {cls: types.name_of(cls) for cls in classes if not cls.__module__.startswith("enode_django.")}


def _app(name: str) -> str:
    return name.partition(".")[0]


def _is_applied(event: type[DomainEvent], applied: AbstractSet[type[DomainEvent]]) -> bool:
    """By a method for it or for one of its bases. The base of events that are applied need not be applied itself; and
    ``applied = False`` in its own body says that it is not meant to be."""
    given = event.__dict__.get("applied", True) is False and "applied" not in inspect.get_annotations(event)
    return (
        given
        or any(base in applied for base in event.__mro__)
        or any(_is_applied(derived, applied) for derived in event.__subclasses__())
    )
