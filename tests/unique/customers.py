"""Customers with an e-mail address, whose commands the senders of this process can send."""

from __future__ import annotations

from enode_django import AggregateRoot, Command, DomainEvent, Unique, applies, command_handler


class Register(Command):
    type_name = "customers.Register"
    email: str
    name: str = ""


class Move(Command):
    type_name = "customers.Move"
    email: str


class Registered(DomainEvent):
    type_name = "customers.Registered"
    email: str


class Moved(DomainEvent):
    type_name = "customers.Moved"
    email: str


class Customer(AggregateRoot):
    type_name = "customers.Customer"
    id_prefix = "customer-"
    email: str = ""
    unique = Unique("email", normalize=str.casefold, message="This address is registered.")

    @command_handler(creates=True)
    def register(self, command: Register) -> None:
        self.apply(Registered(email=command.email))

    @command_handler
    def move(self, command: Move) -> None:
        self.apply(Moved(email=command.email))

    @applies
    def _registered(self, event: Registered | Moved) -> None:
        self.email = event.email
