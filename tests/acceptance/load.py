"""Senders that go on whatever happens: opens, deposits, withdrawals, refusals, repeats, accounts that do not exist."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal

from enode_django import Command, CommandResult, send_commands, try_command
from enode_django.exceptions import CommandTimeout, TransportUnavailable
from enode_django.ids import new_id
from sample_project.bank.domain import CloseAccount, Deposit, OpenAccount, StartTransfer, Withdraw
from sample_project.notes.domain import ChangeTitle, CreateNote, DeleteNote
from tests.acceptance.journal import Journal
from tests.acceptance.waiting import PATIENCE, wait_until

ANSWER_SECONDS = 3.0
GIVE_UP_SECONDS = PATIENCE
RETRY_SECONDS = 0.05
ACCOUNTS_EACH = 3
MOVEMENTS_AT_ONCE = 8
PAUSE, HARD = 0.1, 0.01
"""Seconds between the steps of a sender. Under a hard load whatever starts waits for the processor, not for the fault
under test."""
ENOUGH, LONGER = 100, 3
"""After ``ENOUGH`` steps the senders of a load rest ``LONGER`` times as long: a fault needs some load around it, but
not more of it on a slower machine."""


class Client:
    """Sends through the bus of this process, again and again until the queue has taken it or the answer is there."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._given_up = threading.Event()

    def give_up(self) -> None:
        """End the waits for answers. A test that has failed calls this."""
        self._given_up.set()

    def _tries(self) -> Iterator[None]:
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < deadline and not self._given_up.is_set():
            yield

    def execute(self, command: Command) -> CommandResult | None:
        """The answer; None (and noted) if there was none in two minutes."""
        for _ in self._tries():
            try:
                answer = try_command(command, timeout=ANSWER_SECONDS)
            except CommandTimeout:
                continue
            except TransportUnavailable:
                time.sleep(RETRY_SECONDS)
                continue
            self.journal.note_answer(command, answer)
            return answer
        self.journal.note_unanswered(command)
        return None

    def send(self, commands: Sequence[Command]) -> None:
        for _ in self._tries():
            try:
                send_commands(commands)
            except TransportUnavailable:
                time.sleep(RETRY_SECONDS)
                continue
            self.journal.note_sent(commands)
            return
        raise AssertionError(f"{len(commands)} commands could not be sent")


def any_id(prefix: str = "") -> str:
    return prefix + new_id()


