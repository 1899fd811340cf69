"""Runs in which one promise about the queue is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from chaos.checker.facts import (
    Acquired,
    Appended,
    CommandKey,
    Committed,
    Facts,
    LogRecord,
)
from tests.chaos.checker.altering import (
    changed,
    end_of,
)
from tests.chaos.checker.builder import (
    EVENTS,
    PRODUCER,
    small_world,
)


def two_owners_in_one_epoch() -> Facts:
    facts = small_world().facts()
    last = facts.samples[-1]
    return replace(facts, samples=[*facts.samples, last._replace(owner="third")])


def epoch_that_goes_back() -> Facts:
    facts = small_world().facts()
    last = facts.samples[-1]
    return replace(facts, samples=[*facts.samples, last._replace(owner="", epoch=last.epoch - 5)])


def epoch_that_is_given_twice() -> Facts:
    facts = small_world().facts()
    first = next(record for record in facts.log if isinstance(record, Acquired))
    return replace(facts, log=[*facts.log, first])


def commit_of_an_epoch_that_is_over() -> Facts:
    facts = small_world().facts()
    place = max(place for place, record in enumerate(facts.log) if isinstance(record, Committed))
    record = facts.log[place]
    assert isinstance(record, Committed)
    return replace(facts, log=changed(facts.log, place, record._replace(epoch=record.epoch - 10)))


def offset_that_goes_back() -> Facts:
    facts = small_world().facts()
    last = facts.samples[-1]
    return replace(facts, samples=[*facts.samples, last._replace(committed=last.committed - 1)])


def commit_that_goes_back() -> Facts:
    facts = small_world().facts()
    last = facts.log[-1]
    assert isinstance(last, Committed)
    return replace(facts, log=[*facts.log, last._replace(offset=last.offset - 1)])


def commit_beyond_the_end() -> Facts:
    facts = small_world().facts()
    last = facts.log[-1]
    assert isinstance(last, Committed)
    return replace(facts, log=changed(facts.log, -1, last._replace(offset=last.offset + 1)))


def offsets_with_a_gap() -> Facts:
    return _with_batch(lambda end: Appended("log", EVENTS, 0, end + 3, 1))


def offset_that_is_given_twice() -> Facts:
    return _with_batch(lambda end: Appended("log", EVENTS, 0, end - 1, 1))


def send_that_is_stored_twice() -> Facts:
    return _with_batch(lambda end: Appended("log", EVENTS, 0, end, 1, PRODUCER, 0))


def send_without_its_first_part() -> Facts:
    return _with_batch(lambda end: Appended("log", EVENTS, 0, end, 1, PRODUCER, 999, 1, 2))


def _with_batch(make: Callable[[int], LogRecord]) -> Facts:
    facts = small_world().facts()
    return replace(facts, log=[*facts.log, make(end_of(facts, EVENTS, 0))])


def row_that_was_not_published() -> Facts:
    facts = small_world().facts()
    key = facts.stored[4].key
    return replace(facts, published=[message for message in facts.published or () if message.key != key])


def row_that_was_published_otherwise() -> Facts:
    facts = small_world().facts()
    published = facts.published or ()
    return replace(facts, published=changed(published, 2, published[2]._replace(digest=b"otherway")))


def row_that_was_published_in_two_ways() -> Facts:
    facts = small_world().facts()
    published = facts.published or ()
    return replace(facts, published=changed(published, -1, published[-1]._replace(digest=b"otherway")))


def versions_published_in_another_order() -> Facts:
    facts = small_world().facts()
    published = [*(facts.published or ())]
    first, second = (published.index(message) for message in published if message.key in _first_two(facts, "ada"))
    published[first], published[second] = published[second], published[first]
    return replace(facts, published=published)


def aggregate_that_moves_to_another_queue() -> Facts:
    facts = small_world().facts()
    published = facts.published or ()
    newest = max((m for m in published if m.aggregate_root_id == "ada"), key=lambda message: message.version or 0)
    return replace(facts, published=[m._replace(queue=m.queue + (m is newest)) for m in published])


def versions_in_another_order_in_an_added_queue() -> Facts:
    """One of them in each queue would be no violation."""
    facts = versions_published_in_another_order()
    moved = [m._replace(queue=m.queue + 10) if m.aggregate_root_id == "ada" else m for m in facts.published or ()]
    return replace(facts, published=moved, widened=frozenset({EVENTS}))


def stream_that_is_not_stored_was_published() -> Facts:
    facts = small_world().facts()
    published = facts.published or ()
    return replace(facts, published=[*published, published[0]._replace(command_id="c999", version=50)])


def _first_two(facts: Facts, id: str) -> set[CommandKey]:
    return {row.key for row in facts.histories[id][:2]}
