"""A jar of coins, and a command with a field of every type."""

from __future__ import annotations

import dataclasses
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated
from uuid import UUID

from django.db.models import TextChoices

from enode_django import AggregateRoot, Command, DomainEvent, DomainException, applies, command_handler


class Metal(Enum):
    COPPER = 1
    WHITE_GOLD = 2


class Mood(TextChoices):
    GOOD = "g", "In good mood"
    BAD = "b", "In bad mood"


@dataclasses.dataclass(frozen=True)
class Size:
    width: int
    height: int = 1

    def __post_init__(self) -> None:
        if self.width < 0:
            raise ValueError("a width is not negative")


class Everything(Command):
    type_name = "commandforms.Everything"
    flag: bool
    number: int
    ratio: float
    text: str
    amount: Decimal
    moment: datetime
    day: date
    key: UUID
    blob: bytes
    metal: Metal
    mood: Mood
    sizes: list[Size]
    tags: set[str]
    rates: dict[str, Decimal]
    pair: tuple[int, str]
    noted: Annotated[str, "of no importance"]


class Optional(Command):
    type_name = "commandforms.Optional"
    flag: bool | None
    number: int | None
    text: str | None
    metal: Metal | None
    sizes: list[Size] | None
    amount: Decimal | None = Decimal(3)
    title: str = "untitled"
    count: int = 7
    mood: Mood = Mood.GOOD
    more: dict[str, int] = dataclasses.field(default_factory=lambda: {"a": 1})


class Fill(Command):
    type_name = "commandforms.Fill"
    coins: int


class Take(Command):
    type_name = "commandforms.Take"
    coins: int
    who: str = ""


class Filled(DomainEvent):
    type_name = "commandforms.Filled"
    coins: int


class TooFew(DomainException):
    type_name = "commandforms.TooFew"
    coins: int


class Locked(DomainException):
    type_name = "commandforms.Locked"
    who: str | None = None


class Jar(AggregateRoot):
    type_name = "commandforms.Jar"
    coins: int = 0

    @command_handler(creates=True)
    def fill(self, command: Fill) -> None:
        self.apply(Filled(coins=command.coins))

    @command_handler
    def take(self, command: Take) -> int:
        if command.who == "thief":
            raise Locked("100% <b>locked</b>")
        if command.who == "bug":
            raise ZeroDivisionError("a secret of the code")
        if command.coins > self.coins:
            raise TooFew("there are not so many", coins=command.coins)
        self.apply(Filled(coins=-command.coins))
        return self.coins

    @applies
    def _filled(self, event: Filled) -> None:
        self.coins += event.coins
