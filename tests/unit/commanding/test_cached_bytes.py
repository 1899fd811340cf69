from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import pytest

from enode_django.commanding.cache import WEIGHED_AFTER
from enode_django.commanding.command_processor import CommandProcessor
from enode_django.commanding.memory_size import weight_of
from enode_django.domain.aggregate import AggregateRoot, applies
from enode_django.domain.handlers import HandlerTable
from enode_django.domain.messages import Command, DomainEvent
from enode_django.eventstore.memory import MemoryEventStore
from tests.races.harness import Worker

LARGE = 100_000


@dataclass(frozen=True)
class Place:
    street: str


class Kind(enum.Enum):
    ONE = "one"


class Write(Command):
    type_name = "cached.Write"
    text: str


class Written(DomainEvent):
    type_name = "cached.Written"
    text: str


class Page(AggregateRoot):
    type_name = "cached.Page"
    text: str = ""

    @applies(Written)
    def _written(self, event: Written) -> None:
        self.text = event.text


def write(command: Write, context: Any) -> None:
    page = context.find(Page)
    if page is None:
        page = Page(command.aggregate_root_id)
        context.add(page)
    page.apply(Written(text=command.text))


@pytest.mark.parametrize(
    "value",
    [
        "x" * LARGE,
        ["x" * LARGE],
        {"x" * LARGE: 1},
        {1: ("x" * LARGE, b"", None, 1.5)},
        Place("x" * LARGE),
        frozenset({Place("x" * LARGE)}),
        {Kind.ONE: ["x" * LARGE]},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_value_holds_is_weighed_with_it(value: object) -> None:
    assert LARGE < weight_of(value) < LARGE + 2_000


def test_what_holds_itself_is_weighed_once() -> None:
    one: list[object] = ["x" * LARGE]
    one.append(one)
    assert LARGE < weight_of(one) < LARGE + 1_000


def worker(max_cached_bytes: int) -> Worker:
    worker = Worker(MemoryEventStore(), max_bytes=2 * LARGE)
    handlers = HandlerTable()
    handlers.add(Write, write)
    worker.processor = CommandProcessor(
        worker.processor._loader,
        handlers,
        persist=lambda call: call(),
        max_aggregates=1_000,
        max_recent=1_000,
        max_bytes=2 * LARGE,
        max_cached_bytes=max_cached_bytes,
    )
    return worker


def test_large_aggregates_leave_the_cache_before_it_has_too_many_bytes() -> None:
    some = worker(10 * LARGE)
    for number in range(50):
        some.send(Write(f"p{number}", text=f"{number}" + "x" * LARGE))
        some.settle()
    assert 8 <= some.processor.cached <= 10
    assert set(some.processor._cache.slots) == {f"p{number}" for number in range(50 - some.processor.cached, 50)}
    some.send(*[Write(f"p{number}", text="short") for number in range(50)])
    some.settle()
    assert some.answers  # those that had left are loaded again
    assert some.processor._cache.weight <= 10 * LARGE


def test_an_aggregate_that_shrinks_is_weighed_anew() -> None:
    some = worker(10 * LARGE)
    some.send(Write("p", text="x" * LARGE))
    some.settle()
    assert some.processor._cache.weight > LARGE
    some.send(*[Write("p", text="y" * WEIGHED_AFTER) for _ in range(LARGE // WEIGHED_AFTER + 2)])
    some.settle()
    assert some.processor._cache.weight < LARGE
    some.processor._cache.drop("p")
    assert some.processor._cache.weight == 0


def test_small_aggregates_are_limited_by_their_number_alone() -> None:
    some = worker(1_000)
    for number in range(50):
        some.send(Write(f"p{number}", text="x"))
        some.settle()
    assert some.processor.cached == 50
