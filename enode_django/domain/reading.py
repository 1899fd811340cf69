"""Reading aggregates back. The domain knows no store: a `Reader` does, which `provide_reader` is given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Any, Protocol, Self, TypeVar

from enode_django.domain.messages import DomainEvent
from enode_django.exceptions import ConfigurationError

T = TypeVar("T")


class Reader(Protocol):
    """The port behind `Readable`, whose methods say what these return and raise."""

    def load(self, cls: type[T], id: str, version: int | None, at: datetime | None) -> T: ...

    async def aload(self, cls: type[T], id: str, version: int | None, at: datetime | None) -> T: ...

    def history(self, cls: type[Any], id: str, after_version: int) -> Iterator[DomainEvent]: ...

    def ahistory(self, cls: type[Any], id: str, after_version: int) -> AsyncIterator[DomainEvent]: ...


class Readable:
    """Reads stored aggregates of this class and of its subclasses. Command handlers cannot use it.

    All methods block on the event store. They raise `AggregateNotFound`; `AggregateTypeMismatch` if the id is that of
    another type; `UnknownMessageType` if the class of the aggregate or of an event is gone; and `DefinitionError` in a
    command handler, whose context has what it may read.
    """

    @classmethod
    def load(cls, id: str, *, version: int | None = None, at: datetime | None = None) -> Self:
        """Return the aggregate as it is stored, as it was at a version, or as it was at a time. It is read-only:
        ``apply`` raises `AggregateReadOnly`.

        Raises `AggregateNotFound` for a version that is not stored, and for a time at which there was none yet;
        `InvalidField` for a naive time, and for a version together with a time.
        """
        return _reader().load(cls, id, version, at)

    @classmethod
    async def aload(cls, id: str, *, version: int | None = None, at: datetime | None = None) -> Self:
        """Return the aggregate as `load` does."""
        return await _reader().aload(cls, id, version, at)

    @classmethod
    def history(cls, id: str, *, after_version: int = 0) -> Iterator[DomainEvent]:
        """Return an iterator over the events of the aggregate, in order, those after a version only. They are read in
        portions, as they are asked for."""
        return _reader().history(cls, id, after_version)

    @classmethod
    def ahistory(cls, id: str, *, after_version: int = 0) -> AsyncIterator[DomainEvent]:
        """Return an asynchronous iterator over what `history` yields. It raises when it is first asked."""
        return _reader().ahistory(cls, id, after_version)


_make: Callable[[], Reader] | None = None


def provide_reader(make: Callable[[], Reader]) -> None:
    """Let aggregates be read by what ``make`` returns. It is called for each reading."""
    global _make
    _make = make


def _reader() -> Reader:
    if _make is None:
        raise ConfigurationError(
            "no event store is known to read aggregates from; add enode_django to INSTALLED_APPS, and call "
            "django.setup() first in a script"
        )
    return _make()
