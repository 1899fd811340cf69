"""Reading aggregates and their events from the store that this process writes to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from itertools import chain, islice
from typing import Any, TypeVar, cast

from asgiref.sync import sync_to_async

from enode_django.domain.aggregate import AggregateRoot, read_only
from enode_django.domain.messages import DomainEvent
from enode_django.domain.origin import handled_command
from enode_django.domain.prefixes import check_sought
from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.exceptions import AggregateNotFound, AggregateTypeMismatch, DefinitionError, InvalidField, shown
from enode_django.history.states import head_of, loaded
from enode_django.ids import check_id
from enode_django.repository.loading import events_of
from enode_django.runtime import current_store
from enode_django.serialization.registry import types

T = TypeVar("T")
_PORTION = 100
"""Events that an asynchronous iterator fetches at once."""


class StoreReader:
    """Implements the `Reader` of `enode_django.domain.reading` with the event store."""

    def load(self, cls: type[T], id: str, version: int | None, at: datetime | None) -> T:
        _check_caller(cls, "load", id)
        store = current_store()
        if at is not None:
            version = _version_at(store, cls, id, version, at)
        aggregate = loaded(store, id, version)
        _check_type(cls, id, type(aggregate))
        return cast(T, read_only(aggregate))

    async def aload(self, cls: type[T], id: str, version: int | None, at: datetime | None) -> T:
        return await sync_to_async(self.load)(cls, id, version, at)

    def history(self, cls: type[Any], id: str, after_version: int) -> Iterator[DomainEvent]:
        _check_caller(cls, "history", id)
        if type(after_version) is not int or after_version < 0:
            raise InvalidField(f"after_version={shown(after_version)} is not a version; give a whole number from 0 on")
        store = current_store()
        records = iter(store.load(id, after=after_version))
        first = next(records, None)
        if first is None:
            head_of(store, id)
            return iter(())
        _check_type(cls, id, types.class_of(AggregateRoot, first.aggregate_root_type))
        return _events((first,), records)

    async def ahistory(self, cls: type[Any], id: str, after_version: int) -> AsyncIterator[DomainEvent]:
        events = await sync_to_async(self.history)(cls, id, after_version)
        while portion := await sync_to_async(_next)(events):
            for event in portion:
                yield event


def _events(*records: Iterator[StreamRecord] | tuple[StreamRecord]) -> Iterator[DomainEvent]:
    return chain.from_iterable(map(events_of, chain(*records)))


def _next(events: Iterator[DomainEvent]) -> list[DomainEvent]:
    return list(islice(events, _PORTION))


def _version_at(store: EventStore, cls: type[Any], id: str, version: int | None, at: datetime) -> int:
    """Return the newest version at a time. Times grow with versions as far as the clocks of the workers agree. Raises
    as `Readable.load` does."""
    if version is not None:
        raise InvalidField(f"version={shown(version)} and at={shown(at)} are two answers to one question; give one")
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise InvalidField(
            f"at={shown(at)} names no instant; give a datetime with a time zone, such as datetime.now(UTC)"
        )

    def made_at(version: int) -> datetime:
        return store.load_ranges({id: (version - 1, version)})[id][0].created_at

    found = bisect_right(range(1, head_of(store, id) + 1), at, key=made_at)
    if not found:
        raise AggregateNotFound(f"there was no {cls.__qualname__} with the id {id!r} at {at.isoformat()}")
    return found


def _check_caller(cls: type[Any], method: str, id: str) -> None:
    check_sought(cls, check_id(id, "aggregate root id"))
    if handled_command.get() is not None:
        raise DefinitionError(
            f"{cls.__qualname__}.{method}({id!r}) is called by a command handler; use context.get({cls.__qualname__}, "
            f"{id!r}), which knows what the command itself has changed"
        )


def _check_type(cls: type[Any], id: str, stored: type[AggregateRoot]) -> None:
    if not issubclass(stored, cls):
        raise AggregateTypeMismatch(f"{id!r} is of the class {stored.__qualname__}, not {cls.__qualname__}")
