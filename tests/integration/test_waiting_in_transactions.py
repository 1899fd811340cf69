"""Waiting inside an atomic block: a subscriber may wait for the block to end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import transaction

from enode_django import WaitFor, execute_command, send_command_on_commit, try_command
from enode_django.eventing.registry import subscribers
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import WaitInsideTransaction
from enode_django.runtime import use_bus
from enode_django.testing import inline
from tests.races.counting import Add
from tests.unit.commanding.desk import Desk
from tests.unit.test_executing import group

handling = pytest.mark.parametrize("wait_for", [WaitFor.HANDLED, WaitFor.subscriber("ledger")])


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    with subscribers.only(group("ledger")), use_bus(desk.bus):
        yield desk
    desk.close()


@handling
@pytest.mark.django_db(transaction=True)
def test_waiting_until_handled_inside_an_atomic_block_raises_before_anything_is_sent(
    desk: Desk, wait_for: WaitFor
) -> None:
    with transaction.atomic():
        with pytest.raises(WaitInsideTransaction, match="use send_command_on_commit, or wait after the block"):
            execute_command(Add("x"), wait_for=wait_for)
        send_command_on_commit(Add("x", id="sent"))
    assert desk.received().id == "sent"
    assert desk.transport.end_offsets("commands") == {0: 1}


@handling
@pytest.mark.django_db
def test_in_a_transaction_that_the_command_joins_it_may_be_waited_for(wait_for: WaitFor) -> None:
    with inline(MemoryEventStore()), subscribers.only(group("ledger")):
        result = try_command(Add("x"), wait_for=wait_for)
    assert result.error_type == "HandlerNotFound"
