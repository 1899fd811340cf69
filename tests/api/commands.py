"""Commands that the sample has none like."""

from __future__ import annotations

from dataclasses import field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from rest_framework.permissions import AllowAny, BasePermission

from enode_django import AggregateRoot, Command, DomainEvent, DomainException, applies, command_handler
from enode_django.exceptions import InvalidField
from tests.properties.test_codec import Point


class Size(Enum):
    SMALL = 1
    LARGE = 2


class OnlyOwnParcels(BasePermission):
    """A parcel is accessible to the user whose name begins its id."""

    def has_object_permission(self, request: Any, view: Any, obj: Any) -> bool:
        return bool(obj.aggregate_root_id.startswith(request.user.username))


class Ship(Command):
    """A command with a field of every type."""

    type_name = "api.Ship"
    aliases = ("api.Send",)
    weight: Decimal
    to: Point
    size: Size = Size.SMALL
    at: datetime | None = None
    day: date | None = None
    key: UUID | None = None
    label: bytes = b""
    tags: frozenset[str] = frozenset()
    rates: dict[int, Decimal] = field(default_factory=dict)
    stops: tuple[Point, ...] = ()
    share: float = 0.0
    fragile: bool = False


class Track(Command):
    type_name = "api.Track"
    api_permissions = (AllowAny,)


class Own(Command):
    type_name = "api.Own"
    api_permissions = (OnlyOwnParcels,)


class Internal(Command):
    type_name = "api.Internal"
    api_permissions = ()


class Unhandled(Command):
    type_name = "api.Unhandled"


class Break(Command):
    type_name = "api.Break"
    how: str


class Shipped(DomainEvent):
    type_name = "api.Shipped"
    weight: Decimal
    label: bytes
    to: Point


class Lost(DomainException):
    """Its fields are called as members of a problem are."""

    type_name = "api.Lost"
    status: str
    where: Point | None = None


class Parcel(AggregateRoot):
    type_name = "api.Parcel"
    weight: Decimal = Decimal(0)
    label: bytes = b""
    to: Point | None = None

    @command_handler(creates=True)
    def ship(self, command: Ship) -> dict[str, Any]:
        self.apply(Shipped(weight=command.weight, label=command.label, to=command.to))
        return {"rates": command.rates, "at": command.at, "tags": sorted(command.tags)}

    @applies
    def _shipped(self, event: Shipped) -> None:
        self.weight, self.label, self.to = event.weight, event.label, event.to


received: list[Command] = []


@command_handler(Track, Own, Internal)
def note(command: Command) -> None:
    received.append(command)


@command_handler
def break_(command: Break) -> None:
    if command.how == "lost":
        raise Lost("nobody knows", status="gone", where=Point(x=Decimal("1.50")))
    if command.how == "invalid":
        raise InvalidField("no such how")
    raise KeyError("the password is swordfish")
