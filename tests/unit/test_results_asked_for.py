"""`result_of` returns the outcome of a command as the store knows it."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest

from enode_django import aresult_of, execute_command, result_of, try_command
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import InvalidId, MalformedMessage
from enode_django.testing import inline
from enode_django.testing.event_store_contract import stream
from sample_project.bank.domain import Deposit, OpenAccount, Withdraw


def test_a_stored_outcome_is_the_result_that_its_sender_got() -> None:
    with inline(MemoryEventStore()):
        opened = execute_command(OpenAccount("a", owner="Ada", id="open"))
        paid = execute_command(Deposit("a", amount=Decimal(1), id="pay"))
        refused = try_command(Withdraw("a", amount=Decimal(5), id="draw"))
        assert [result_of(id, "a") for id in ("open", "pay", "draw")] == [opened, paid, refused]
        assert asyncio.run(aresult_of("pay", "a")) == paid


def test_of_what_is_not_stored_nothing_is_known() -> None:
    with inline(MemoryEventStore()):
        failed = try_command(Deposit("nobody", amount=Decimal(1), id="pay"))
        assert failed.error_type == "AggregateNotFound"
        assert result_of("pay", "nobody") is None
        assert result_of("pay", "another") is None
        with pytest.raises(InvalidId):
            result_of("", "a")


def test_a_row_that_nobody_can_read_says_so() -> None:
    store = MemoryEventStore()
    store.append([stream("a", 1, events=b"\xff")._replace(command_id="c")])
    with inline(store), pytest.raises(MalformedMessage):
        result_of("c", "a")
