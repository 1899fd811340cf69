"""Transfers under every order in which commands and events may arrive, and with repeats of all of them.

What queue and workers promise is all that is kept: the commands that were sent to one aggregate are handled in order,
and so are the streams of one aggregate by the process. A repeat may come at any time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from itertools import permutations
from random import Random

from hypothesis import event, given, settings
from hypothesis import strategies as st

from enode_django import Command, DomainEvent, DomainException
from enode_django.domain.refusals import stamp_refusal
from enode_django.eventing.process_managers import with_derived_ids
from enode_django.eventing.subscribers import handlers_of
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.repository.loading import StoredStamp, events_of, replay_records
from enode_django.serialization.codec import StoredRefusal, decode_refusal, read_stored
from enode_django.testing import InlineCommandBus
from sample_project.bank.domain import (
    BankAccount,
    CancelTransfer,
    CloseAccount,
    Deposit,
    Deposited,
    MoneyTransfer,
    OpenAccount,
    StartTransfer,
    TransferStatus,
    Withdraw,
    Withdrawn,
)
from sample_project.bank.process_managers import TransferProcess

ACCOUNTS = ["a", "b", "c"]
NOBODY = "nobody"
PROCESS = TransferProcess()


class Scheduler:
    """One step at a time: a command is handled, or the process follows a stream or a refusal. Some steps are repeats:
    of a command, of a stream that was followed before, or of one whose commands were sent in part only."""

    def __init__(self, random: Random, repeats: int) -> None:
        self.store = MemoryEventStore()
        self._bus = InlineCommandBus(self.store)
        self._random = random
        self._repeats = repeats
        self._queues: defaultdict[str, list[Command]] = defaultdict(list)
        self.sent: list[Command] = []
        self.streams: defaultdict[str, list[StreamRecord]] = defaultdict(list)
        self._checkpoints: defaultdict[str, int] = defaultdict(int)
        self._new_refusals: list[StreamRecord] = []
        self.refusals: dict[str, StreamRecord] = {}

    def run(self, outside: Sequence[Command]) -> None:
        """Take steps until none is left. The commands from outside arrive at any time, but in order."""
        waiting = list(outside)
        while True:
            steps: list[Callable[[], None]] = [*self._deliveries(), *self._followings()]
            if waiting and (not steps or self._random.random() < 0.1):
                self.send([waiting.pop(0)])
                continue
            if not steps:
                return
            if self._repeats and self._random.random() < 0.4:
                self._repeats -= 1
                steps = list(self._repetitions()) or steps
            self._random.choice(steps)()

    def _deliveries(self) -> Iterator[Callable[[], None]]:
        for queue in self._queues.values():
            if queue:
                yield partial(self._handle_next, queue)

    def _followings(self) -> Iterator[Callable[[], None]]:
        for id, streams in self.streams.items():
            if self._checkpoints[id] < len(streams):
                yield partial(self._follow_next, id)
        for refusal in self._new_refusals:
            yield partial(self._follow_refusal, refusal)

    def _repetitions(self) -> Iterator[Callable[[], None]]:
        if self.sent:
            yield partial(self.send, [self._random.choice(self.sent)])
        for id, streams in self.streams.items():
            handled = self._checkpoints[id]
            if handled < len(streams):
                yield partial(self._follow_in_part, streams[handled])
            if handled:
                yield partial(self.follow, streams[self._random.randrange(handled)])
        for refusal in self.refusals.values():
            yield partial(self.follow, refusal)

    def send(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self._queues[command.aggregate_root_id].append(command)
            self.sent.append(command)

    def _handle_next(self, queue: list[Command]) -> None:
        command = queue.pop(0)
        self._bus.execute(command, 0)
        key = (command.id, command.aggregate_root_id)
        record = self.store.find([key]).get(key)
        if record is None:
            return
        if record.version is None:
            self._new_refusals.append(record)
            self.refusals[command.id] = record
        elif record.version > len(self.streams[command.aggregate_root_id]):
            self.streams[command.aggregate_root_id].append(record)

    def _follow_next(self, id: str) -> None:
        self.follow(self.streams[id][self._checkpoints[id]])
        self._checkpoints[id] += 1

    def _follow_refusal(self, refusal: StreamRecord) -> None:
        self.follow(refusal)
        self._new_refusals.remove(refusal)

    def _follow_in_part(self, record: StreamRecord) -> None:
        self.send([command for command in commands_of(record) if self._random.random() < 0.5])

    def follow(self, record: StreamRecord) -> None:
        self.send(commands_of(record))


def commands_of(record: StreamRecord) -> Sequence[Command]:
    """Return the commands with which the process answers a stream or a refusal."""
    commands: list[Command] = []
    for message in messages_of(record):
        for handler in handlers_of(PROCESS, type(message)):
            commands += with_derived_ids(handler(message), cause=message.id, subscriber=PROCESS.name)
    return commands


def messages_of(record: StreamRecord) -> Sequence[DomainEvent | DomainException]:
    stored = read_stored(record.events)
    if not isinstance(stored, StoredRefusal):
        return events_of(record)
    refusal = decode_refusal(stored)
    stamp_refusal(refusal, StoredStamp(record))
    return [refusal]


amounts = st.integers(1, 9).map(Decimal)


@st.composite
def opened_accounts(draw: st.DrawFn) -> list[Command]:
    """Draw commands that open the accounts, some with a deposit. Some accounts may be closed at once."""
    commands: list[Command] = []
    for id in ACCOUNTS:
        commands.append(OpenAccount(id, owner="somebody"))
        if draw(st.booleans()):
            commands.append(Deposit(id, amount=draw(amounts)))
        elif draw(st.integers(0, 4)) == 0:
            commands.append(CloseAccount(id))
    return commands


@st.composite
def transfers(draw: st.DrawFn, count: int) -> list[Command]:
    commands: list[Command] = []
    for number in range(count):
        source, target = draw(st.sampled_from([*permutations(ACCOUNTS, 2), ("a", NOBODY), (NOBODY, "b"), ("c", "c")]))
        start = StartTransfer(f"t{number}", source=source, target=target, amount=draw(amounts))
        commands.append(start)
    return commands


@st.composite
def disturbances(draw: st.DrawFn, transfers: int) -> Command:
    """Draw a command that somebody else sends to an account or a transfer meanwhile."""
    account, amount = draw(st.sampled_from(ACCOUNTS)), draw(amounts)
    kind = draw(st.sampled_from([Deposit, Withdraw, CloseAccount, CloseAccount, CancelTransfer]))
    if kind is Deposit or kind is Withdraw:
        return kind(aggregate_root_id=account, amount=amount)
    if kind is CloseAccount:
        return CloseAccount(account)
    return CancelTransfer(f"t{draw(st.integers(0, transfers - 1))}", reason="changed my mind")


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_money_is_conserved_and_every_transfer_ends_whatever_the_order(data: st.DataObject) -> None:
    scheduler = Scheduler(Random(data.draw(st.integers(0, 2**32))), repeats=data.draw(st.integers(0, 40)))
    scheduler.run(data.draw(opened_accounts()))
    count = data.draw(st.integers(1, 5))
    outside = [*data.draw(transfers(count)), *data.draw(st.lists(disturbances(count), max_size=20))]
    scheduler.run(data.draw(st.permutations(outside)))

    found = [replay_records(scheduler.store.load(id)) for id in scheduler.streams]
    ended = [one for one in found if isinstance(one, MoneyTransfer)]
    for transfer in ended:
        event(transfer.status.value)
        assert transfer.has_ended, f"{transfer.id} is {transfer.status}"
    for account in (one for one in found if isinstance(one, BankAccount)):
        assert (account.outgoing, account.incoming) == ({}, {}), account.id
        booked = paid_in(scheduler.streams[account.id])
        moved = sum((moved_by(one, account.id) for one in ended), Decimal(0))
        assert account.balance == booked + moved >= 0, account.id
        assert not (account.closed and account.balance), account.id


def paid_in(streams: Sequence[StreamRecord]) -> Decimal:
    booked = [each for record in streams for each in events_of(record) if isinstance(each, Deposited | Withdrawn)]
    return sum((each.amount if isinstance(each, Deposited) else -each.amount for each in booked), Decimal(0))


def moved_by(transfer: MoneyTransfer, account: str) -> Decimal:
    if transfer.status is not TransferStatus.COMPLETED:
        return Decimal(0)
    return transfer.amount * ((account == transfer.target) - (account == transfer.source))


def test_a_refusal_that_comes_again_after_a_deposit_revives_nothing() -> None:
    """The reservation is repeated when there is enough money, and then the refusal is followed once more."""
    scheduler = Scheduler(Random(1), repeats=0)
    scheduler.run([OpenAccount(id, owner="somebody") for id in "ab"])
    scheduler.run([StartTransfer("t", source="a", target="b", amount=Decimal(5))])
    scheduler.run([Deposit("a", amount=Decimal(9))])
    refusal = next(iter(scheduler.refusals.values()))
    reserve = next(command for command in scheduler.sent if command.id == refusal.command_id)
    scheduler.send([reserve, *commands_of(refusal)])
    scheduler.run([])
    transfer, source, target = (replay_records(scheduler.store.load(id)) for id in ("t", "a", "b"))
    assert isinstance(transfer, MoneyTransfer)
    assert isinstance(source, BankAccount)
    assert isinstance(target, BankAccount)
    assert transfer.status is TransferStatus.CANCELLED
    assert (source.balance, source.reserved, target.balance) == (Decimal(9), Decimal(0), Decimal(0))
    assert not target.incoming
