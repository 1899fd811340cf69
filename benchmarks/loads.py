"""Commands, encoded in advance so that their encoding is not measured."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal

from benchmarks.command_handlers import SlowDeposit
from enode_django.domain.messages import Command
from enode_django.ids import new_id
from enode_django.serialization.codec import encode_command
from sample_project.bank.domain import Deposit, OpenAccount, StartTransfer

Messages = list[tuple[str, bytes]]

AMOUNT = Decimal("12.50")


def account_ids(count: int) -> list[str]:
    return [new_id() for _ in range(count)]


def opens(accounts: Sequence[str]) -> Messages:
    return [_message(OpenAccount(id, owner=f"owner {n}")) for n, id in enumerate(accounts)]


def large_opens(accounts: Sequence[str], size: int) -> Messages:
    """Return openings, each with a different event of about ``size`` bytes."""
    return [_message(OpenAccount(id, owner=id * (size // len(id)))) for id in accounts]


def deposits(accounts: Sequence[str], count: int, seed: int = 1) -> Messages:
    """Return deposits to random accounts."""
    choose = random.Random(seed).choice
    return [deposit(choose(accounts)) for _ in range(count)]


def deposit(account: str) -> tuple[str, bytes]:
    return _message(Deposit(account, amount=AMOUNT))


def slow_deposits(accounts: Sequence[str], count: int) -> Messages:
    """Return deposits to each account in turn, whose handler waits."""
    return [_message(SlowDeposit(accounts[number % len(accounts)], amount=AMOUNT)) for number in range(count)]


def transfers(accounts: Sequence[str], count: int, seed: int = 1) -> list[StartTransfer]:
    """Return transfers of 0.01 to 25.00, each from a random account to another one."""
    pick = random.Random(seed)
    found = []
    for id in account_ids(count):
        source, target = pick.sample(accounts, 2)
        amount = Decimal(pick.randint(1, 2_500)).scaleb(-2)
        found.append(StartTransfer(id, source=source, target=target, amount=amount))
    return found


def encoded(commands: Sequence[Command]) -> Messages:
    return list(map(_message, commands))


def with_repeats(messages: Messages, share: float, seed: int = 2) -> Messages:
    """Return the messages with a ``share`` of them repeated, each at a random later place."""
    pick = random.Random(seed)
    repeats: dict[int, Messages] = {}
    for place in pick.sample(range(len(messages)), int(len(messages) * share)):
        repeats.setdefault(pick.randrange(place, len(messages)), []).append(messages[place])
    return [one for n, message in enumerate(messages) for one in (message, *repeats.get(n, ()))]


def _message(command: Command) -> tuple[str, bytes]:
    return command.aggregate_root_id, encode_command(command, b"")
