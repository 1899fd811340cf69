"""Reading an aggregate back returns the class that was asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import assert_type

from enode_django import (
    AggregateRoot,
    Command,
    CommandResult,
    DomainEvent,
    Projection,
    WaitFor,
    result_of,
    send_commands,
)


class Account(AggregateRoot):
    owner: str = ""


class Open(Command):
    owner: str


class Accounts(Projection):
    name = "accounts"


async def read() -> None:
    assert_type(await Account.aload("ada"), Account)


assert_type(Account.load("ada"), Account)
assert_type(Account.load("ada", version=3).owner, str)
assert_type(Account.load("ada", at=datetime.now(UTC)), Account)
assert_type(Account.history("ada", after_version=2), Iterator[DomainEvent])
assert_type(Account.ahistory("ada"), AsyncIterator[DomainEvent])
assert_type(result_of("c1", "ada"), CommandResult | None)
send_commands([Open("ada", owner="Ada"), (Open("bob", owner="Bob"), 0)])
WaitFor.subscriber(Accounts)
WaitFor.subscriber("accounts")

Account.load(7)  # error
Account.load("ada", version="3")  # error
Account.load("ada", 3)  # error
WaitFor.subscriber(Account)  # error
send_commands([(Open("bob", owner="Bob"), "0")])  # error
