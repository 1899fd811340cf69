"""The subscribers that `execute_command` waits for, and the places where it may be called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from enode_django import (
    CommandStatus,
    Metadata,
    Projection,
    WaitFor,
    aexecute_command,
    execute_command,
    handles,
    metadata,
    send_command,
)
from enode_django.domain.messages import DomainEvent
from enode_django.eventing.event_handlers import EventHandler, EventHandlerGroup
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import running_subscriber
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import DefinitionError, ExecuteInsideHandler, UnknownSubscriber
from enode_django.models import Subscription
from enode_django.runtime import use_bus
from enode_django.serialization.codec import decode_metadata
from enode_django.testing import inline
from tests.races.counting import Add, Added, Created
from tests.unit.commanding.desk import SOON, Desk
from tests.unit.test_sending import Shaky

Execute = Callable[..., Any]


def group(name: str, *events: type[DomainEvent]) -> EventHandlerGroup:
    made = EventHandlerGroup(name)
    for event in events:
        made.add(EventHandler(event, f"{name}.handler", 100, print, "now"))
    return made


@pytest.fixture
def desk() -> Iterator[Desk]:
    """Yield a desk with three subscribers. Two of them follow `Added`, one does not."""
    desk = Desk()
    follow = [group("ledger", Added), group("mails", Created), group("summaries", Added, Created)]
    with subscribers.only(*follow), use_bus(desk.bus):
        yield desk
    desk.close()


def execute_later(desk: Desk, wait_for: WaitFor) -> Any:
    return desk._callers.submit(execute_command, Add("x"), wait_for=wait_for, timeout=SOON)


def execute_async(command: Add, **options: Any) -> Any:
    return asyncio.run(aexecute_command(command, **options))


both_forms = pytest.mark.parametrize("execute", [execute_command, execute_async])


def test_handled_means_by_all_who_follow_one_of_the_events(desk: Desk) -> None:
    future = execute_later(desk, WaitFor.HANDLED)
    wire = desk.received()
    desk.answer(wire)
    desk.notify(wire, "summaries")
    desk.settle()
    assert not future.done()
    desk.notify(wire, "ledger")
    assert future.result(SOON).event_types == ("races.Added",)


def test_one_subscriber_is_waited_for_alone(desk: Desk) -> None:
    future = execute_later(desk, WaitFor.subscriber("summaries"))
    wire = desk.received()
    desk.answer(wire)
    desk.notify(wire, "ledger")
    desk.settle()
    assert not future.done()
    desk.notify(wire, "summaries", "KeyError: 1")
    assert future.result(SOON).parked == ("summaries",)


def test_a_subscriber_can_be_named_by_its_class(desk: Desk) -> None:
    class Totals(Projection):
        name = "totals"
        models = (Subscription,)

        @handles(Added)
        def added(self, event: Added) -> None: ...

    with subscribers.only(group("ledger", Added), Totals):
        future = execute_later(desk, WaitFor.subscriber(Totals))
        wire = desk.received()
        desk.answer(wire)
        desk.notify(wire, "ledger")
        desk.settle()
        assert not future.done()
        desk.notify(wire, "totals")
        assert future.result(SOON).parked == ()


def test_a_class_that_is_not_run_or_is_no_subscriber_is_refused(desk: Desk) -> None:
    class Unknown(Projection):
        name = "unknown"
        models = (Subscription,)

    with pytest.raises(UnknownSubscriber, match="'unknown'"):
        execute_command(Add("x"), wait_for=WaitFor.subscriber(Unknown))
    with pytest.raises(DefinitionError, match="names no subscriber; give its class or name"):
        execute_command(Add("x"), wait_for=WaitFor.subscriber(Add))  # type: ignore[arg-type]


def test_subscriber_that_follows_none_of_the_events_is_not_waited_for(desk: Desk) -> None:
    future = execute_later(desk, WaitFor.subscriber("mails"))
    desk.answer(desk.received())
    assert future.result(SOON).status is CommandStatus.SUCCESS


@both_forms
def test_unknown_subscriber_is_refused_before_anything_is_sent(desk: Desk, execute: Execute) -> None:
    with pytest.raises(UnknownSubscriber, match="no subscriber is named 'leger'; there are ledger, mails, summaries"):
        execute(Add("x"), wait_for=WaitFor.subscriber("leger"))
    with pytest.raises(UnknownSubscriber, match="no subscriber is named ''"):
        execute(Add("x"), wait_for=WaitFor.subscriber(""))
    assert desk.transport.end_offsets("commands") == {0: 0}


@both_forms
@pytest.mark.parametrize("wait_for", ["handled", None, WaitFor])
def test_what_is_no_wait_for_is_refused(desk: Desk, execute: Execute, wait_for: Any) -> None:
    with pytest.raises(DefinitionError, match=r"use WaitFor\.EXECUTED, WaitFor\.HANDLED or WaitFor\.subscriber"):
        execute(Add("x"), wait_for=wait_for)


def test_wait_for_is_a_value() -> None:
    assert WaitFor.subscriber("a") == WaitFor.subscriber("a")
    assert len({WaitFor.EXECUTED, WaitFor.HANDLED, WaitFor.subscriber("a"), WaitFor.subscriber("b")}) == 4
    assert WaitFor() == WaitFor.EXECUTED


@both_forms
@pytest.mark.parametrize("wait_for", [WaitFor.EXECUTED, WaitFor.HANDLED, WaitFor.subscriber("ledger")])
def test_handler_of_a_subscriber_may_send_and_not_execute(desk: Desk, execute: Execute, wait_for: WaitFor) -> None:
    token = running_subscriber.set(EventHandlerGroup("ledger"))
    try:
        with pytest.raises(ExecuteInsideHandler, match="Add cannot be executed by a handler of ledger"):
            execute(Add("x"), wait_for=wait_for)
        send_command(Add("x", id="sent"))
    finally:
        running_subscriber.reset(token)
    assert desk.received().id == "sent"


def test_handler_of_a_subscriber_may_not_execute_inline_either() -> None:
    token = running_subscriber.set(EventHandlerGroup("ledger"))
    try:
        with inline(MemoryEventStore()), pytest.raises(ExecuteInsideHandler, match="a handler of ledger"):
            execute_command(Add("x"))
    finally:
        running_subscriber.reset(token)


# -- forwarding -------------------------------------------------------------------------------------------------------


def test_forwarded_commands_have_metadata_of_their_own_and_nobody_waits(desk: Desk) -> None:
    with metadata(user_id="ambient"):
        desk.bus.forward(
            [
                (Add("x", id="1"), Metadata(user_id="ada")),
                (Add("x", id="2"), Metadata(causation_id="e")),
            ]
        )
    first, second = desk.received(), desk.received()
    assert [(wire.id, wire.reply_to) for wire in (first, second)] == [("1", ""), ("2", "")]
    assert decode_metadata(first.metadata) == Metadata(user_id="ada")
    assert decode_metadata(second.metadata) == Metadata(causation_id="e")


def test_forwarding_is_tried_again_like_sending() -> None:
    desk = Desk(Shaky(failures=2))
    desk.bus.forward([(Add("x", id="c"), Metadata())])
    assert [desk.received().id for _ in range(3)] == ["c", "c", "c"]
    desk.close()


def test_forwarding_nothing_does_nothing(desk: Desk) -> None:
    desk.bus.forward([])
    assert desk.transport.end_offsets("commands") == {0: 0}
