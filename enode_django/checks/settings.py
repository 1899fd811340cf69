"""System checks of the settings and of what the project's code declares. ``docs/reference/checks.md`` has every id."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections
from django.utils.module_loading import import_string

from enode_django import conf as settings
from enode_django.checks.moved_keys import MOVED, MOVED_OF_API
from enode_django.conf import groups
from enode_django.domain.aggregate import AggregateRoot, applied_events
from enode_django.domain.declarations import declared, schema_of
from enode_django.domain.handlers import command_handlers
from enode_django.domain.messages import DomainEvent
from enode_django.exceptions import ConfigurationError, DefinitionError
from enode_django.serialization.registry import Kind, types


def check_settings(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    return [*_settings()]


def check_definitions(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    return [*_handlers(), *_names(), *_fields(), *_appliers(), *_shared_ids(), *_uniques()]


def _settings() -> Iterator[CheckMessage]:
    try:
        given = settings.given()
    except ConfigurationError as error:
        yield Error(str(error), id="enode_django.E001")
        return
    yield from _keys("ENODE", given, groups.Conf, MOVED)
    for key, group in groups.GROUPS.items():
        moved = MOVED_OF_API if key == "API" else {}
        yield from _keys(f"ENODE[{key!r}]", given.get(key, {}), group, moved)
    for place, value, rule in settings.broken_rules(settings.conf()):
        yield Error(f"{place} is {value!r}; it must be {rule.wanted}.", id=rule.id)
    yield from _retries()
    yield from _sizes()
    yield from _topics()
    yield from _outboxes()
    yield from _states()
    yield from _spark()
    yield from _broker()


def _keys(
    name: str, level: Mapping[Any, Any], cls: type[Any], moved: Mapping[str, tuple[str, str]]
) -> Iterator[CheckMessage]:
    known = settings.keys_of(cls)
    for key in sorted(level.keys() - {*known}, key=str):
        if key in moved:
            yield _moved(f"{name}[{key!r}]", key, level[key], *moved[key])
        else:
            hint = f"Known are {', '.join(sorted(known))}."
            yield Error(f"{name} has the unknown key {key!r}.", hint=hint, id="enode_django.E002")


def _moved(old: str, key: str, value: object, group: str, new: str) -> Error:
    text = f"timedelta(days={value!r})" if key.endswith("_DAYS") and value is not None else repr(value)
    return Error(
        f"{old} is now ENODE[{group!r}][{new!r}].",
        hint=f'Write ENODE = {{"{group}": {{"{new}": {text}}}}}.',
        id="enode_django.E220",
    )


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
    wrong = [f"its {key} is {value!r}; it must be a text" for key, value in texts.items() if not isinstance(value, str)]
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
            f"{stray.name}() is marked with @command_handler in a class that is not an aggregate root.",
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
    """Warn about events without an applier in apps that have aggregates. Events of other apps may be applied in another
    project."""
    aggregates = _named(AggregateRoot)
    applied = {event for cls in aggregates for event in applied_events(cls)}
    for event, name in _named(DomainEvent).items():
        candidates = sorted(cls.__qualname__ for cls, known in aggregates.items() if _app(known) == _app(name))
        if candidates and not _is_applied(event, applied):
            yield Warning(
                f"{event.__module__}.{event.__qualname__} is applied by no aggregate: apply() would refuse it, and no "
                f"aggregate that has such an event could be loaded.",
                hint=f"Mark a method of {' or '.join(candidates)} with @applies, and annotate its parameter with "
                f"{event.__name__}, or say applied = False in the body of the event.",
                obj=event,
                id="enode_django.W028",
            )


def _shared_ids() -> Iterator[CheckMessage]:
    """Warn about classes of aggregates that can have the same ids, with one warning for all."""
    prefixes = {name: cls.id_prefix for cls, name in _named(AggregateRoot).items() if applied_events(cls)}
    shared = sorted(
        name
        for name, prefix in prefixes.items()
        if any(prefix.startswith(p) or p.startswith(prefix) for n, p in prefixes.items() if n != name)
    )
    if shared:
        yield Warning(
            f"Aggregates of {', '.join(shared)} can have the same ids, but an id belongs to one aggregate: if one "
            "class has used it, no other class can.",
            hint='Give each an id_prefix, such as id_prefix = "account-". If ids are UUIDs, or differ for other '
            "reasons, silence it: SILENCED_SYSTEM_CHECKS = ['enode_django.W171'].",
            id="enode_django.W171",
        )


def _uniques() -> Iterator[CheckMessage]:
    for cls, name in _named(AggregateRoot).items():
        for unique in cls._enode_unique:
            try:
                known = schema_of(cls).names
            except DefinitionError:  # E013 says so
                continue
            for field in unique.fields:
                if field not in known:
                    yield Error(
                        f"{name} declares {unique!r}, but has no field {field!r}.",
                        hint=f"It has {', '.join(known) or 'none'}.",
                        obj=cls,
                        id="enode_django.E270",
                    )
            if unique.normalize is not None and not callable(unique.normalize):
                yield Error(
                    f"{name} declares {unique!r} with normalize = {unique.normalize!r}, which cannot be called.",
                    hint="Give it a function, such as str.casefold, or leave it out.",
                    obj=cls,
                    id="enode_django.E271",
                )


def _named(kind: type[Kind]) -> dict[type[Kind], str]:
    """Return the project's registered classes with their present names. If a reloaded module has defined a class again,
    only the new one is returned."""
    classes = {types.class_of(kind, name) for name in types.names_of(kind)}
    return {cls: types.name_of(cls) for cls in classes if not cls.__module__.startswith("enode_django.")}


def _app(name: str) -> str:
    return name.partition(".")[0]


def _is_applied(event: type[DomainEvent], applied: AbstractSet[type[DomainEvent]]) -> bool:
    """Return True if the event, one of its bases, or an event derived from it is applied, or if its own body has
    ``applied = False``."""
    given = event.__dict__.get("applied", True) is False and "applied" not in inspect.get_annotations(event)
    return (
        given
        or any(base in applied for base in event.__mro__)
        or any(_is_applied(derived, applied) for derived in event.__subclasses__())
    )
