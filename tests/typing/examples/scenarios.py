"""The arguments of `given`, and the one of the four scenarios that it returns for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

from django.db import models

from enode_django import (
    AggregateRoot,
    Command,
    DomainEvent,
    ModelProjection,
    MultiProjection,
    ProcessManager,
    applies,
    handles,
)
from enode_django.models import ReadModel
from enode_django.testing import ProcessScenario, RowScenario, RowsScenario, Scenario, given


class Open(Command):
    owner: str


class Opened(DomainEvent):
    owner: str


class Account(AggregateRoot):
    @applies
    def _opened(self, event: Opened) -> None: ...


class Row(ReadModel): ...


class Rows(ModelProjection[Row]):
    @handles(creates=True)
    def opened(self, row: Row, event: Opened) -> None: ...


class OwnerTotal(models.Model):
    owner = models.CharField(max_length=10, primary_key=True)


class Owners(MultiProjection[OwnerTotal], key=lambda event: event.owner):
    @handles(creates=True)
    def opened(self, row: OwnerTotal, event: Opened) -> None: ...


class OwnersAlone(MultiProjection[OwnerTotal]):
    @handles(key=lambda event: event.owner)
    def opened(self, row: OwnerTotal, event: Opened) -> None: ...


class OwnersOfAll(MultiProjection[OwnerTotal], keys=lambda event: [event.owner, "all"]):
    @handles(Opened, keys=lambda event: event.owner.split())
    def opened(self, row: OwnerTotal, event: Opened) -> None: ...

    @handles(Opened, keys=lambda event: event.version)  # error: not several
    def counted(self, row: OwnerTotal, event: Opened) -> None: ...

    @handles(Opened, keys=lambda event: [event.nothing])  # error
    def nobody(self, row: OwnerTotal, event: Opened) -> None: ...


class Greeting(ProcessManager):
    @handles
    def opened(self, event: Opened) -> Iterator[Command]:
        yield Open("b", owner=event.owner)


OPENED = Opened(owner="Ada")

assert_type(given(), Scenario)
assert_type(given(OPENED, OPENED), Scenario)
assert_type(given(Account, OPENED), Scenario)
assert_type(given(Account, "a", OPENED), Scenario)
assert_type(given(Rows, OPENED), RowScenario[Row])
assert_type(given(Rows, "a", OPENED).row, Row | None)
assert_type(given(Owners, OPENED), RowsScenario[OwnerTotal])
assert_type(given(OwnersAlone, "a", OPENED), RowsScenario[OwnerTotal])
assert_type(given(Greeting, "a", OPENED), ProcessScenario)

given(Greeting, OPENED)  # error: it needs an id
given("a", OPENED)  # error: the command names the id
given(OPENED, Open("a", owner="Ada"))  # error: a command is not an event
given(OPENED).when(OPENED)  # error: an event is not a command
given(Rows, OPENED).when(Open("a", owner="Ada"))  # error: a command is not an event
given(Greeting, "a").then(OPENED)  # error: an event is not a command
