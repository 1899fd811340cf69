"""A run as it should be, made by hand: a small bank, its clients, its queue and its read side, all in memory."""

from __future__ import annotations

import zlib
from collections import defaultdict, deque
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgpack

from chaos.checker.decoding import DECIMAL
from chaos.checker.facts import (
    Acquired,
    Answer,
    Appended,
    Committed,
    Facts,
    Handled,
    LogRecord,
    Published,
    Sample,
    Send,
    StoredRow,
    digest_of,
)
from chaos.checker.replay.follow_ups import derived_id, event_id, refusal_id
from tests.chaos.checker.bank import HANDLERS, Account, Events, Fields, NoSuch, Note, Refused, Transfer

OBSERVER = "observer"
EVENTS, COMMANDS, GROUP = "events", "commands", "processors"
QUEUES = 2
PRODUCER = b"p" * 16
START = 1_700_000_000_000_000


def pack(value: Any) -> bytes:
    def extension(value: Any) -> msgpack.ExtType:
        assert isinstance(value, Decimal)
        return msgpack.ExtType(DECIMAL, str(value).encode())

    packed: bytes = msgpack.packb(value, default=extension)
    return packed


def stream(events: Events, result: Any = None) -> bytes:
    return b"\x01" + pack([[[name, 2 if name.startswith("notes.") else 1, fields] for name, fields in events], result])


def refusal(name: str, message: str, fields: Fields) -> bytes:
    return b"\x02" + pack([name, 1, message, fields])


def make_row(
    shard: int, kind: str, id: str, version: int | None, command_id: str, command_type: str, at: int, payload: bytes
) -> StoredRow:
    digest = digest_of(kind, id, version, command_id, command_type, at, payload, b"")
    return StoredRow(shard, kind, id, version, command_id, command_type, at, payload, digest)


