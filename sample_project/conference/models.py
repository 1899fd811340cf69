"""The rows that the pages show, and the wishes that come with orders."""

from __future__ import annotations

from django.db import models

from enode_django.models import ReadModel


class Availability(models.Model):
    """The seats of one conference, as its own events and those of all its orders tell."""

    conference = models.CharField(primary_key=True, max_length=255, db_collation="C")
    title = models.TextField(default="")
    price = models.IntegerField(default=0)
    seats = models.IntegerField(default=0)
    reserved = models.IntegerField(default=0)
    confirmed = models.IntegerField(default=0)

    class Meta:
        verbose_name_plural = "availabilities"

    def __str__(self) -> str:
        return f"{self.title}: {self.free} of {self.seats} free"

    @property
    def free(self) -> int:
        return self.seats - self.reserved - self.confirmed


class CustomerSummary(models.Model):
    """One customer, as the events of the customer and of all the customer's orders tell."""

    customer = models.CharField(primary_key=True, max_length=255, db_collation="C")
    name = models.TextField(default="")
    email = models.TextField(default="")
    placed = models.IntegerField(default=0)
    paid = models.IntegerField(default=0)

    class Meta:
        verbose_name_plural = "customer summaries"
        permissions = [("run_desk", "Can run the registration desk")]

    def __str__(self) -> str:
        return f"{self.name} <{self.email}>"


class OrderSummary(ReadModel):
    """One order. The rows of its conference and its customer may come later than its own."""

    conference = models.ForeignKey(Availability, models.DO_NOTHING, related_name="orders", db_constraint=False)
    conference_id: str
    customer = models.ForeignKey(CustomerSummary, models.DO_NOTHING, related_name="orders", db_constraint=False)
    customer_id: str
    seats = models.IntegerField()
    amount = models.IntegerField(default=0)
    state = models.CharField(max_length=20)
    reason = models.TextField(default="")
    placed_at = models.DateTimeField()

    class Meta(ReadModel.Meta):
        verbose_name_plural = "order summaries"

    def __str__(self) -> str:
        return f"{self.seats} seats, {self.state}"


class Wish(models.Model):
    """A customer's wish: food, access, a quiet seat. No rule needs it and it is personal, so it is no event."""

    order = models.CharField(primary_key=True, max_length=255, db_collation="C")
    text = models.TextField()

    class Meta:
        verbose_name_plural = "wishes"

    def __str__(self) -> str:
        return self.text
