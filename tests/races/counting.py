"""A small domain for forcing races: an aggregate that counts, and a command for every kind of outcome."""

from __future__ import annotations

from typing import Any

from enode_django.commanding.context import CommandContext
from enode_django.domain.aggregate import AggregateRoot, applies
from enode_django.domain.handlers import HandlerTable
from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.refusals import DomainException


class Create(Command):
    type_name = "races.Create"


class Add(Command):
    type_name = "races.Add"
    amount: int = 1


class AddWithin(Command):
    """Adds, or is refused by a durable refusal if the total would be above ``limit``."""

    type_name = "races.AddWithin"
    limit: int
    amount: int = 1


class AddSoftly(Command):
    """Adds, or is refused by a refusal that is not durable if the total would be above ``limit``."""

    type_name = "races.AddSoftly"
    limit: int
    amount: int = 1


class SetTotal(Command):
    """Sets the total. Changes nothing if the aggregate has this total already."""

    type_name = "races.SetTotal"
    total: int


class FailUnless(Command):
    """Adds one if the total is ``total``, else fails."""

    type_name = "races.FailUnless"
    total: int


class ApplyThenRaise(Command):
    type_name = "races.ApplyThenRaise"
    refuse: bool = False


class AddText(Command):
    type_name = "races.AddText"
    text: str


class Tell(Command):
    """Changes nothing, and is answered with a text of ``characters`` characters."""

    type_name = "races.Tell"
    characters: int


class AddAndSend(Command):
    """Adds one if ``adds``, and sends ``count`` commands to the counter ``to``. Then ``how`` may refuse or fail it."""

    type_name = "races.AddAndSend"
    to: str
    count: int = 1
    text: str = ""
    adds: bool = True
    how: str = ""


class Created(DomainEvent):
    type_name = "races.Created"


class Added(DomainEvent):
    type_name = "races.Added"
    amount: int
    total: int
    text: str = ""


class TooMuch(DomainException):
    type_name = "races.TooMuch"
    total: int


class NotNow(DomainException):
    type_name = "races.NotNow"
    durable = False
    total: int


class Counter(AggregateRoot):
    type_name = "races.Counter"
    total: int = 0

    def add(self, amount: int, text: str = "") -> None:
        self.apply(Added(amount=amount, total=self.total + amount, text=text))

    @applies
    def _created(self, event: Created) -> None:
        pass

    @applies
    def _added(self, event: Added) -> None:
        self.total = event.total


handlers = HandlerTable()


def create(command: Create, context: CommandContext) -> None:
    counter = Counter(command.aggregate_root_id)
    counter.apply(Created())
    context.add(counter)


def add(command: Add, context: CommandContext) -> None:
    counter = context.get(Counter)
    counter.add(command.amount)
    context.set_result(counter.total)


def add_within(command: AddWithin, context: CommandContext) -> None:
    counter = context.get(Counter)
    if counter.total + command.amount > command.limit:
        raise TooMuch("that is too much", total=counter.total)
    counter.add(command.amount)


def add_softly(command: AddSoftly, context: CommandContext) -> None:
    counter = context.get(Counter)
    if counter.total + command.amount > command.limit:
        raise NotNow("not now", total=counter.total)
    counter.add(command.amount)


def set_total(command: SetTotal, context: CommandContext) -> None:
    counter = context.get(Counter)
    if counter.total != command.total:
        counter.add(command.total - counter.total)


def fail_unless(command: FailUnless, context: CommandContext) -> None:
    counter = context.get(Counter)
    if counter.total != command.total:
        raise LookupError(f"the total is {counter.total}")
    counter.add(1)


def apply_then_raise(command: ApplyThenRaise, context: CommandContext) -> None:
    counter = context.get(Counter)
    counter.add(1_000)
    if command.refuse:
        raise TooMuch("changed my mind", total=counter.total)
    raise RuntimeError("broken")


def add_text(command: AddText, context: CommandContext) -> None:
    context.get(Counter).add(1, command.text)


def tell(command: Tell, context: CommandContext) -> None:
    context.set_result("x" * command.characters)


def add_and_send(command: AddAndSend, context: CommandContext) -> None:
    counter = context.get(Counter)
    if command.adds:
        counter.add(1)
    for number in range(command.count):
        if command.text:
            context.send(AddText(command.to, text=command.text))
        else:
            context.send(Add(command.to, amount=number + 1))
    if command.how == "refused":
        raise TooMuch("changed my mind", total=counter.total)
    if command.how == "failed":
        raise RuntimeError("broken")
    context.set_result(counter.total)


_TABLE: list[tuple[type[Command], Any]] = [
    (Create, create),
    (Add, add),
    (AddWithin, add_within),
    (AddSoftly, add_softly),
    (SetTotal, set_total),
    (FailUnless, fail_unless),
    (ApplyThenRaise, apply_then_raise),
    (AddText, add_text),
    (Tell, tell),
    (AddAndSend, add_and_send),
]
for _command, _handler in _TABLE:
    handlers.add(_command, _handler)
