"""System checks of subscribers. ``docs/reference/checks.md`` has every id."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections, transaction
from django.db.models import ForeignKey, ManyToOneRel, Model

from enode_django.checks.misspelt import misspelt_settings
from enode_django.checks.store import is_wrong_store
from enode_django.conf import conf
from enode_django.domain.declarations import schema_of
from enode_django.eventing.base_projections import BaseProjection, RowProjection
from enode_django.eventing.event_handlers import EventHandlerGroup, declared_groups, handler_groups, place_of
from enode_django.eventing.process_managers import ProcessManager
from enode_django.eventing.projections import Projection, databases_of
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import (
    Subscriber,
    declared_subscribers,
    is_time_limit,
    subscribers_without_handlers,
)
from enode_django.eventstore.sqlstates import DATABASE_ERRORS
from enode_django.exceptions import ConfigurationError, DefinitionError, RebuildError, TypeNameError
from enode_django.runtime import has_queue


def check_subscribers(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    named, messages = _named()
    messages += _unnamed_groups()
    groups = handler_groups()
    messages += _duplicates([*named, *groups])
    messages += _shared_rows(named)
    messages += _foreign_keys(named)
    for subscriber in [*named, *groups]:
        for check in (_databases, _fields_for_rebuilds, _links, _limits, _state, _outbox, _key_field):
            messages += check(subscriber)
    for cls in declared_subscribers():
        messages += misspelt_settings(cls)
    messages += _without_handlers()
    messages += _pools([*named, *groups])
    for group in groups:
        messages += [*_agreement(group), *_ambiguity(group)]
    return messages


def _named() -> tuple[list[Subscriber], list[CheckMessage]]:
    named: list[Subscriber] = []
    unnamed: list[CheckMessage] = []
    for cls in declared_subscribers():
        try:
            named.append(subscribers.instance(cls))
        except TypeNameError:
            unnamed.append(_nameless(_path(cls), f'a name = "label.{cls.__name__}" in its body', cls))
    return named, unnamed


def _unnamed_groups() -> Iterator[CheckMessage]:
    named = handler_groups()
    for group in declared_groups():
        if group not in named:
            function = group.handlers[0].function
            yield _nameless(_description(group), f'a name="label.{function.__name__}" in its decorator', function)


def _nameless(what: str, name: str, obj: object) -> CheckMessage:
    return Warning(
        f"{what} belongs to no installed app: without a name it cannot follow events.",
        hint=f"Give it {name}, or install its app.",
        obj=obj,
        id="enode_django.W018",
    )


def _without_handlers() -> Iterator[CheckMessage]:
    for cls in subscribers_without_handlers():
        methods = [f"{name}()" for name, member in vars(cls).items() if isinstance(member, FunctionType)]
        if not methods:
            continue
        yield Warning(
            f"{_path(cls)} handles nothing, so it never runs: none of its methods ({', '.join(methods)}) is marked.",
            hint="Mark its handlers with @handles, above all decorators that do not use functools.wraps; or, if it is "
            "a base class, say abstract = True in its body.",
            obj=cls,
            id="enode_django.W180",
        )


def _pools(known: Sequence[Subscriber]) -> Iterator[CheckMessage]:
    """Warn of a pool of psycopg that is too small: a subscriber keeps its connections, so others would get none."""
    try:
        current, has_workers = conf(), has_queue()
    except ConfigurationError:  # E001 or E080 says so
        return
    if not (known and has_workers):
        return
    shards = {alias for alias in current.EVENT_STORE.DATABASES if alias in connections}
    needed = Counter(shards)  # of the subscriber that makes snapshots
    for subscriber in known:
        needed.update({*shards, subscriber.database})
    for alias, count in needed.items():
        size = _pool_size(connections[alias].settings_dict["OPTIONS"].get("pool"))
        if size < count:
            yield Warning(
                f"The pool of the database {alias!r} has {size:g} connections for a process, but an event worker needs "
                f"{count}: each subscriber keeps one, and those that get none never handle an event.",
                hint=f"Set 'max_size' of its OPTIONS['pool'] to {count} or more, or leave the pool out where "
                "runprocessors runs: its workers keep their connections anyway.",
                id="enode_django.W182",
            )


def _pool_size(pool: Any) -> float:
    """Return the most connections of the pool that psycopg makes of these options."""
    if not pool:
        return math.inf
    options = pool if isinstance(pool, Mapping) else {}
    return float(options.get("max_size") or options.get("min_size", 4))


def _duplicates(known: Sequence[Subscriber]) -> Iterator[CheckMessage]:
    by_name: dict[str, list[str]] = {}
    for subscriber in known:
        for name in {subscriber.name, *subscriber.aliases}:
            by_name.setdefault(name, []).append(_description(subscriber))
    for name, described in by_name.items():
        if len(described) > 1:
            yield Error(
                f"{' and '.join(described)} are or were both named {name!r}: "
                "each would skip what the other has handled.",
                hint="Give one of them another name, and each alias to one of them.",
                id="enode_django.E014",
            )


def _shared_rows(known: Sequence[Subscriber]) -> Iterator[CheckMessage]:
    by_table: dict[tuple[str, str], list[str]] = {}
    for subscriber in known:
        if isinstance(subscriber, RowProjection):
            place = (subscriber.database, subscriber.model._meta.db_table)
            by_table.setdefault(place, []).append(_description(subscriber))
    for (_, table), described in by_table.items():
        if len(described) > 1:
            yield Error(
                f"{' and '.join(described)} have their rows in the same table {table!r}: a row belongs to one "
                "projection, which stores and deletes it as a whole, and skips what its version says is handled.",
                hint="Give each of them a model of its own, or make one projection of them.",
                id="enode_django.E019",
            )


def _foreign_keys(known: Sequence[Subscriber]) -> Iterator[CheckMessage]:
    """Find them while the tables are small: a rebuild, which refuses them, may be urgent."""
    from enode_django.rebuilding.shadow import declared_models  # only projections need it

    for subscriber in known:
        written = declared_models(subscriber) if isinstance(subscriber, BaseProjection) else []
        for field in dict.fromkeys(_keys_to(written)):
            yield Warning(
                f"{field.model._meta.label}.{field.name} is a foreign key to a table of {_description(subscriber)}, "
                "which therefore cannot be rebuilt.",
                hint="Write db_constraint=False in it, or in the ManyToManyField that makes it, and migrate.",
                id="enode_django.W181",
            )


def _keys_to(written: Sequence[type[Model]]) -> Iterator[ForeignKey[Any, Any]]:
    """Yield the foreign keys of other models, with a constraint, to one of these."""
    for model in written:
        for relation in model._meta.get_fields(include_parents=False, include_hidden=True):
            if not isinstance(relation, ManyToOneRel) or relation.related_model in written:
                continue
            field: Any = relation.field  # its stubs know no db_constraint
            if field.db_constraint and field.model._meta.managed:
                yield field


def _databases(subscriber: Subscriber) -> Iterator[CheckMessage]:
    aliases = databases_of(subscriber) if isinstance(subscriber, Projection) else [subscriber.database]
    if len(aliases) > 1:
        yield Error(
            f"{_description(subscriber)} writes to several databases: {', '.join(aliases)}. "
            "No transaction spans them, so its events could not be handled exactly once.",
            hint="Make one projection for each database.",
            id="enode_django.E015",
        )
    for alias in aliases:
        if connections[alias].vendor != "postgresql" and not is_wrong_store(alias):
            yield Error(
                f"{_description(subscriber)} keeps its checkpoints in the database {alias!r}, which is "
                f"{connections[alias].vendor}; it must be PostgreSQL.",
                hint="Let the project's routers send its models, or the model Checkpoint, to another database.",
                id="enode_django.E016",
            )


def _fields_for_rebuilds(subscriber: Subscriber) -> Iterator[CheckMessage]:
    if not isinstance(subscriber, BaseProjection):
        return
    from enode_django.rebuilding.shadow import declared_models  # only projections need it

    known = {field.name for model in declared_models(subscriber) for field in model._meta.concrete_fields}
    named = [("volatile", name) for name in subscriber.volatile]
    if isinstance(subscriber, Projection) and subscriber.aggregate_field:
        named.append(("aggregate_field", subscriber.aggregate_field))
    for option, name in named:
        if name not in known:
            yield Error(
                f"{_description(subscriber)} names {name!r} in {option}, but none of its models has such a field.",
                hint=f"They have {', '.join(sorted(known))}.",
                id="enode_django.E025",
            )


def _links(subscriber: Subscriber) -> Iterator[CheckMessage]:
    if isinstance(subscriber, RowProjection):
        for field in subscriber.model._meta.many_to_many:
            yield Warning(
                f"{_description(subscriber)} keeps rows with the ManyToManyField {field.name!r}, but it stores and "
                "rebuilds the columns of its rows alone: the links are lost in a rebuild, or prevent it.",
                hint="Make a Projection of it, or keep the values in a JSONField or an ArrayField of the row.",
                id="enode_django.W173",
            )


def _limits(subscriber: Subscriber) -> Iterator[CheckMessage]:
    if not is_time_limit(subscriber.time_limit):
        yield Error(
            f"{_description(subscriber)} has the time_limit {subscriber.time_limit!r}; it must be a number of seconds "
            "above 0.",
            hint="Give it one, math.inf for any time, or None for ENODE['SUBSCRIBERS']['TIME_LIMIT'].",
            id="enode_django.E040",
        )


def _state(subscriber: Subscriber) -> Iterator[CheckMessage]:
    if "state" not in subscriber._enode_arguments_of_handlers():
        return
    from enode_django.eventing.processes import state_type_of  # late, for projects that have no such process manager

    try:
        state_type_of(subscriber).check()
    except DefinitionError as error:
        yield Error(
            f"{_description(subscriber)} has a state that cannot be stored: {error}.",
            hint="Give each field a type that fields of messages can have.",
            obj=type(subscriber),
            id="enode_django.E041",
        )


def _outbox(subscriber: Subscriber) -> Iterator[CheckMessage]:
    try:
        relayed = conf().OUTBOX.DATABASES
    except ConfigurationError:  # E001 says so
        return
    if not isinstance(subscriber, ProcessManager) or not isinstance(relayed, list | tuple):
        return
    if subscriber.database not in relayed:
        yield Warning(
            f"{_description(subscriber)} keeps its commands and deadlines in the outbox of {subscriber.database!r}, "
            "which ENODE['OUTBOX']['DATABASES'] does not name: they are not sent.",
            hint="Name it, or leave DATABASES out. If other settings let another runprocessors relay it, or if it has "
            "neither a state nor deadlines, silence the check.",
            obj=type(subscriber),
            id="enode_django.W176",
        )


def _key_field(subscriber: Subscriber) -> Iterator[CheckMessage]:
    if not isinstance(subscriber, ProcessManager) or not subscriber._enode_key_field:
        return
    if subscriber._enode_keys.keys() >= set(subscriber._enode_methods.values()):
        return  # each handler has a key of its own
    field, handled = subscriber._enode_key_field, [*subscriber._enode_followed(), *subscriber._enode_crashes]
    if not any(_has_field(cls, field) for cls in handled):
        yield Error(
            f"{_description(subscriber)} has key={field!r}, but nothing that it handles has such a field: each event "
            "would belong to the process of its own aggregate.",
            hint=f"Name a field of {', '.join(sorted(cls.__qualname__ for cls in handled))}, or leave the key out.",
            obj=type(subscriber),
            id="enode_django.E178",
        )


def _has_field(cls: type[Any], name: str) -> bool:
    """Return True if messages of the class, or of one derived from it, can have the attribute."""
    try:
        has = hasattr(cls, name) or name in schema_of(cls).names
    except DefinitionError:  # E013 says so
        return True
    return has or any(_has_field(derived, name) for derived in cls.__subclasses__())


def _agreement(group: EventHandlerGroup) -> Iterator[CheckMessage]:
    if group.is_at_one:
        return
    said = sorted(
        {
            f"{one.full_name!r} (start={one.start!r}, replays={one.replays}, retry={one.retry}, aliases={one.aliases})"
            for one in group.handlers
        }
    )
    yield Error(
        f"The handlers of {_description(group)} share checkpoints, but differ: {', '.join(said)}.",
        hint="Give all of them the same start, replays, retry and aliases, or move those that differ to another group.",
        id="enode_django.E017",
    )


def _ambiguity(group: EventHandlerGroup) -> Iterator[CheckMessage]:
    for name in group.ambiguous:
        functions = [handler.function for handler in group.handlers if handler.full_name == name]
        places = sorted({f"{function.__module__}.{function.__qualname__}" for function in functions})
        yield Error(
            f"Several event handlers of {_description(group)} are named {name!r}: {', '.join(places)}.",
            hint="Give each a name of its own.",
            id="enode_django.E020",
        )


def check_rebuilds(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Check the projections in the ``databases`` that Django checks. A projection whose tables are missing, or whose
    database is away, is passed over."""
    projections = [one for one in subscribers.all() if isinstance(one, BaseProjection)]
    asked = {*(databases or ())}
    return [message for one in projections if one.database in asked for message in _other_code(one)]


