"""A handler of a process manager yields its commands; it cannot send them, because it may be called twice. One of a
projection sends none, because a rebuild calls it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from enode_django import (
    Command,
    ModelProjection,
    MultiProjection,
    ProcessManager,
    Projection,
    cancel_command,
    ends,
    execute_command,
    handles,
    send_command,
    send_command_on_commit,
    send_commands,
    starts,
)
from enode_django.eventing.subscribers import running_subscriber, yielding_subscriber
from enode_django.exceptions import SendInsideHandler
from enode_django.testing import given, inline
from sample_project.bank.domain import AccountOpened, Deposit, Deposited, OpenAccount
from sample_project.bank.models import AccountSummary, Payee

pytestmark = pytest.mark.django_db

BONUS = Deposit("bob", amount=Decimal(1))
WAYS: dict[str, Callable[[], object]] = {
    "send_command": lambda: send_command(BONUS),
    "send_commands": lambda: send_commands([BONUS]),
    "outbox": lambda: send_command(BONUS, outbox=True),
    "after": lambda: send_command(BONUS, after=60),
    "on commit": lambda: send_command_on_commit(BONUS),
}


class Generous(ProcessManager):
    """Sends a bonus, in a way that a test chooses, before it yields another one."""

    name = "following.generous"
    abstract = True
    way: Callable[[], object]

    @handles
    def opened(self, event: AccountOpened) -> Iterator[Command]:
        type(self).way()
        yield BONUS


@dataclass
class Openings:
    count: int = 0


class GenerousOnce(ProcessManager[Openings], key="aggregate_root_id"):
    name = "following.generous_once"
    abstract = True
    way: Callable[[], object]

    @starts
    def opened(self, state: Openings, event: AccountOpened) -> Iterator[Command]:
        yield BONUS
        type(self).way()

    @ends
    def deposited(self, state: Openings, event: Deposited) -> None: ...


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("manager", [Generous, GenerousOnce])
def test_no_way_sends_a_command_from_a_handler(manager: Any, way: Callable[[], object]) -> None:
    manager.way = staticmethod(way)
    refusal = rf"Deposit cannot be sent by a handler of {manager.name}, which may be called twice.*; yield it instead"
    with inline(followed_by=[]) as bus, pytest.raises(SendInsideHandler, match=refusal):
        given(manager, "ada").when(AccountOpened(owner="Ada"))
    assert (list(bus.events), yielding_subscriber.get()) == ([], None)


@pytest.mark.parametrize("manager", [Generous, GenerousOnce])
def test_it_may_send_again_once_the_handler_has_returned(manager: Any) -> None:
    manager.way = staticmethod(lambda: None)
    given(manager, "ada").when(AccountOpened(owner="Ada")).then(BONUS)
    with inline(followed_by=[]):
        send_command(BONUS)


class GenerousRows(ModelProjection[AccountSummary]):
    name = "following.generous_rows"
    abstract = True
    way: Callable[[], object]

    @handles(creates=True)
    def opened(self, row: AccountSummary, event: AccountOpened) -> None:
        type(self).way()


class GenerousPairs(MultiProjection[Payee]):
    name = "following.generous_pairs"
    abstract = True
    key_field = ("source", "target")
    way: Callable[[], object]

    @handles(key=lambda event: (event.owner, event.owner))
    def opened(self, row: Payee, event: AccountOpened) -> None:
        type(self).way()


class GenerousLines(Projection):
    name = "following.generous_lines"
    abstract = True
    models = (AccountSummary,)
    way: Callable[[], object]

    @handles
    def opened(self, event: AccountOpened) -> None:
        type(self).way()


FROM_PROJECTION = "Deposit cannot be sent by a handler of the projection {}, .* let a process manager yield it"


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("projection", [GenerousRows, GenerousPairs])
def test_no_way_sends_a_command_from_a_projection(projection: Any, way: Callable[[], object]) -> None:
    projection.way = staticmethod(way)
    with inline(followed_by=[]) as bus, pytest.raises(SendInsideHandler, match=FROM_PROJECTION.format(projection.name)):
        given(projection, "ada").when(AccountOpened(owner="Ada"))
    assert (list(bus.events), running_subscriber.get()) == ([], None)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_no_way_sends_a_command_from_a_projection_that_follows(way: Callable[[], object]) -> None:
    GenerousLines.way = staticmethod(way)
    opened = OpenAccount("ada", owner="Ada")
    with inline(followed_by=[GenerousLines]) as bus:
        with pytest.raises(SendInsideHandler, match=FROM_PROJECTION.format(GenerousLines.name)):
            execute_command(opened)
        assert [event.aggregate_root_id for event in bus.events] == ["ada"]


@pytest.mark.parametrize("projection", [GenerousRows, GenerousPairs])
def test_a_projection_cancels_no_command(projection: Any) -> None:
    projection.way = staticmethod(lambda: cancel_command(BONUS.id))
    refusal = f"cannot be cancelled by a handler of the projection {projection.name}, .* let a process manager"
    with inline(followed_by=[]) as bus:
        send_command(BONUS, after=60)
        with pytest.raises(SendInsideHandler, match=refusal):
            given(projection, "ada").when(AccountOpened(owner="Ada"))
        assert len(list(bus.scheduled)) == 1