class Load:
    """Threads that work the same accounts; ``with`` starts and stops them. The seed decides what they send, to
    aggregates whose ids ``make_id`` has made. With ``varied`` there are transfers and notes, too. Each sender rests for
    ``pause`` seconds after each step."""

    def __init__(
        self,
        journal: Journal,
        seed: int,
        threads: int = 4,
        *,
        varied: bool = False,
        pause: float = PAUSE,
        make_id: Callable[[str], str] = any_id,
    ) -> None:
        self.client = Client(journal)
        self.seed = seed
        self.varied = varied
        self._pause = pause
        self._make_id = make_id
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._accounts: list[str] = []
        self._transfer_numbers, self._note_numbers = itertools.count(), itertools.count()
        self.transfers = self.notes = 0
        self._errors: list[BaseException] = []
        self._rounds = [0] * threads
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"load-{number}", daemon=True)
            for number in range(threads)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        if exception[0] is not None:
            self.client.give_up()
        for thread in self._threads:
            thread.join(GIVE_UP_SECONDS + ANSWER_SECONDS)
        if exception[0] is None and self._errors:
            raise self._errors[0]

    @property
    def rounds(self) -> int:
        return sum(self._rounds)

    def wait_for_rounds(self, more: int) -> None:
        """Block until the senders have made this number of further rounds."""
        goal = self.rounds + more
        wait_until(lambda: self.rounds >= goal, f"{more} more rounds of the senders")

    @property
    def under_way(self) -> bool:
        """True if every sender has finished its opening and sent some more commands."""
        return all(rounds > ACCOUNTS_EACH + 3 for rounds in self._rounds)

    def _run(self, number: int) -> None:
        random_ = random.Random(self.seed * 1000 + number)
        try:
            for _ in range(ACCOUNTS_EACH):
                self._open(random_)
                self._rounds[number] += 1
            for step in self._plan(random_):
                if self._stop.wait(self._pause * (LONGER if self.rounds > ENOUGH else 1)):
                    return
                step(random_)
                self._rounds[number] += 1
        except BaseException as error:
            self._errors.append(error)

    def _plan(self, random_: random.Random) -> Iterator[Callable[[random.Random], None]]:
        """Yield one step of each kind first, so that a short load tries them all, too."""
        steps = self._steps()
        yield from random_.sample(list(steps), len(steps))
        while True:
            yield from random_.choices(list(steps), list(steps.values()))

    def _steps(self) -> dict[Callable[[random.Random], None], int]:
        """Return the steps of a sender with their weights."""
        varied = {self._transfer: 25, self._note: 10} if self.varied else {}
        return {
            self._one: 60,
            self._batch: 20,
            self._ghost: 4,
            self._too_much: 4,
            self._open_again: 4,
            self._open: 3,
            self._close: 3,
            self._too_early: 4,
            **varied,
        }

    def _some_account(self, random_: random.Random) -> str:
        """Return the same account in about a third of all calls: faults are hardest in one long sequence of
        commands."""
        with self._lock:
            return self._accounts[0] if random_.random() < 0.3 else random_.choice(self._accounts)

    def _movement(self, random_: random.Random) -> Command:
        """Always stored: as a movement, or as a refusal."""
        account = self._some_account(random_)
        kind = random_.random()
        if kind < 0.55:
            return Deposit(account, amount=Decimal(random_.randint(1, 100)))
        if kind < 0.95:
            return Withdraw(account, amount=Decimal(random_.randint(1, 200)))
        return Deposit(account, amount=Decimal(0))

    def _one(self, random_: random.Random) -> None:
        self._execute(random_, self._movement(random_))

    def _execute(self, random_: random.Random, command: Command) -> None:
        chance = random_.random()
        if chance < 0.01:
            self.client.send([command, command])
        self.client.execute(command)
        if chance > 0.99:
            self.client.execute(command)

    def _batch(self, random_: random.Random) -> None:
        self.client.send([self._movement(random_) for _ in range(random_.randint(1, MOVEMENTS_AT_ONCE))])

    def _ghost(self, random_: random.Random) -> None:
        self._execute(random_, Deposit(self._make_id("ghost-"), amount=Decimal(1)))

    def _too_much(self, random_: random.Random) -> None:
        self._execute(random_, Withdraw(self._some_account(random_), amount=Decimal(1_000_000)))

    def _open(self, random_: random.Random) -> None:
        account = self._make_id("")
        self._execute(random_, OpenAccount(account, owner="somebody"))
        with self._lock:
            self._accounts.append(account)

    def _open_again(self, random_: random.Random) -> None:
        self._execute(random_, OpenAccount(self._some_account(random_), owner="somebody else"))

    def _close(self, random_: random.Random) -> None:
        """The second close changes nothing."""
        account = self._make_id("")
        self._execute(random_, OpenAccount(account, owner="a passer-by"))
        self._execute(random_, CloseAccount(account))
        self._execute(random_, CloseAccount(account))

    def _transfer(self, random_: random.Random) -> None:
        """Start a transfer. One in four has an unknown source or target, and is cancelled. Another one is from an
        account that nobody else knows and that has the amount, and is completed. For a third the source gets the amount
        first. The amount may exceed the balance, and source and target may be the same."""
        source, target = self._some_account(random_), self._some_account(random_)
        amount = Decimal(random_.randint(1, 300))
        number = next(self._transfer_numbers)
        if number % 4 == 0:
            nobody = self._make_id("nobody-")
            source, target = random_.choice([(nobody, target), (source, nobody)])
        elif number % 4 == 1:
            source = self._make_id("")
            self.client.execute(OpenAccount(source, owner="somebody with a purse of their own"))
            self.client.execute(Deposit(source, amount=amount))
        elif number % 4 == 2:
            self.client.execute(Deposit(source, amount=amount))
        self._execute(random_, StartTransfer(self._make_id(""), source=source, target=target, amount=amount))
        self.transfers = number + 1

    def _note(self, random_: random.Random) -> None:
        """Four of five are deleted at once: a row that is gone must not come back."""
        note, number = self._make_id(""), next(self._note_numbers)
        changes = [f"title {number}" for number in range(random_.randint(0, 5))]
        self.client.send([CreateNote(note, title="note")])
        self.client.send([ChangeTitle(note, title=title) for title in changes])
        if number % 5:
            self.client.send([DeleteNote(note)])
        self.notes = number + 1

    def _too_early(self, random_: random.Random) -> None:
        """Send a deposit before its account exists. When the account is opened, neither the failed deposit nor a copy
        of it may take effect."""
        account = self._make_id("")
        deposit = Deposit(account, amount=Decimal(1))
        self.client.execute(deposit)
        self.client.execute(OpenAccount(account, owner="a latecomer"))
        self.client.execute(deposit)
