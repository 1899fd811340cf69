"""A process manager that handles the crashes of commands it has sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from enode_django import (
    AggregateRoot,
    Command,
    CommandContext,
    CommandCrashed,
    DomainEvent,
    DomainException,
    ProcessManager,
    applies,
    command_handler,
    event_handler,
    handles,
    handles_crash,
    send_command,
)
from enode_django.bus.addresses import answer_address, crash_handler_in, crashes_address
from enode_django.commanding.intake import Intake
from enode_django.commanding.mailbox_router import MailboxRouter
from enode_django.commanding.remembered_answers import RememberedAnswers
from enode_django.domain.metadata import Metadata
from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventing.process_managers import crash_handler
from enode_django.eventing.registry import subscribers
from enode_django.exceptions import DefinitionError
from enode_django.models import EventStream
from enode_django.testing import given, inline
from tests.unit.commanding.desk import Desk

pytestmark = pytest.mark.django_db(transaction=True)


class Order(Command):
    type_name = "crashes.Order"
    parcel: str


class Pack(Command):
    type_name = "crashes.Pack"
    order: str


class Weigh(Command):
    """A command whose crash no process manager handles."""

    type_name = "crashes.Weigh"
    order: str


class CancelOrder(Command):
    type_name = "crashes.CancelOrder"
    reason: str


class Ordered(DomainEvent):
    type_name = "crashes.Ordered"
    parcel: str


class Cancelled(DomainEvent):
    type_name = "crashes.Cancelled"
    reason: str


class Sale(AggregateRoot):
    type_name = "crashes.Sale"
    cancelled: bool = False

    @applies(Ordered)
    def _ordered(self, event: Ordered) -> None:
        pass

    @applies(Cancelled)
    def _cancelled(self, event: Cancelled) -> None:
        self.cancelled = True


@command_handler(Order)
def order(command: Order, context: CommandContext) -> None:
    sale = Sale(command.aggregate_root_id)
    sale.apply(Ordered(parcel=command.parcel))
    context.add(sale)


@command_handler(Pack)
@command_handler(Weigh)
def pack(command: Pack | Weigh, context: CommandContext) -> None:
    raise RuntimeError(f"no box for {command.order}")


@command_handler(CancelOrder)
def cancel(command: CancelOrder, context: CommandContext) -> None:
    context.get(Sale).apply(Cancelled(reason=command.reason))


class Packing(ProcessManager):
    name = "crashes.packing"
    abstract = True  # it runs only in tests that name it

    @handles(Ordered)
    def ordered(self, event: Ordered) -> Iterator[Command]:
        yield Pack(event.parcel, order=event.aggregate_root_id)
        yield Weigh(event.parcel, order=event.aggregate_root_id)

    @handles_crash(Pack)
    def not_packed(self, crash: CommandCrashed) -> Iterator[Command]:
        command = crash.command
        assert type(command) is Pack, "that of Weigh is not handled"
        yield CancelOrder(command.order, reason=f"{crash.error_type}: {crash.message}")


class Nosy(ProcessManager):
    """A process manager that sends nothing, and handles every refusal."""

    name = "crashes.nosy"
    abstract = True
    seen: list[DomainException] = []

    @handles(DomainException)
    def refused(self, refusal: DomainException) -> None:
        self.seen.append(refusal)


def test_a_crash_comes_to_the_process_manager_that_has_sent_the_command_and_to_no_other() -> None:
    with inline(followed_by=[Packing, Nosy]) as bus:
        send_command(Order("o1", parcel="p1"))
    assert [(type(event), event.aggregate_root_id) for event in bus.events] == [(Ordered, "o1"), (Cancelled, "o1")]
    (cancelled,) = (event for event in bus.events if isinstance(event, Cancelled))
    assert cancelled.reason == "RuntimeError: no box for o1"
    assert Nosy.seen == []
    (row,) = EventStream.objects.filter(aggregate_root_id="p1")
    assert (row.version, row.command_type) == (None, "crashes.Pack"), "that of Weigh is not a refusal"


def test_who_handles_a_crash_travels_with_the_command_and_nobody_is_answered() -> None:
    desk = Desk()
    process = subscribers.instance(Packing)
    commands = [(kind(aggregate_root_id="p", order="o"), Metadata()) for kind in (Pack, Weigh)]
    desk.bus.forward(commands, crash_handler(process))
    window = OffsetWindow("commands", 0, epoch=1, committed=0, deadline=1e9)
    (batch,) = desk.transport.pull("commands", {0: 0}, limit=9, wait=0)
    window.add(batch.offsets)
    intake = Intake(MailboxRouter(1, 1), RememberedAnswers(0, lambda window: ()), delays=())
    received = intake.receive(window, batch.offsets, batch.bodies)
    assert [(one.reply_to, one.crash_handler) for one in received.commands] == [("", "crashes.packing"), ("", "")]
    desk.close()


def test_addresses_name_who_handles_a_crash() -> None:
    address = crashes_address("crashes.packing")
    assert (answer_address(address), crash_handler_in(address)) == ("", "crashes.packing")
    assert (answer_address("in1"), crash_handler_in("in1")) == ("in1", "")
    assert crashes_address("") == ""


def test_a_process_is_tested_with_a_crash() -> None:
    command = Pack("p", order="o")
    crash = CommandCrashed.of(command, RuntimeError("no box"), sender="crashes.packing")
    given(Packing, "p").when(crash).then(CancelOrder("o", reason="RuntimeError: no box"))
    given(Nosy, "p").when(crash).then_nothing()


def test_only_process_managers_handle_crashes_and_only_of_commands() -> None:
    with pytest.raises(DefinitionError, match="handles_crash"):
        handles(CommandCrashed)
    with pytest.raises(DefinitionError, match="Ordered"):
        handles_crash(Ordered)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="names no command"):
        handles_crash()
    with pytest.raises(DefinitionError, match="handles_crash"):
        event_handler(CommandCrashed, name="crashes.handlers")
