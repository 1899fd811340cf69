"""The events of a test as stored rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from enode_django.domain.messages import DomainEvent
from enode_django.domain.refusals import DomainException
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import DefinitionError
from enode_django.serialization.codec import encode_refusal, encode_stream


def check_events(events: Sequence[object]) -> None:
    """Raise `DefinitionError` unless all are domain events."""
    for event in events:
        if not isinstance(event, DomainEvent):
            raise DefinitionError(f"given() and when() take domain events, got {event!r}")


def streams(
    id: str, events: Sequence[DomainEvent], *, after: int = 0, type_name: str = "given"
) -> Iterator[StreamRecord]:
    """Yield a stored stream for each event, as if each came from its own command."""
    for version, event in enumerate(events, after + 1):
        yield _record(id, version, f"given-{version}", type_name, encode_stream([event]))


def refusal(id: str, refusal: DomainException, number: int) -> StreamRecord:
    """Return a refusal as a stored row; the refused command is the ``number``-th of the test."""
    return _record(id, None, f"refused-{number}", "given", encode_refusal(refusal))


def _record(id: str, version: int | None, command_id: str, type_name: str, events: bytes) -> StreamRecord:
    return StreamRecord(id, version, command_id, type_name, "given", datetime.now(UTC), events, b"")
