"""Facts with one thing changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from chaos.checker.decoding import Refusal
from chaos.checker.facts import (
    Appended,
    Facts,
    StoredRow,
)
from tests.chaos.checker.builder import (
    make_row,
    refusal,
    stream,
)

T = TypeVar("T")


def changed(items: Sequence[T], place: int, *now: T) -> list[T]:
    """Let other items stand in one's place."""
    place %= len(items)
    return [*items[:place], *now, *items[place + 1 :]]


def place_of(items: Sequence[T], suits: Callable[[T], bool]) -> int:
    return next(place for place, item in enumerate(items) if suits(item))


def row_of(facts: Facts, command_type: str, *, refused: bool = False) -> int:
    """The place of the first stored row of a type of command."""
    return place_of(facts.stored, lambda row: row.command_type == command_type and row.is_refusal is refused)


def answer_with(facts: Facts, status: str) -> int:
    return place_of(facts.answers, lambda answer: answer.status == status)


def with_answer(facts: Facts, place: int, **now: Any) -> Facts:
    return replace(facts, answers=changed(facts.answers, place, facts.answers[place]._replace(**now)))


def with_row(facts: Facts, place: int, **now: Any) -> Facts:
    """Change a stored row and its publication."""
    return with_rows(facts, changed(facts.stored, place, rebuilt(facts.stored[place], **now)))


def rebuilt(row: StoredRow, **now: Any) -> StoredRow:
    row = replace(row, **now)
    return make_row(
        *(row.shard, row.aggregate_root_type, row.aggregate_root_id, row.version),
        *(row.command_id, row.command_type, row.created_at, row.payload),
    )


def with_rows(facts: Facts, rows: Sequence[StoredRow]) -> Facts:
    """Replace the stored rows. Published messages agree with the new rows, and those without a row are left out."""
    digests = {row.key: (row.version, row.digest) for row in rows}
    published = []
    for message in facts.published or ():
        if message.key in digests:
            version, digest = digests[message.key]
            published.append(message._replace(version=version, digest=digest))
    return replace(facts, stored=rows, published=published)


def with_fields(row: StoredRow, **now: Any) -> StoredRow:
    """Change fields of the first event of a row, or of its refusal."""
    contents = row.contents
    if isinstance(contents, Refusal):
        return rebuilt(row, payload=refusal(contents.type_name, contents.message, {**contents.fields, **now}))
    events = [(event.type_name, dict(event.fields)) for event in contents.events]
    events[0][1].update(now)
    return rebuilt(row, payload=stream(events, contents.result))


def without_command(facts: Facts, command_id: str) -> Facts:
    """Let nobody have sent a command or have got an answer to it."""
    return replace(
        facts,
        sends=[send for send in facts.sends if send.command_id != command_id],
        answers=[answer for answer in facts.answers if answer.command_id != command_id],
    )


def end_of(facts: Facts, topic: str, queue: int) -> int:
    batches = [record for record in facts.log if isinstance(record, Appended)]
    return sum(batch.count for batch in batches if (batch.topic, batch.queue) == (topic, queue))
