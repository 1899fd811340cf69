"""The tables of commands that wait in a database before they are in the queue."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models.functions import Now, Substr

HEAD = 1_100
"""Bytes. The first ones of a body, which hold the type of its command: names in tables have at most 255 characters."""


class WaitingCommand(models.Model):
    """An encoded command that waits in a database. `headed` rows read its type without the rest of its body."""

    aggregate_root_id = models.CharField("aggregate root id", max_length=255, db_collation="C")
    command_id = models.CharField("command id", max_length=255, db_collation="C")
    body = models.BinaryField("body", help_text="The message as the queue gets it.")
    head: bytes | None = None

    class Meta:
        abstract = True

    @property
    def command_type(self) -> str:
        """The stored name of the command's type; empty if the body does not begin like a command."""
        return _type_in(bytes((self.body if self.head is None else self.head)[:HEAD]))

    def __str__(self) -> str:
        return f"{self.command_type or 'command'} {self.command_id} for {self.aggregate_root_id}"


def headed(rows: models.QuerySet[Any]) -> models.QuerySet[Any]:
    """Return the rows without their bodies, which can be megabytes each, but with the first `HEAD` bytes."""
    head = Substr("body", 1, HEAD, output_field=models.BinaryField())
    found: models.QuerySet[Any] = rows.defer("body").annotate(head=head)
    return found


def _type_in(head: bytes) -> str:
    import msgpack  # the checks of the settings do not need it

    reader = msgpack.Unpacker()
    reader.feed(head)
    try:
        reader.read_array_header()
        reader.skip()  # the format
        name = reader.unpack()
    except (ValueError, msgpack.UnpackException):
        return ""
    return name if isinstance(name, str) else ""


class OutboxCommand(WaitingCommand):
    """A command that was written in its sender's transaction and is not yet in the queue. The relay sends the rows in
    the order of their ids, and deletes them. A row that can never be sent is rejected with an ``error``.

    `enode_django.outbox` writes the rows, in any database that has this table.
    """

    written_at = models.DateTimeField("written at", db_default=Now())
    rejected_at = models.DateTimeField("rejected at", null=True, help_text="Empty while it waits to be sent.")
    error = models.TextField("error", db_default="", blank=True, help_text="Why it was rejected.")

    class Meta:
        verbose_name = "outbox command"
        verbose_name_plural = "outbox"
        default_permissions = ("view", "change")
        indexes = [
            models.Index(fields=["id"], name="enode_outbox_waiting", condition=models.Q(rejected_at__isnull=True))
        ]


class ScheduledCommand(WaitingCommand):
    """A command that waits for its time, by the clock of the database; then it becomes a row of the outbox.

    A deadline of a process manager is known by ``subscriber``, ``scope`` and ``name``. They are empty for a command
    that `send_command` has scheduled. `enode_django.scheduling` writes the rows.
    """

    due_at = models.DateTimeField("due at")
    scheduled_at = models.DateTimeField("scheduled at", db_default=Now())
    subscriber = models.CharField("subscriber", max_length=255, db_default="", db_collation="C", blank=True)
    scope = models.CharField(
        "scope", max_length=255, db_default="", db_collation="C", blank=True, help_text="Whose deadline it is."
    )
    name = models.CharField("name", max_length=255, db_default="", db_collation="C", blank=True)

    class Meta:
        verbose_name = "scheduled command"
        verbose_name_plural = "scheduled commands"
        default_permissions = ("view", "change")
        indexes = [
            models.Index(fields=["due_at", "id"], name="enode_scheduled_due"),
            models.Index(fields=["command_id"], name="enode_scheduled_command", condition=models.Q(subscriber="")),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["subscriber", "scope", "name"], name="enode_deadline", condition=~models.Q(subscriber="")
            )
        ]