class World:
    """`do` executes a command of a client. `settle` runs the process manager to its end. `facts` returns the result.

    ``jump``: the next stored version is one too high, whatever follows from it.
    """

    def __init__(self) -> None:
        self.state: dict[str, Account | Transfer | Note] = {}
        self.versions: defaultdict[str, int] = defaultdict(int)
        self.rows: list[StoredRow] = []
        self.sends: list[Send] = []
        self.answers: list[Answer] = []
        self.ledger: list[tuple[Any, ...]] = []
        self.waiting: deque[tuple[str, str, str, Fields]] = deque()
        self.handled: list[Handled] = []
        self.commands: list[str] = []
        self.jump = False
        self.now = START

    # -- clients and the process manager --------------------------------------------------------------------------

    def do(self, name: str, id: str, **fields: Any) -> str:
        """Return the command's id."""
        command_id = f"c{len(self.sends)}"
        self.sends.append(Send(command_id, id, name, {key: str(value) for key, value in fields.items()}))
        self.answers.append(self._execute(name, id, command_id, fields))
        return command_id

    def settle(self) -> None:
        while self.waiting:
            self._execute(*self.waiting.popleft())

    def _execute(self, name: str, id: str, command_id: str, fields: Fields) -> Answer:
        self.now += 1_000
        self.commands.append(id)
        known = self.state.get(id)
        try:
            events, result = HANDLERS[name](self, id, known, fields)
        except NoSuch as error:
            return Answer(command_id, id, "FAILED", error_type=str(error), error_message="no")
        except Refused as refused:
            self._refuse(name, id, command_id, refused)
            return Answer(command_id, id, "REFUSED", error_type=str(refused), error_message="no")
        if not events:
            return Answer(command_id, id, "NOTHING_CHANGED", self.versions[id])
        version = self._store(name, id, command_id, events, result)
        return Answer(command_id, id, "SUCCESS", version, None if result is None else str(result))

    def _refuse(self, name: str, id: str, command_id: str, refused: Refused) -> None:
        payload = refusal(str(refused), "no", refused.fields)
        self.rows.append(make_row(0, self._kind(id), id, None, command_id, name, self.now, payload))
        transfer = refused.fields.get("transfer")
        if transfer is not None:
            self._follow(refusal_id(id, command_id), [("bank.CancelTransfer", transfer, {"reason": "no"})])

    def _store(self, name: str, id: str, command_id: str, events: Events, result: Any) -> int:
        version = self.versions[id] + 1 + self.jump
        self.jump = False
        self.versions[id] = version
        self.rows.append(make_row(0, self._kind(id), id, version, command_id, name, self.now, stream(events, result)))
        for index, (event, fields) in enumerate(events):
            cause = event_id(id, version, index)
            self.handled.append(Handled(self.now / 1e6, OBSERVER, id, version, cause))
            if "balance" in fields:
                self._book(id, version, event, fields)
            self._follow(cause, list(self._next(id, event, fields)))
        return version

    def _kind(self, id: str) -> str:
        names = {Account: "bank.BankAccount", Transfer: "bank.MoneyTransfer", Note: "notes.Note"}
        return names[type(self.state[id])] if id in self.state else ""

    def _book(self, id: str, version: int, event: str, fields: Fields) -> None:
        kinds = {
            "bank.Deposited": ("deposit", 1),
            "bank.Withdrawn": ("withdrawal", -1),
            "bank.DepositConfirmed": ("transfer in", 1),
            "bank.WithdrawalConfirmed": ("transfer out", -1),
        }
        kind, sign = kinds[event]
        amount = sign * fields["amount"]
        self.ledger.append((id, version, kind, amount, fields["balance"], fields.get("transfer", ""), self.now))

    def _follow(self, cause: str, commands: list[tuple[str, str, Fields]]) -> None:
        for name, target, fields in commands:
            self.waiting.append((name, target, derived_id(cause, name, target, 1), fields))

    def _next(self, id: str, event: str, fields: Fields) -> Iterator[tuple[str, str, Fields]]:
        match event.removeprefix("bank."):
            case "TransferStarted":
                moved = {"transfer": id, "amount": fields["amount"]}
                yield "bank.ReserveWithdrawal", fields["source"], moved
                yield "bank.ReserveDeposit", fields["target"], moved
            case "WithdrawalReserved":
                yield "bank.NoteReserved", fields["transfer"], {"side": "source"}
            case "DepositReserved":
                yield "bank.NoteReserved", fields["transfer"], {"side": "target"}
            case "TransferConfirmed":
                yield "bank.ConfirmWithdrawal", fields["source"], {"transfer": id}
                yield "bank.ConfirmDeposit", fields["target"], {"transfer": id}
            case "WithdrawalConfirmed":
                yield "bank.NoteMoved", fields["transfer"], {"side": "source"}
            case "DepositConfirmed":
                yield "bank.NoteMoved", fields["transfer"], {"side": "target"}
            case "TransferCancelled":
                yield "bank.CancelReservation", fields["source"], {"transfer": id}
                yield "bank.CancelReservation", fields["target"], {"transfer": id}

    # -- the facts ------------------------------------------------------------------------------------------------

    def facts(self) -> Facts:
        self.settle()
        published = self._published()
        versions = self.versions
        accounts = {id: one for id, one in self.state.items() if isinstance(one, Account)}
        notes = {id: one for id, one in self.state.items() if isinstance(one, Note)}
        summaries = [
            (
                id,
                versions[id],
                one.owner,
                one.balance,
                one.balance - sum(one.outgoing.values()),
                one.opened_at,
                one.closed,
            )
            for id, one in accounts.items()
        ]
        tables: dict[str, list[tuple[Any, ...]]] = {
            "bank_accountsummary": summaries,
            "bank_ledgerentry": self.ledger,
            "notes_note": [(id, versions[id], n.title, n.changed_at) for id, n in notes.items() if not n.deleted],
        }
        checkpoints = {("bank.Ledger", id): versions[id] for id in accounts}
        checkpoints |= {("bank.transfers", id): versions[id] for id in self.state if id not in notes}
        checkpoints |= {("notes.Notes", id): versions[id] for id, note in notes.items() if note.deleted}
        log = self._log(published)
        return Facts(
            sends=self.sends,
            acknowledged=frozenset(send.command_id for send in self.sends),
            answers=self.answers,
            stored=self.rows,
            published=published,
            subscribers=[OBSERVER],
            handled=self.handled,
            log=log,
            samples=_samples(log),
            tables=tables,
            checkpoints=checkpoints,
        )

    def _published(self) -> list[Published]:
        """The last stream is published twice, as after a crash."""
        offsets: defaultdict[int, int] = defaultdict(int)
        published = []
        for row in [*self.rows, *self.rows[-1:]]:
            queue = queue_of(row.aggregate_root_id)
            message = Published(queue, offsets[queue], row.aggregate_root_id, row.version, row.command_id, row.digest)
            published.append(message)
            offsets[queue] += 1
        return published

    def _log(self, published: list[Published]) -> list[LogRecord]:
        """Return a log with one message per send. Each queue of commands changes its owner in the middle."""
        log: list[LogRecord] = []
        for sequence, message in enumerate(published):
            log.append(Appended("log", EVENTS, message.queue, message.offset, 1, PRODUCER, sequence))
        offsets: defaultdict[int, int] = defaultdict(int)
        for epoch, (owner, start) in enumerate([("first", 0), ("second", len(self.commands) // 2)], 1):
            stop = len(self.commands) // 2 if epoch == 1 else len(self.commands)
            for queue in range(QUEUES):
                log.append(Acquired("log", (GROUP, COMMANDS, queue), owner, epoch * 10 + queue))
            for sequence, id in enumerate(self.commands[start:stop], start):
                queue = queue_of(id)
                log.append(Appended("log", COMMANDS, queue, offsets[queue], 1, PRODUCER, sequence))
                offsets[queue] += 1
            for queue in range(QUEUES):
                log.append(Committed("log", (GROUP, COMMANDS, queue), epoch * 10 + queue, offsets[queue]))
        return log


def _samples(log: list[LogRecord]) -> list[Sample]:
    """Return one sample after each commit."""
    owners = {(*r.consumption, r.epoch): r.owner for r in log if isinstance(r, Acquired)}
    commits = [record for record in log if isinstance(record, Committed)]
    return [
        Sample(float(at), r.consumption, r.offset, owners[(*r.consumption, r.epoch)], r.epoch)
        for at, r in enumerate(commits)
    ]


def queue_of(id: str) -> int:
    return zlib.crc32(id.encode()) % QUEUES


def small_world() -> World:
    """Return a world with every kind of command, a completed and a cancelled transfer, refusals and failures."""
    world = World()
    for account in ("ada", "bob"):
        world.do("bank.OpenAccount", account, owner=account.title())
    world.do("bank.Deposit", "ada", amount=Decimal("100.50"))
    world.do("bank.Withdraw", "ada", amount=Decimal(10))
    world.do("bank.Withdraw", "bob", amount=Decimal(10))
    world.do("bank.Deposit", "nobody", amount=Decimal(1))
    world.do("bank.StartTransfer", "t1", source="ada", target="bob", amount=Decimal(40))
    world.settle()
    world.do("bank.StartTransfer", "t2", source="bob", target="nobody", amount=Decimal(5))
    world.settle()
    world.do("bank.OpenAccount", "eve", owner="Eve")
    world.do("bank.CloseAccount", "eve")
    world.do("bank.CloseAccount", "eve")
    world.do("notes.CreateNote", "n1", title=" first ")
    world.do("notes.ChangeTitle", "n1", title="second")
    world.do("notes.CreateNote", "n2", title="other")
    world.do("notes.DeleteNote", "n2")
    return world
