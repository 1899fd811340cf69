"""Loading of aggregates. The domain does not know the store; the project provides a `Reader` that does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any, Protocol, Self, TypeVar

from enode_django.domain.messages import DomainEvent
from enode_django.domain.provided import provided
from enode_django.exceptions import ConfigurationError

T = TypeVar("T")


class Reader(Protocol):
    """The interface behind `Readable`, whose methods document what these return and raise."""

    def load(self, cls: type[T], id: str, version: int | None, at: datetime | None) -> T: ...

    async def aload(self, cls: type[T], id: str, version: int | None, at: datetime | None) -> T: ...

    def history(self, cls: type[Any], id: str, after_version: int) -> Iterator[DomainEvent]: ...

    def ahistory(self, cls: type[Any], id: str, after_version: int) -> AsyncIterator[DomainEvent]: ...


class Readable:
    """Loads stored aggregates of this class and of its subclasses. Command handlers use their context instead.

    The methods block on the event store, or wait for it. They raise `AggregateNotFound`; `AggregateTypeMismatch` if the
    id belongs to another type; `UnknownMessageType` if the class of the aggregate or of an event no longer exists;
    `MalformedMessage` if an event cannot be read; `InvalidId`; and `DefinitionError` in a command handler.
    """

    @classmethod
    def load(cls, id: str, *, version: int | None = None, at: datetime | None = None) -> Self:
        """Return the stored aggregate, now, at a version, or at a time. It is read-only: ``apply`` raises
        `AggregateReadOnly`. Blocks on the event store.

        Raises `AggregateNotFound`, also for a version that is not stored, and for a time before the first event;
        `AggregateTypeMismatch` if the id belongs to another type; `UnknownMessageType` and `MalformedMessage` for what
        this code cannot read; `InvalidField` for a naive time, and if both a version and a time are given;
        `StoreUnavailable`; and `DefinitionError` in a command handler.
        """
        return _reader().load(cls, id, version, at)

    @classmethod
    async def aload(cls, id: str, *, version: int | None = None, at: datetime | None = None) -> Self:
        """Return the stored aggregate, like `load`."""
        return await _reader().aload(cls, id, version, at)

    @classmethod
    def history(cls, id: str, *, after_version: int = 0) -> Iterator[DomainEvent]:
        """Return an iterator over the events of the aggregate after a version, in order. It reads them in portions, and
        blocks on the event store. Raises as `load` does, and `InvalidField` for what is no version."""
        return _reader().history(cls, id, after_version)

    @classmethod
    def ahistory(cls, id: str, *, after_version: int = 0) -> AsyncIterator[DomainEvent]:
        """Return an asynchronous iterator over the events of `history`. Errors are raised by the first step."""
        return _reader().ahistory(cls, id, after_version)


def _reader() -> Reader:
    if provided.make_reader is None:
        raise ConfigurationError(
            "no event store is known to read aggregates from; add enode_django to INSTALLED_APPS, and call "
            "django.setup() first in a script"
        )
    return provided.make_reader()
