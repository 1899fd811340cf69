"""Find streams by an id: by indexes in all streams, and in the metadata of the newest ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from django.db import InterfaceError, OperationalError

from enode_django.admin.stream_list import (
    Filters,
    Listing,
    by_command,
    envelopes,
    listing,
    newest,
    refusals,
    with_small_events,
)
from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventstore.base import CommandKey, EventStore
from enode_django.eventstore.limits import holds
from enode_django.history import tables
from enode_django.history.steps import keys_of_refusal, place_of_event
from enode_django.models import EventStream
from enode_django.serialization.registry import types

if TYPE_CHECKING:
    from django.db.models import QuerySet

MOST_REFUSALS = 5
"""The most ways to split the id of a refusal: both ids in it may contain the separator."""


class Hits(NamedTuple):
    """The rows found in one shard. ``is_away``: the shard could not be asked."""

    alias: str
    rows: Sequence[EventStream] = ()
    is_away: bool = False


def search(store: EventStore, id: str, *, with_contents: bool = False) -> Sequence[Hits]:
    """Return the rows with the whole id of an aggregate, an event, a refusal or a command, shard by shard. Blocks.

    Of an aggregate these are a page of its newest versions, and a page of its refusals. If nothing has this id, it is
    tried without the blanks around it, then with each `id_prefix`. ``with_contents``: the rows have their small events.
    Raises `StoreUnavailable` if the shard map cannot be read, and the database's error if no shard can be asked.
    """
    for meant in dict.fromkeys((id, id.strip(), *(f"{prefix}{id.strip()}" for prefix in _prefixes()))):
        hits = _hits(store, meant, with_contents)
        if any(hit.rows for hit in hits):
            break
    return hits


def _prefixes() -> Sequence[str]:
    return sorted({types.class_of(AggregateRoot, name).id_prefix for name in types.names_of(AggregateRoot)} - {""})


def _hits(store: EventStore, id: str, with_contents: bool) -> Sequence[Hits]:
    own = {tables.alias_of(store, root) for root in _roots(id)}

    def ask(alias: str) -> Hits:
        queries = [by_command(alias, id), *(_of_aggregates(alias, id) if alias in own else ())]
        rows = {
            row.sequence: row for query in queries for row in (with_small_events(query) if with_contents else query)
        }
        return Hits(alias, [rows[sequence] for sequence in sorted(rows, reverse=True)])

    return asked_each(ask, lambda alias: Hits(alias, is_away=True))


def _roots(id: str) -> Iterator[str]:
    """Yield the possible aggregate ids: the id itself, and those that it contains if it is an event's or a refusal's
    id."""
    place = place_of_event(id)
    for root in (id, *([place.aggregate_root_id] if place else ()), *(root for _, root in _refusals(id))):
        if root and holds(root):
            yield root


def _refusals(id: str) -> Iterator[CommandKey]:
    return islice(keys_of_refusal(id), MOST_REFUSALS)


T = TypeVar("T")


def asked_each(ask: Callable[[str], T], away: Callable[[str], T]) -> Sequence[T]:
    """Ask every shard. The answer of one that cannot be asked is what ``away`` returns. Raises the database's error if
    none can be asked."""
    answers, failures = [], []
    for alias in tables.aliases():
        try:
            answers.append(ask(alias))
        except (OperationalError, InterfaceError) as error:
            answers.append(away(alias))
            failures.append(error)
    if len(failures) == len(answers):
        raise failures[-1]
    return answers


def _of_aggregates(alias: str, id: str) -> Iterator[QuerySet[EventStream]]:
    """Yield the queries for an aggregate, an event or a refusal of this id."""
    if holds(id):
        yield newest(alias, id)
        yield refusals(alias, id)
    if (place := place_of_event(id)) and holds(place.aggregate_root_id):
        yield envelopes(alias).filter(aggregate_root_id=place.aggregate_root_id, version=place.version)
    for command_id, root in _refusals(id):
        if holds(command_id) and holds(root):
            yield envelopes(alias).filter(command_id=command_id, aggregate_root_id=root)


class Traces(NamedTuple):
    """The newest rows of one shard whose metadata name an id. ``listing`` is None if the shard could not be asked."""

    alias: str
    listing: Listing | None = None


def traces(id: str) -> Sequence[Traces]:
    """Search the metadata of the newest streams for an id, about a tenth of a second in each shard. Raises the
    database's error if no shard can be asked."""
    return asked_each(lambda alias: _traces_in(alias, id), Traces)


def _traces_in(alias: str, id: str) -> Traces:
    form = Filters({"shard": alias, "about": id}, may_read=True)
    return Traces(alias, listing(form) if form.is_valid() else Listing(()))
