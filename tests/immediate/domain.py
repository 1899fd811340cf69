"""Jars that are filled, and what follows them. Subscribers do what `behaviour` says, and note what they handled."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from django.db import OperationalError, connection, models

from enode_django import (
    AggregateRoot,
    Command,
    CommandContext,
    DomainEvent,
    DomainException,
    ModelProjection,
    ProcessManager,
    Projection,
    applies,
    command_handler,
    current_metadata,
    handles,
    send_command,
)
from enode_django.eventing.event_handlers import EventHandler, EventHandlerGroup
from enode_django.models import ReadModel

LIMIT = 100


class Fill(Command):
    """Makes the jar, if there is none."""

    type_name = "immediate.Fill"
    amount: int = 1


class Pour(Command):
    """Fills another jar, too: by the context, or with the handler's own send."""

    type_name = "immediate.Pour"
    into: str
    by_context: bool = True
    fails: bool = False


class Label(Command):
    type_name = "immediate.Label"


class Filled(DomainEvent):
    type_name = "immediate.Filled"
    amount: int


class Labelled(DomainEvent):
    type_name = "immediate.Labelled"


class Full(DomainException):
    type_name = "immediate.Full"


class Jar(AggregateRoot):
    type_name = "immediate.Jar"
    total: int = 0

    @command_handler
    def label(self, command: Label) -> None:
        behaviour.meet("label", self.id)
        self.apply(Labelled())

    @applies
    def _filled(self, event: Filled) -> None:
        self.total += event.amount

    @applies
    def _labelled(self, event: Labelled) -> None: ...


def _jar(context: CommandContext) -> Jar:
    jar = context.find(Jar)
    if jar is None:
        context.add(jar := Jar(context.aggregate_root_id))
    return jar


@command_handler
def fill(command: Fill, context: CommandContext) -> int:
    behaviour.lose_session(command.aggregate_root_id)
    jar = _jar(context)
    if jar.total + command.amount > LIMIT:
        raise Full(f"{jar.id} is full")
    jar.apply(Filled(amount=command.amount))
    return jar.total


@command_handler
def pour(command: Pour, context: CommandContext) -> None:
    _jar(context).apply(Filled(amount=1))
    into = Fill(command.into)
    if command.by_context:
        context.send(into)
    else:
        send_command(into)
    if command.fails:
        raise RuntimeError("told to fail")


@dataclasses.dataclass
class Behaviour:
    """``failing`` are pairs of a subscriber and an aggregate, ``killing`` one at which this process ends."""

    failing: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    killing: tuple[str, str] | None = None
    calls: list[tuple[str, str, int]] = dataclasses.field(default_factory=list)
    """The name, the aggregate and its version of each call of an event handler or process manager."""
    entered: threading.Event = dataclasses.field(default_factory=threading.Event)
    may_go_on: threading.Event | None = None
    """The event handler waits for it."""
    users: list[tuple[str, str | None]] = dataclasses.field(default_factory=list)
    """The name and the user in the ambient metadata, of each call."""
    takes: float = 0.0
    """The seconds that each call takes."""
    cut: tuple[str, int] = ("", 0)
    """The jar whose next handlers lose the session with the database, and how many of them."""

    def lose_session(self, id: str) -> None:
        if id == self.cut[0] and self.cut[1]:
            self.cut = (id, self.cut[1] - 1)
            with suppress(OperationalError), connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    def meet(self, name: str, id: str) -> None:
        self.users.append((name, current_metadata().user_id))
        time.sleep(self.takes)
        if (name, id) == self.killing:
            os.kill(os.getpid(), signal.SIGKILL)
        if (name, id) in self.failing:
            raise RuntimeError(f"{name} was told to fail at {id}")


behaviour = Behaviour()


class JarRow(ReadModel):
    total = models.IntegerField(default=0)

    class Meta:
        app_label = "immediate"


class JarEntry(models.Model):
    aggregate_root_id = models.CharField(max_length=255)
    version = models.BigIntegerField()

    class Meta:
        app_label = "immediate"


class JarRows(ModelProjection[JarRow]):
    name = "immediate.rows"
    abstract = True  # it runs in the tests that name it only

    @handles
    def filled(self, row: JarRow, event: Filled) -> None:
        behaviour.meet("rows", event.aggregate_root_id)
        row.total += event.amount


class JarEntries(Projection):
    name = "immediate.entries"
    abstract = True
    models = (JarEntry,)

    @handles
    def filled(self, event: Filled) -> None:
        behaviour.meet("entries", event.aggregate_root_id)
        JarEntry.objects.create(aggregate_root_id=event.aggregate_root_id, version=event.version)


class Labelling(ProcessManager):
    """Labels the jar that was filled for the first time."""

    name = "immediate.labelling"
    abstract = True

    @handles
    def filled(self, event: Filled) -> Iterator[Command]:
        behaviour.calls.append(("labelling", event.aggregate_root_id, event.version))
        if event.version == 1:
            yield Label(aggregate_root_id=event.aggregate_root_id)


def mails(start: str = "now") -> EventHandlerGroup:
    """Return a group of its own, which no registry knows."""
    group = EventHandlerGroup("immediate.mails")

    def mail(event: DomainEvent) -> None:
        behaviour.meet("mails", event.aggregate_root_id)
        behaviour.entered.set()
        if behaviour.may_go_on is not None:
            assert behaviour.may_go_on.wait(60)
        behaviour.calls.append(("mails", event.aggregate_root_id, event.version))

    group.add(EventHandler(Filled, "mail", 100, mail, start))
    return group


MODELS = (JarRow, JarEntry)
