"""Members with an e-mail address that belongs to one of them, and a number that belongs to one of each team."""

from __future__ import annotations

from typing import Any

from enode_django.commanding.context import CommandContext
from enode_django.domain.aggregate import AggregateRoot, applies
from enode_django.domain.handlers import HandlerTable
from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.refusals import DomainException
from enode_django.domain.unique import Unique
from enode_django.eventstore.base import EventStore
from enode_django.exceptions import Retry
from enode_django.repository.loading import AggregateLoader


class Join(Command):
    type_name = "unique.Join"
    email: str
    team: str = ""
    number: int | None = None


class ChangeEmail(Command):
    type_name = "unique.ChangeEmail"
    email: str


class SwapEmails(Command):
    """Changes the address to the given one, and fails unless it was ``before``."""

    type_name = "unique.SwapEmails"
    before: str
    email: str


class ChangeNumber(Command):
    type_name = "unique.ChangeNumber"
    team: str
    number: int | None


class Wave(Command):
    """Changes nothing that is unique."""

    type_name = "unique.Wave"


class Leave(Command):
    type_name = "unique.Leave"


class Joined(DomainEvent):
    type_name = "unique.Joined"
    email: str
    team: str = ""
    number: int | None = None


class EmailChanged(DomainEvent):
    type_name = "unique.EmailChanged"
    email: str


class NumberChanged(DomainEvent):
    type_name = "unique.NumberChanged"
    team: str
    number: int | None


class Waved(DomainEvent):
    type_name = "unique.Waved"


class Left(DomainEvent):
    type_name = "unique.Left"


class Unexpected(DomainException):
    type_name = "unique.Unexpected"
    email: str


class Member(AggregateRoot):
    type_name = "unique.Member"
    email: str = ""
    team: str = ""
    number: int | None = None
    waves: int = 0
    unique = [Unique("email", normalize=str.casefold), Unique("team", "number", message="this shirt is worn")]

    @applies(Joined)
    def _joined(self, event: Joined) -> None:
        self.email, self.team, self.number = event.email, event.team, event.number

    @applies(EmailChanged)
    def _email_changed(self, event: EmailChanged) -> None:
        self.email = event.email

    @applies(NumberChanged)
    def _number_changed(self, event: NumberChanged) -> None:
        self.team, self.number = event.team, event.number

    @applies(Waved)
    def _waved(self, event: Waved) -> None:
        self.waves += 1

    @applies(Left)
    def _left(self, event: Left) -> None:
        self.email, self.number = "", None


handlers = HandlerTable()
retrying: set[str] = set()
"""Commands that raise `Retry` once."""


def handles(cls: type[Command]) -> Any:
    def add(function: Any) -> Any:
        handlers.add(cls, function)
        return function

    return add


@handles(Join)
def join(command: Join, context: CommandContext) -> None:
    member = Member(command.aggregate_root_id)
    member.apply(Joined(email=command.email, team=command.team, number=command.number))
    context.add(member)


@handles(ChangeEmail)
def change_email(command: ChangeEmail, context: CommandContext) -> None:
    context.get(Member).apply(EmailChanged(email=command.email))
    if command.id in retrying:
        retrying.remove(command.id)
        raise Retry("once more")


@handles(SwapEmails)
def swap_emails(command: SwapEmails, context: CommandContext) -> None:
    member = context.get(Member)
    if member.email != command.before:
        raise Unexpected("it is another one", email=member.email)
    member.apply(EmailChanged(email=command.email))


@handles(ChangeNumber)
def change_number(command: ChangeNumber, context: CommandContext) -> None:
    context.get(Member).apply(NumberChanged(team=command.team, number=command.number))


@handles(Wave)
def wave(command: Wave, context: CommandContext) -> None:
    context.get(Member).apply(Waved())


@handles(Leave)
def leave(command: Leave, context: CommandContext) -> None:
    context.get(Member).apply(Left())


def emails(store: EventStore, *ids: str) -> dict[str, str]:
    """Return the stored addresses of these members, by id."""
    loaded = {id: AggregateLoader(store).load(id) for id in ids}
    return {id: one.email for id, one in loaded.items() if isinstance(one, Member)}
