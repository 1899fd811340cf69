"""Stays in hotels, and a projection with a row for each of their nights. `trouble` tells handlers when to fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from datetime import date, timedelta

from django.db import models

from enode_django import AggregateRoot, Command, DomainEvent, MultiProjection, applies, command_handler, handles

FIRST = date(2026, 1, 1)


class Book(Command):
    type_name = "stays.Book"
    hotel: str
    nights: int


class Booked(DomainEvent):
    type_name = "stays.Booked"
    hotel: str
    days: tuple[int, ...]
    guests: int = 1


class Cancelled(DomainEvent):
    type_name = "stays.Cancelled"
    hotel: str
    days: tuple[int, ...]
    guests: int = 1


class Rated(DomainEvent):
    type_name = "stays.Rated"
    hotel: str
    day: int


class Stay(AggregateRoot):
    type_name = "stays.Stay"

    @command_handler(creates=True)
    def book(self, command: Book) -> None:
        self.apply(Booked(hotel=command.hotel, days=tuple(range(command.nights))))

    @applies(Booked, Cancelled, Rated)
    def _ignore(self, event: DomainEvent) -> None: ...


@dataclasses.dataclass
class Trouble:
    """``happens`` is called by each handler of `Nights` after it has changed its row."""

    happens: Callable[[Night, DomainEvent], object] = lambda row, event: None


trouble = Trouble()


class Night(models.Model):
    hotel = models.CharField(max_length=20)
    day = models.DateField()
    guests = models.IntegerField(default=0)
    stays = models.JSONField(default=dict)
    ratings = models.IntegerField(default=0)

    class Meta:
        app_label = "following"
        constraints = [models.UniqueConstraint(fields=["hotel", "day"], name="following_night_key")]


def nights(event: Booked | Cancelled) -> Iterable[tuple[str, date]]:
    return ((event.hotel, FIRST + timedelta(days=day)) for day in event.days)


class Nights(MultiProjection[Night], keys=nights):
    name = "following.nights"
    key_field = ("hotel", "day")

    @handles(creates=True)
    def booked(self, row: Night, event: Booked) -> None:
        row.guests += event.guests
        row.stays[event.aggregate_root_id] = row.day.day
        trouble.happens(row, event)

    @handles
    def cancelled(self, row: Night, event: Cancelled) -> None:
        row.guests -= event.guests
        row.stays.pop(event.aggregate_root_id, None)
        if not (row.guests or row.stays or row.ratings):
            self.delete(row)
        trouble.happens(row, event)

    @handles(key=lambda event: (event.hotel, FIRST + timedelta(days=event.day)))
    def rated(self, row: Night, event: Rated) -> None:
        row.ratings += 1


MODELS = (Night,)


def found() -> dict[tuple[str, int], tuple[int, list[str]]]:
    """Return the guests and the stays of each night, by hotel and day of the month."""
    return {(row.hotel, row.day.day): (row.guests, sorted(row.stays)) for row in Night.objects.all()}


def booked(*days: int, hotel: str = "h") -> Booked:
    return Booked(hotel=hotel, days=days)


def cancelled(*days: int, hotel: str = "h") -> Cancelled:
    return Cancelled(hotel=hotel, days=days)
