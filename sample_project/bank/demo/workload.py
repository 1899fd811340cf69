"""The commands of the demo. They follow from the run's name and a number, so that none is kept to verify it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from decimal import Decimal
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple

from sample_project.bank.domain import Deposit, OpenAccount, StartTransfer, Withdraw

SENT_AT_ONCE = 250
OVERDRAFT = Decimal(1_000_000)
"""More than any balance."""
OVERDRAFT_PERCENT = 3
WITHDRAW_PERCENT = 27
TWICE_PERCENT = 1
UNKNOWN_PERCENT = 2
"""The percentage of transfers to an account that does not exist."""

Movement = Deposit | Withdraw


class Draw(NamedTuple):
    """The random values of one movement; ``kind`` and ``twice`` are 0 to 99."""

    account: int
    cents: int
    kind: int
    twice: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The commands of one run. ``run`` is the prefix of every id, ``commands`` the number of movements on one account.
    Movement or transfer n belongs to producer n % producers."""

    run: str
    accounts: int
    commands: int
    producers: int
    transfers: int = 0

    @property
    def opening_prefix(self) -> str:
        return f"{self.run}-open-"

    @property
    def movement_prefix(self) -> str:
        return f"{self.run}-move-"

    @property
    def transfer_prefix(self) -> str:
        return f"{self.run}-transfer-"

    @property
    def nobody(self) -> str:
        """An id that no account has."""
        return f"{self.run}-nobody"

    def account(self, number: int) -> str:
        return f"{self.run}-{number:06d}"

    def openings(self) -> Iterator[OpenAccount]:
        for number in range(self.accounts):
            id = f"{self.opening_prefix}{number:06d}"
            yield OpenAccount(self.account(number), id=id, owner=f"Customer {number}")

    def movement(self, number: int) -> Movement:
        draw = self._draw(number)
        id, account = f"{self.movement_prefix}{number:09d}", self.account(draw.account)
        amount = Decimal(draw.cents).scaleb(-2)
        if draw.kind < OVERDRAFT_PERCENT:
            return Withdraw(account, id=id, amount=OVERDRAFT + amount)
        if draw.kind < OVERDRAFT_PERCENT + WITHDRAW_PERCENT:
            return Withdraw(account, id=id, amount=amount)
        return Deposit(account, id=id, amount=amount)

    def transfer(self, number: int) -> StartTransfer:
        """Return a transfer from one account to another; ``accounts`` must be at least 2."""
        draw = self._draw(number, "transfer")
        id = f"{self.transfer_prefix}{number:09d}"
        amount = Decimal(draw.cents).scaleb(-2)
        if draw.kind < OVERDRAFT_PERCENT:
            amount += OVERDRAFT
        target = self.account((draw.account + 1 + number % (self.accounts - 1)) % self.accounts)
        if draw.twice < UNKNOWN_PERCENT:
            target = self.nobody
        return StartTransfer(id, id=f"{id}-start", source=self.account(draw.account), target=target, amount=amount)

    def is_sent_twice(self, number: int) -> bool:
        return self._draw(number).twice < TWICE_PERCENT

    def batches(self, producer: int) -> Iterator[list[Movement | StartTransfer]]:
        """Yield the batches of one producer. A command that is sent twice is repeated in the next batch."""
        transfers = map(self.transfer, range(producer, self.transfers, self.producers))
        again: list[Movement] = []
        numbers = range(producer, self.commands, self.producers)
        for start in range(0, len(numbers), SENT_AT_ONCE):
            chosen = numbers[start : start + SENT_AT_ONCE]
            movements = [self.movement(number) for number in chosen]
            share = self.transfers * len(chosen) // self.commands
            yield [*movements, *again, *islice(transfers, share)]
            again = [movement for number, movement in zip(chosen, movements, strict=True) if self.is_sent_twice(number)]
        if again:
            yield [*again]
        while rest := list(islice(transfers, SENT_AT_ONCE)):
            yield [*rest]

    def _draw(self, number: int, kind_of_command: str = "") -> Draw:
        text = f"{self.run}/{kind_of_command}{number}"
        rest = int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big")
        rest, account = divmod(rest, self.accounts)
        rest, cents = divmod(rest, 10_000)
        rest, kind = divmod(rest, 100)
        return Draw(account, cents + 1, kind, rest % 100)


def signed_amount(movement: Movement) -> Decimal:
    """Return the amount that an accepted movement adds to its account's balance."""
    return movement.amount if isinstance(movement, Deposit) else -movement.amount
