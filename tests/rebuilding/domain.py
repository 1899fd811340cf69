"""Projections of the counters' events, for rebuilds. `effects` adds to what their handlers do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from django.db import models
from django.db.models.functions import Now

from enode_django import DomainEvent, ModelProjection, Projection, handles
from enode_django.models import ReadModel
from tests.following.domain import Added, Closed, Opened


@dataclasses.dataclass
class Effects:
    """``posting`` is called with each event that `Postings` handles, ``balance`` with row and event. ``note`` is that
    of the rows of `Seats`."""

    posting: Callable[[DomainEvent], object] = lambda event: None
    balance: Callable[[Any, DomainEvent], object] = lambda row, event: None
    note: Any = None


effects = Effects()


class Posting(models.Model):
    account = models.CharField(max_length=255)
    amount = models.IntegerField()
    once = models.CharField(max_length=50, null=True)
    made_at = models.DateTimeField(db_default=Now())

    class Meta:
        app_label = "rebuilding"
        constraints = [
            models.UniqueConstraint(fields=["once"], name="once", deferrable=models.Deferrable.DEFERRED),
        ]


class PostingLine(models.Model):
    posting = models.ForeignKey(Posting, on_delete=models.CASCADE)
    account = models.CharField(max_length=255)
    text = models.TextField()

    class Meta:
        app_label = "rebuilding"


class Label(models.Model):
    account = models.CharField(max_length=255)
    text = models.CharField(max_length=50)

    class Meta:
        app_label = "rebuilding"


class Book(models.Model):
    account = models.CharField(max_length=255)
    number = models.IntegerField()
    before = models.ForeignKey("self", on_delete=models.CASCADE, null=True)
    labels = models.ManyToManyField(Label)

    class Meta:
        app_label = "rebuilding"


class Route(models.Model):
    """Its two keys may look the same if they are joined."""

    origin = models.CharField(max_length=50)
    destination = models.CharField(max_length=50)
    orders = models.IntegerField(default=0)

    class Meta:
        app_label = "rebuilding"
        constraints = [models.UniqueConstraint(fields=["origin", "destination"], name="rebuilding_route_key")]


class Undeclared(models.Model):
    text = models.TextField()

    class Meta:
        app_label = "rebuilding"


class Balance(ReadModel):
    total = models.IntegerField(default=0)
    count = models.IntegerField(default=0)

    class Meta:
        app_label = "rebuilding"


class Seat(models.Model):
    """Its columns have names that the SQL of comparisons uses, too."""

    id = models.CharField(max_length=255, primary_key=True)
    account = models.CharField(max_length=255)
    row = models.IntegerField()
    fields = models.IntegerField(default=0)
    note = models.JSONField(null=True)

    class Meta:
        app_label = "rebuilding"


class Room(models.Model):
    account = models.CharField(max_length=255)
    number = models.IntegerField()

    class Meta:
        app_label = "rebuilding"


class Suite(Room):
    text = models.TextField()

    class Meta:
        app_label = "rebuilding"


class QuietRoom(Room):
    class Meta:
        app_label = "rebuilding"
        proxy = True


class Visit(models.Model):
    account = models.CharField(max_length=255)
    room = models.ForeignKey(QuietRoom, on_delete=models.CASCADE)

    class Meta:
        app_label = "rebuilding"


class Postings(Projection):
    name = "rebuilding.postings"
    models = (Posting, PostingLine)
    aggregate_field = "account"
    volatile = ("made_at",)

    @handles
    def opened(self, event: Opened) -> None:
        effects.posting(event)

    @handles
    def added(self, event: Added) -> None:
        posting = Posting.objects.create(account=event.aggregate_root_id, amount=event.amount)
        PostingLine.objects.create(account=event.aggregate_root_id, posting=posting, text=f"adds {event.amount}")
        effects.posting(event)

    @handles
    def closed(self, event: Closed) -> None:
        PostingLine.objects.filter(account=event.aggregate_root_id).delete()
        Posting.objects.filter(account=event.aggregate_root_id).delete()
        effects.posting(event)


class Balances(ModelProjection[Balance]):
    name = "rebuilding.balances"

    @handles
    def added(self, row: Balance, event: Added) -> None:
        row.total += event.amount
        row.count += 1
        effects.balance(row, event)

    @handles
    def closed(self, row: Balance, event: Closed) -> None:
        self.delete(row)
        effects.balance(row, event)


class Books(Projection):
    """Keeps books. Each points to the book before it, and has two labels. It shares one of them with other books."""

    name = "rebuilding.books"
    models = (Label, Book)
    aggregate_field = "account"

    @handles
    def added(self, event: Added) -> None:
        account = event.aggregate_root_id
        before = Book.objects.filter(account=account).order_by("id").last()
        book = Book.objects.create(account=account, number=event.amount, before=before)
        for text in ("odd" if event.amount % 2 else "even", f"is {event.amount}"):
            book.labels.add(Label.objects.get_or_create(account=account, text=text)[0])


class Seats(Projection):
    name = "rebuilding.seats"
    models = (Seat,)
    aggregate_field = "account"

    @handles
    def added(self, event: Added) -> None:
        account = event.aggregate_root_id
        Seat.objects.create(id=f"{account}-{event.amount}", account=account, row=event.amount, note=effects.note)


class Suites(Projection):
    """Keeps one suite of each account, and a visit. The model with the rows' other halves comes last, by its proxy."""

    name = "rebuilding.suites"
    abstract = True
    models = (Visit, Suite, QuietRoom)
    aggregate_field = "account"

    @handles
    def added(self, event: Added) -> None:
        account = event.aggregate_root_id
        suite, _ = Suite.objects.update_or_create(account=account, defaults={"number": event.amount, "text": account})
        Visit.objects.get_or_create(account=account, room_id=suite.pk)


MODELS = (Posting, PostingLine, Label, Book, Undeclared, Balance, Seat, Room, Suite, Visit, Route)
