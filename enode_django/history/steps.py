"""Stored commands with their events or refusals, decoded without the classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from enode_django.domain.metadata import EMPTY, Metadata
from enode_django.eventstore.base import CommandKey, StreamRecord
from enode_django.exceptions import MessageError, shown
from enode_django.ids import MAX_ID_LENGTH
from enode_django.serialization.codec import StoredRefusal, decode_command, decode_metadata, read_stored, sent_with


class Happened(NamedTuple):
    """An event, or the refusal of a command. ``id`` is its id as a cause of other commands; ``fields`` are the stored
    fields."""

    id: str
    type_name: str
    is_refusal: bool = False
    fields: Any = None


class Step(NamedTuple):
    """A command and its outcome. ``version`` is None if it was refused; ``trouble`` says why the events or the metadata
    of the row cannot be read. ``sent`` are the keys of the commands that its handler has sent."""

    command_id: str
    command_type: str
    aggregate_root_type: str
    aggregate_root_id: str
    version: int | None
    created_at: datetime
    metadata: Metadata
    happened: Sequence[Happened]
    trouble: str = ""
    sent: Sequence[CommandKey] = ()

    @classmethod
    def of(cls, record: StreamRecord) -> Step:
        happened: Sequence[Happened] = ()
        metadata, trouble = EMPTY, ""
        sent: Sequence[CommandKey] = ()
        try:
            happened = _happened(record)
            sent = [(command.id, command.aggregate_root_id) for command in map(decode_command, _bodies(record))]
            metadata = decode_metadata(record.metadata)
        except MessageError as error:
            trouble = str(error)
        return cls(
            record.command_id,
            record.command_type,
            record.aggregate_root_type,
            record.aggregate_root_id,
            record.version,
            record.created_at,
            metadata,
            happened,
            trouble,
            sent,
        )

    @property
    def key(self) -> CommandKey:
        return self.command_id, self.aggregate_root_id

    @property
    def correlation_id(self) -> str:
        """The correlation id of all commands that follow from this one."""
        return self.metadata.correlation_id or self.command_id

    @property
    def causes(self) -> list[str]:
        """The ids that a following command may name as its cause."""
        return [*(one.id for one in self.happened), self.command_id]


def _happened(record: StreamRecord) -> Sequence[Happened]:
    stored, root = read_stored(record.events), record.aggregate_root_id
    if isinstance(stored, StoredRefusal):
        return [Happened(f"{root}/refused/{record.command_id}", _text(stored.type_name), True, stored.fields)]
    return [
        Happened(f"{root}/{record.version}/{index}", _text(event.type_name), False, event.fields)
        for index, event in enumerate(stored.events)
    ]


def _bodies(record: StreamRecord) -> Iterator[bytes]:
    return (body for _, body in sent_with(record.events))


def _text(name: object) -> str:
    """Return a type name as text. The stored value may have any type."""
    return name if isinstance(name, str) else shown(name)


class Place(NamedTuple):
    """The place of an event: its aggregate and the version."""

    aggregate_root_id: str
    version: int


def place_of_event(event_id: str) -> Place | None:
    """
    >>> place_of_event("a/b/3/0")
    Place(aggregate_root_id='a/b', version=3)
    >>> place_of_event("0198b5d2")
    """
    root, _, rest = event_id.rpartition("/")
    root, _, version = root.rpartition("/")
    if not root or not _is_number(version) or not _is_number(rest):
        return None
    return Place(root, int(version))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def keys_of_refusal(refusal_id: str) -> Iterator[CommandKey]:
    """Yield the commands that a refusal id may belong to, since both ids in it may contain the separator.

    >>> list(keys_of_refusal("ada/refused/c1"))
    [('c1', 'ada')]
    """
    separator = "/refused/"
    at = refusal_id.find(separator)
    while at >= 0:
        yield refusal_id[at + len(separator) :], refusal_id[:at]
        at = refusal_id.find(separator, at + 1)


def ids_within(value: Any, *, most: int) -> list[str]:
    """Return the first ``most`` texts and UUIDs in a plain value that may be ids of aggregates.

    >>> ids_within({"source": "ada", "rest": [1, {"target": "bob"}]}, most=10)
    ['ada', 'bob']
    """
    found: dict[str, None] = {}
    waiting = [value]
    while waiting and len(found) < most:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting.extend(reversed(one.values()))
        elif isinstance(one, list):
            waiting.extend(reversed(one))
        elif isinstance(one, UUID) or (isinstance(one, str) and 0 < len(one) <= MAX_ID_LENGTH):
            found[str(one)] = None
    return list(found)
