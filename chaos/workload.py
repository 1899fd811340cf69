"""The senders' commands: openings, movements, refusals, repeats, batches, unknown accounts, transfers, notes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Protocol

from enode_django import Command, CommandResult
from enode_django.ids import new_id
from sample_project.bank.domain import CloseAccount, Deposit, OpenAccount, StartTransfer, Withdraw
from sample_project.notes.domain import ChangeTitle, CreateNote, DeleteNote

ACCOUNTS = 12
"""The accounts that all senders of a round share."""
AT_ONCE = 20
HOT = 0.3
"""The share of movements on one account: many unfinished commands of one aggregate are the hardest case."""


class Sends(Protocol):
    stopping: threading.Event

    def execute(self, command: Command, *, handled: bool = False) -> CommandResult | None: ...

    def send(self, commands: Sequence[Command]) -> None: ...


class Sender(threading.Thread):
    """A thread that sends commands until the client stops. The seed and the name determine them. ``error`` is the error
    that ended it, if any.
    """

    def __init__(self, client: Sends, seed: int, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.error: BaseException | None = None
        self._client = client
        self._random = random.Random(f"{seed} {name}")
        self._accounts = [f"account-{seed}-{number}" for number in range(ACCOUNTS)]
        self._steps: dict[Callable[[], None], int] = {
            self._move: 50,
            self._batch: 20,
            self._transfer: 25,
            self._note: 8,
            self._ghost: 4,
            self._open_again: 4,
            self._close: 3,
            self._too_early: 4,
        }

    def run(self) -> None:
        try:
            self._client.send([OpenAccount(id, owner="somebody") for id in self._accounts])
            for step in self._random.sample([*self._steps], len(self._steps)):  # each kind once
                step()
            while not self._client.stopping.is_set():
                self._random.choices([*self._steps], [*self._steps.values()])[0]()
        except BaseException as error:
            self.error = error

    def _execute(self, command: Command, *, handled: bool = False) -> None:
        """Execute a command. One in a hundred is sent twice before, one is executed again afterwards."""
        chance = self._random.random()
        if chance < 0.01:
            self._client.send([command, command])
        self._client.execute(command, handled=handled)
        if chance > 0.99:
            self._client.execute(command)

    def _account(self) -> str:
        return self._accounts[0] if self._random.random() < HOT else self._random.choice(self._accounts)

    def _movement(self) -> Command:
        account, kind = self._account(), self._random.random()
        if kind < 0.55:
            return Deposit(account, amount=Decimal(self._random.randint(1, 100)))
        if kind < 0.95:
            return Withdraw(account, amount=Decimal(self._random.randint(1, 200)))
        return Deposit(account, amount=Decimal(0))

    def _move(self) -> None:
        self._execute(self._movement())

    def _batch(self) -> None:
        """Send a batch of movements and wait for the last one, so that senders do not outrun the processors."""
        *first, last = [self._movement() for _ in range(self._random.randint(2, AT_ONCE))]
        self._client.send(first)
        self._execute(last)

    def _transfer(self) -> None:
        """Start a transfer. One in four is from or to an unknown account, and so is cancelled; for two in four the
        source gets the amount first. Wait until all subscribers have handled its start, so that senders do not outrun
        the subscribers."""
        source, target = self._account(), self._account()
        amount, kind = Decimal(self._random.randint(1, 300)), self._random.randrange(4)
        if kind == 0:
            nobody = f"nobody-{new_id()}"
            source, target = self._random.choice([(nobody, target), (source, nobody)])
        elif kind % 2:
            self._client.execute(Deposit(source, amount=amount))
        transfer = StartTransfer(new_id(), source=source, target=target, amount=amount)
        self._execute(transfer, handled=True)

    def _note(self) -> None:
        """Create and change a note. Three in four are deleted at once: a deleted row must not return."""
        note = new_id()
        self._client.send([CreateNote(note, title="note")])
        self._client.send([ChangeTitle(note, title=f"title {n}") for n in range(self._random.randint(1, 5))])
        if self._random.randrange(4):
            self._execute(DeleteNote(note))

    def _ghost(self) -> None:
        self._execute(Deposit(f"ghost-{new_id()}", amount=Decimal(1)))

    def _open_again(self) -> None:
        self._execute(OpenAccount(self._account(), owner="somebody else"))

    def _close(self) -> None:
        """Open an account and close it twice; the second close changes nothing."""
        account = new_id()
        self._execute(OpenAccount(account, owner="a passer-by"))
        self._execute(CloseAccount(account))
        self._execute(CloseAccount(account))

    def _too_early(self) -> None:
        """Repeat a deposit that failed because its account did not exist, after opening the account."""
        account = new_id()
        deposit = Deposit(account, amount=Decimal(1))
        self._client.execute(deposit)
        self._client.execute(OpenAccount(account, owner="a latecomer"))
        self._client.execute(deposit)
