"""A result keeps the value that it had when it was set."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from enode_django.bus.results import CommandResult, CommandStatus, decode_result, encode_result
from enode_django.commanding.context import CommandContext
from enode_django.domain.aggregate import AggregateRoot, applies
from enode_django.domain.handlers import HandlerTable
from enode_django.domain.messages import Command, DomainEvent
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import InvalidField
from enode_django.serialization.codec import encode_stream, read_stored
from enode_django.serialization.sent_commands import SentCommand
from tests.races.harness import Worker


class Put(Command):
    type_name = "by_value.Put"
    item: str


class Look(Command):
    type_name = "by_value.Look"


class LookAndPut(Put):
    type_name = "by_value.LookAndPut"


class Was(DomainEvent):
    type_name = "by_value.Was"
    item: str


class Basket(AggregateRoot):
    type_name = "by_value.Basket"
    items: list[str] = []

    @applies(Was)
    def _was(self, event: Was) -> None:
        self.items.append(object() if event.item == "an object" else event.item)  # type: ignore[arg-type]


def put(command: Put, context: CommandContext) -> None:
    basket = context.find(Basket)
    if basket is None:
        basket = Basket(command.aggregate_root_id)
        context.add(basket)
    basket.apply(Was(item=command.item))


def look(command: Look, context: CommandContext) -> None:
    context.set_result({"items": context.get(Basket).items})


def look_and_put(command: LookAndPut, context: CommandContext) -> None:
    context.set_result(context.get(Basket).items)
    put(command, context)


@pytest.fixture
def worker() -> Worker:
    worker = Worker(MemoryEventStore())
    worker.processor._handlers = HandlerTable()
    worker.processor._handlers.add(Put, put)
    worker.processor._handlers.add(Look, look)
    worker.processor._handlers.add(LookAndPut, look_and_put)
    worker.run(Put(aggregate_root_id="x", item="a"))
    return worker


def test_a_command_that_changes_nothing_is_answered_with_what_it_saw(worker: Worker) -> None:
    worker.send(Look("x", id="look"), Put(aggregate_root_id="x", item="later"))
    worker.settle()
    assert worker.answers["look"].status is CommandStatus.NOTHING_CHANGED
    assert worker.answers["look"].value == {"items": ["a"]}


def test_so_is_its_repeat(worker: Worker) -> None:
    look = Look("x", id="look")
    worker.send(look, Put(aggregate_root_id="x", item="later"), look)
    worker.settle()
    assert [one.result.value for one in worker.finished if one.result] == [{"items": ["a"]}] * 2


def test_a_command_that_changes_something_later_is_answered_with_what_was_set(worker: Worker) -> None:
    (result,) = worker.run(LookAndPut("x", item="b"))
    assert (result.status, result.value) == (CommandStatus.SUCCESS, ["a"])


def test_an_answer_can_be_sent_whatever_gets_into_the_list_later(worker: Worker) -> None:
    worker.send(Look("x", id="look"), Put(aggregate_root_id="x", item="an object"))
    worker.settle()
    assert encode_result(worker.answers["look"])


def context() -> CommandContext:
    return CommandContext(Look("x"), None, lambda id: None)


@pytest.mark.parametrize("sent", [[], [("y", b"a command")]], ids=["alone", "with a sent command"])
def test_the_deepest_result_that_is_accepted_leaves_its_events_readable(sent: list[SentCommand]) -> None:
    value: Any = []
    accepted = None
    with pytest.raises(InvalidField, match="cannot be sent"):  # noqa: PT012  (the depth is the library's)
        while True:
            one = context()
            one.set_result(value)
            accepted, value = one.result, [value]
    assert read_stored(encode_stream([Was(item="a")], accepted, sent)).result  # type: ignore[union-attr]
    result = CommandResult(status=CommandStatus.SUCCESS, command_id="c", aggregate_root_id="x", value=accepted)
    assert decode_result(encode_result(result)).value


@pytest.mark.parametrize(
    "value",
    [object(), threading.Lock(), {"a": [object()]}, {(1, 2): 3}, "\ud800", datetime(2000, 1, 1), [{1, 2}]],
    ids=["object", "lock", "inside", "a key", "half a character", "naive", "set"],
)
def test_what_cannot_travel_is_refused_when_it_is_set(value: Any) -> None:
    with pytest.raises(InvalidField, match=r"^the result .* cannot be sent: .*; set plain values"):
        context().set_result(value)


def test_what_cannot_travel_fails_the_command(worker: Worker) -> None:
    worker.run(Put(aggregate_root_id="x", item="an object"))
    (result,) = worker.run(Look("x"))
    assert (result.status, result.error_type) == (CommandStatus.FAILED, "InvalidField")
    (result,) = worker.run(LookAndPut("x", item="b"))
    assert (result.status, result.error_type) == (CommandStatus.FAILED, "InvalidField")


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (None, None),
        (2**70, 2**70),
        (Decimal("1.50"), Decimal("1.50")),
        ((1, [2]), [1, [2]]),
        (datetime(2000, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), datetime(2000, 1, 1, tzinfo=UTC)),
    ],
)
def test_the_result_is_what_arrives(value: Any, arrives: Any) -> None:
    one = context()
    one.set_result(value)
    assert (one.result, type(one.result)) == (arrives, type(arrives))