def check_owners(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Check the stored subscriptions in the ``databases`` that Django checks. A database without the tables, or one
    that is away, is passed over."""
    return [message for alias in databases or () for message in _without_owner(alias)]


def check_states(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Check the running processes in the ``databases`` that Django checks. A database without the tables, or one that
    is away, is passed over."""
    with_states = [one for one in subscribers.all() if isinstance(one, ProcessManager) and one._enode_state_type]
    asked = {*(databases or ())}
    return [message for one in with_states if one.database in asked for message in _unreadable_states(one)]


def _unreadable_states(manager: ProcessManager) -> Iterator[CheckMessage]:
    from enode_django.eventing.unreadable_states import LOOKED_AT, unreadable_states  # only `check --database` needs it

    try:
        found = unreadable_states(manager)
    except DATABASE_ERRORS:
        return
    for one in found:
        yield Warning(
            f"The code cannot read the states of {one.processes:,} running processes of {_description(manager)}, among "
            f"the {LOOKED_AT:,} that were read: their next events will be parked.",
            hint=f"{one.reason[0].upper()}{one.reason[1:]}.",
            obj=type(manager),
            id="enode_django.W187",
        )


def _without_owner(alias: str) -> Iterator[CheckMessage]:
    from enode_django.eventing.unowned import unowned_in  # only `check --database` needs it

    try:
        with transaction.atomic(using=alias):
            found = unowned_in([alias])
    except DATABASE_ERRORS:
        return
    for one in found:
        if one.kept_since is None:
            yield Warning(
                f"No code owns the stored subscription {one.key!r} in the database {alias!r}: runprocessors will not "
                "start.",
                hint=one.ways_out.strip(),
                id="enode_django.W170",
            )


def _other_code(projection: BaseProjection) -> Iterator[CheckMessage]:
    from enode_django.rebuilding.target import Target  # only `check --database` needs it

    try:
        with transaction.atomic(using=projection.database):
            changed = Target.of(projection.name).is_of_other_code()
    except (RebuildError, *DATABASE_ERRORS):
        return
    if changed:
        yield Warning(
            f"The code of {_description(projection)} has changed since it filled its tables: older rows may "
            "differ from what it makes now.",
            hint=f"Run manage.py rebuildprojection {projection.name} --compare-only: if no row differs, it notes that. "
            "Otherwise rebuild it.",
            obj=type(projection),
            id="enode_django.W030",
        )


def _description(subscriber: Subscriber) -> str:
    if isinstance(subscriber, EventHandlerGroup) and subscriber.alone:
        return f"the event handler {'.'.join(place_of(subscriber.handlers[0].function))}"
    if isinstance(subscriber, EventHandlerGroup):
        return f"the group of event handlers {subscriber.name!r}"
    return _path(type(subscriber))


def _path(cls: type[Subscriber]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
