"""Carts that are paid in time or cancelled."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from enode_django import (
    AggregateRoot,
    CancelDeadline,
    Command,
    Deadline,
    DomainEvent,
    ProcessManager,
    applies,
    command_handler,
    handles,
)

PATIENCE = timedelta(minutes=10)


class FillCart(Command):
    type_name = "scheduling.FillCart"


class RefillCart(Command):
    type_name = "scheduling.RefillCart"


class PayCart(Command):
    type_name = "scheduling.PayCart"


class CancelCart(Command):
    type_name = "scheduling.CancelCart"
    fillings: int


class CartFilled(DomainEvent):
    type_name = "scheduling.CartFilled"
    fillings: int


class CartPaid(DomainEvent):
    type_name = "scheduling.CartPaid"


class CartCancelled(DomainEvent):
    type_name = "scheduling.CartCancelled"


class Cart(AggregateRoot):
    type_name = "scheduling.Cart"
    fillings: int = 0

    @command_handler(creates=True)
    def fill(self, command: FillCart) -> None:
        self.apply(CartFilled(fillings=1))

    @command_handler
    def refill(self, command: RefillCart) -> None:
        self.apply(CartFilled(fillings=self.fillings + 1))

    @command_handler
    def pay(self, command: PayCart) -> None:
        self.apply(CartPaid())

    @command_handler
    def cancel(self, command: CancelCart) -> None:
        self.apply(CartCancelled())

    @applies
    def _filled(self, event: CartFilled) -> None:
        self.fillings = event.fillings

    @applies
    def _ended(self, event: CartPaid | CartCancelled) -> None: ...


class Impatience(ProcessManager):
    """Cancels a cart that is not paid ten minutes after it was filled last."""

    name = "scheduling.impatience"
    abstract = True  # it runs in the tests that name it only
    start = "beginning"

    @handles
    def filled(self, event: CartFilled) -> Iterator[Command | Deadline]:
        yield Deadline("payment", CancelCart(event.aggregate_root_id, fillings=event.fillings), after=PATIENCE)

    @handles
    def paid(self, event: CartPaid) -> Iterator[CancelDeadline]:
        yield CancelDeadline("payment")
