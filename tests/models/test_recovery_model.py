"""The write side against histories: what a worker stores and answers is what a function of each history says.

Workers crash and are followed by others, lose their leases and go on without knowing; others store rows in between; the
store is away, with and without having done what it was asked.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, pairwise
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from enode_django.bus.messages import decode_published
from enode_django.bus.results import CommandResult, CommandStatus, decode_result, stored_result
from enode_django.domain.declarations import plain_of
from enode_django.domain.messages import Command
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.base import StreamRecord
from enode_django.repository.loading import events_of
from enode_django.serialization.codec import encode_command
from tests.models.profiles import as_test
from tests.models.stepped_worker import LEASE, SteppedWorker, UnsteadyStore
from tests.races.counting import Add, AddSoftly, AddWithin, ApplyThenRaise, Create, FailUnless, SetTotal
from tests.races.harness import Worker as Rival
from tests.races.whole_worker import COMMANDS, GROUP

ROOTS = ("x", "y", "z")
"""The last one does not exist at first."""
SMALL = st.integers(-2, 3)
SIZES = st.sampled_from([1, 1, 2, 5])
SUCCESS, NOTHING_CHANGED, REFUSED, FAILED = CommandStatus
Make = Callable[[str, str], Command]
"""A command of an id to an aggregate."""


def _making(command_type: type[Command], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Make]:
    return st.fixed_dictionaries(fields).map(
        lambda values: lambda id, root: command_type(id=id, aggregate_root_id=root, **values)
    )


KINDS = st.one_of(
    _making(Add, amount=SMALL),
    _making(AddWithin, amount=SMALL, limit=SMALL),
    _making(AddSoftly, amount=SMALL, limit=SMALL),
    _making(SetTotal, total=SMALL),
    _making(FailUnless, total=SMALL),
    _making(ApplyThenRaise, refuse=st.booleans()),
    _making(Create),
)


UNQUIET, CALM = 8, 5
"""Steps before everything is worked off, and between two losses of the queue."""
SIZED = ("pull", "commit", "publish")
STEPS = st.lists(
    st.tuples(st.sampled_from(["pull", "handle", "handle", "commit", "commit", "deliver", "publish", "keep"]), SIZES),
    min_size=1,
    max_size=6,
)
"""The next steps of a worker, each with a number of items."""


class Decision(NamedTuple):
    """The outcome of a command: its status, the name of its error, and the total after it."""

    status: CommandStatus
    error: str
    total: int | None


def decide(command: Command, total: int | None) -> Decision:
    """``total``: None of an aggregate that does not exist."""
    if isinstance(command, Create):
        return Decision(SUCCESS, "", 0) if total is None else Decision(FAILED, "AggregateAlreadyExists", total)
    if total is None:
        return Decision(FAILED, "AggregateNotFound", None)
    match command:
        case Add():
            return Decision(SUCCESS, "", total + command.amount)
        case AddWithin() | AddSoftly():
            if total + command.amount > command.limit:
                error = "races.TooMuch" if isinstance(command, AddWithin) else "races.NotNow"
                return Decision(REFUSED, error, total)
            return Decision(SUCCESS, "", total + command.amount)
        case SetTotal():
            return Decision(NOTHING_CHANGED if command.total == total else SUCCESS, "", command.total)
        case FailUnless():
            if command.total != total:
                return Decision(FAILED, "LookupError", total)
            return Decision(SUCCESS, "", total + 1)
        case ApplyThenRaise():
            refused = Decision(REFUSED, "races.TooMuch", total)
            return refused if command.refuse else Decision(FAILED, "RuntimeError", total)
    raise AssertionError(f"no model of {command!r}")


class Sent(NamedTuple):
    """``since``: how many streams the aggregate had when it was sent."""

    command: Command
    place: int
    since: int


class RecoveryMachine(RuleBasedStateMachine):
    @initialize(cached=st.sampled_from([0, 1, 10]))
    def begin(self, cached: int) -> None:
        self.now = 1_000.0
        self.cached = cached
        self.store = UnsteadyStore()
        self.transport = MemoryTransport(clock=self._clock)
        for topic in (COMMANDS, "events"):
            self.transport.create_topic(topic, 1)
        self.inbox = self.transport.open_inbox()
        self.sent: dict[tuple[str, str], Sent] = {}
        self.queue: list[tuple[str, str]] = []
        self.totals: dict[str, list[int | None]] = {root: [None] for root in ROOTS}
        self.stored_by: dict[str, list[str]] = {root: [] for root in ROOTS}
        self.answers: dict[tuple[str, str], CommandResult] = {}
        self.published: dict[str, list[int]] = {root: [] for root in ROOTS}
        self._events_seen = self.steps = self.calm = 0
        self._numbers, self._owners = count(), count()
        for root in ROOTS[:-1]:
            self._plant(Create(root, id="made"))
        self.zombie: SteppedWorker | None = None
        self.worker = self._started()
        assert self.worker.acquire()

    def _clock(self) -> float:
        return self.now

    def _started(self) -> SteppedWorker:
        owner = f"worker-{next(self._owners)}"
        return SteppedWorker(self.transport, self.store, owner, clock=self._clock, max_aggregates=self.cached)

    def _plant(self, command: Command) -> None:
        """Change the stored aggregate as another writer would, not through this queue."""
        with self.store.reached():
            Rival(self.store).run(command)

    # -- commands -------------------------------------------------------------------------------------------------

    @rule(
        kinds=st.lists(KINDS, min_size=1, max_size=4),
        root=st.sampled_from([*ROOTS, "x", "x"]),
        then=st.sampled_from(["wait", "handle", "plant", "plant"]),
    )
    def send(self, kinds: list[Make], root: str, then: str) -> None:
        for make in kinds:
            command = make(f"{next(self._numbers)}", root)
            self.sent[command.id, root] = Sent(command, len(self.queue), len(self.stored_by[root]))
            self._send(command)
        if then != "wait":
            self.worker.pull(100)
            while self.worker.commands:
                self.worker.handle()
        if then == "plant":
            self.plant(root, 1)

    def _send(self, command: Command) -> None:
        self.queue.append((command.id, command.aggregate_root_id))
        self.transport.send(COMMANDS, {0: [encode_command(command, b"", self.inbox.address)]})

    @precondition(lambda self: self.sent)
    @rule(place=st.integers(0, 20))
    def send_again(self, place: int) -> None:
        self._send([*self.sent.values()][-1 - place % len(self.sent)].command)

    @rule(root=st.sampled_from(ROOTS), amount=SMALL)
    def plant(self, root: str, amount: int) -> None:
        self._plant(Add(root, id=f"planted-{next(self._numbers)}", amount=amount))

    # -- the worker's steps ---------------------------------------------------------------------------------------

    @rule(steps=STEPS, by_zombie=st.booleans())
    def work(self, steps: list[tuple[str, int]], by_zombie: bool) -> None:
        """A worker takes steps. It may be one that has lost the queue and does not know it."""
        worker = self.zombie if by_zombie and self.zombie is not None else self.worker
        for name, size in steps:
            getattr(worker, name)(*[size] * (name in SIZED))

    @rule(steps=STEPS)
    def work_on(self, steps: list[tuple[str, int]]) -> None:
        self.work(steps, by_zombie=False)

    # -- faults ---------------------------------------------------------------------------------------------------

    @rule(takes_effect=st.booleans(), meanwhile=st.sampled_from(["nothing", "plant", "lease"]))
    def store_fails(self, takes_effect: bool, meanwhile: str) -> None:
        """Make the next call of the store fail, whichever worker calls it."""
        happens: dict[str, Callable[[], object]] = {
            "nothing": lambda: None,
            "plant": lambda: self.plant("x", 1),
            "lease": self._let_lease_end,
        }
        self.store.faults.append((takes_effect, happens[meanwhile]))

    @precondition(lambda self: self.calm >= CALM)
    @rule(how=st.sampled_from(["crash", "silence", "taken again", "taken by another"]))
    def lose_queue(self, how: str) -> None:
        """The worker crashes. Or its lease ends without its knowledge, and its work goes on."""
        self.calm = 0
        if how == "crash":
            self.transport.bury(GROUP, COMMANDS, self.worker.owner)
        else:
            self._let_lease_end()
        if how == "taken again":
            self._take_again()
        elif how != "silence":
            self.zombie = self.worker if how == "taken by another" else self.zombie
            self.worker = self._started()
            assert self.worker.acquire()

    def _let_lease_end(self) -> None:
        self.now += LEASE

    def _take_again(self) -> None:
        for window in self.worker.consumer.open_windows:
            window.close()
        assert self.worker.acquire()

    @precondition(lambda self: self.steps >= UNQUIET)
    @rule()
    def settle(self) -> None:
        """Work off everything, without further faults."""
        self.steps = 0
        self.store.faults.clear()
        if self.zombie is not None:
            self._settle_zombie(self.zombie)
        if not self.worker.consumer.open_windows or self.worker.consumer.open_windows[0].deadline <= self.now:
            self._take_again()
        self.worker.settle()
        self.worker.consumer.commit()
        self._observe()
        assert self.worker.in_flight == 0
        assert dict(self.worker.committer.awaiting) == {}
        assert self.worker.publisher.waiting == 0
        assert self.transport.committed(GROUP, COMMANDS) == {0: len(self.queue)}
        assert self.answers.keys() == self.sent.keys(), "whoever asked got an answer"

    def _settle_zombie(self, zombie: SteppedWorker) -> None:
        zombie.settle()
        zombie.keep()
        assert zombie.in_flight == 0
        assert not zombie.consumer.open_windows
        self.zombie = None

    # -- invariants -----------------------------------------------------------------------------------------------

    @invariant()
    def all_that_is_seen_is_right(self) -> None:
        self.steps += 1
        self.calm += 1
        self._observe()

    def _observe(self) -> None:
        with self.store.reached():
            for root in ROOTS:
                self._check_history(root)
            for body in self.inbox.receive(0):
                self._check_answer(decode_result(body))
            self._check_published()
            self._check_committed()

    def _check_history(self, root: str) -> None:
        """Check that stored streams stay, and that new ones follow from them."""
        stored_by = self.stored_by[root]
        records = list(self.store.load(root))
        assert [record.command_id for record in records[: len(stored_by)]] == stored_by
        for record in records[len(stored_by) :]:
            assert record.version == len(stored_by) + 1
            assert record.command_id not in stored_by
            self._check_stream(root, record)
        ours = [(version, self.sent[id, root]) for version, id in enumerate(stored_by) if (id, root) in self.sent]
        for (version, sooner), (_, later) in pairwise(ours):
            assert sooner.place < later.place or self._left_no_row(later, version), "in the order of the queue"

    def _left_no_row(self, sent: Sent, version: int) -> bool:
        """Return True if the first decision may have left no row. If it was not answered before a crash, the command is
        decided again, after the commands behind it were stored."""
        totals = self.totals[sent.command.aggregate_root_id][sent.since : version + 1]
        first = [decide(sent.command, total) for total in totals]
        return any(status is not SUCCESS and error != "races.TooMuch" for status, error, _ in first)

    def _check_stream(self, root: str, record: StreamRecord) -> None:
        totals = self.totals[root]
        (event,) = events_of(record)
        total = int(plain_of(event).get("total", 0))
        if (record.command_id, root) in self.sent:
            command = self.sent[record.command_id, root].command
            assert decide(command, totals[-1]) == (SUCCESS, "", total)
        totals.append(total)
        self.stored_by[root].append(record.command_id)

    def _check_answer(self, answer: CommandResult) -> None:
        key = (answer.command_id, answer.aggregate_root_id)
        assert self.answers.setdefault(key, answer) == answer, "two answers to one command differ"
        stored = self.store.find([key]).get(key)
        if stored is not None:
            assert stored_result(stored) == answer
        assert (answer.status is SUCCESS) is (stored is not None and stored.version is not None)
        if answer.status is not SUCCESS:
            self._check_refusal(answer)

    def _check_refusal(self, answer: CommandResult) -> None:
        """Check that the refusal was right at some moment since the command was sent."""
        command, _, since = self.sent[answer.command_id, answer.aggregate_root_id]
        totals = self.totals[answer.aggregate_root_id][since:]
        if answer.error_fields:
            totals = [total for total in totals if decide(command, total).total == answer.error_fields["total"]]
        assert any(decide(command, total)[:2] == (answer.status, answer.error_type) for total in totals) or (
            isinstance(command, ApplyThenRaise) and answer.error_type in ("races.TooMuch", "AggregateNotFound")
        )

    def _check_published(self) -> None:
        batches = self.transport.pull("events", {0: self._events_seen}, limit=1_000, wait=0)
        for body in (body for batch in batches for body in batch.bodies):
            self._events_seen += 1
            record = decode_published(body).record
            assert self.store.find([record.command_key])[record.command_key] == record
            seen = self.published[record.aggregate_root_id]
            if record.version is not None and record.version not in seen:
                for version in seen:
                    assert version < record.version or self._came_sooner(record, version), "in order"
                seen.append(record.version)

    def _came_sooner(self, record: StreamRecord, version: int) -> bool:
        """Return True if the command of ``version`` is earlier in the queue. A command that is decided again may follow
        the versions of commands behind it, and events are published in the order of the queue."""
        root = record.aggregate_root_id
        return self.sent[self.stored_by[root][version - 1], root].place < self.sent[record.command_id, root].place

    def _check_committed(self) -> None:
        """The offset has moved past nothing that a crash could lose."""
        kept = {
            (answer.command_id, answer.aggregate_root_id)
            for answer in map(decode_result, self.transport.receipts(GROUP, COMMANDS, 0))
        }
        past = self.queue[: self.transport.committed(GROUP, COMMANDS)[0]]
        stored = self.store.find(set(past))
        assert set(past) <= stored.keys() | kept
        for key in stored:
            version = stored[key].version
            assert version is None or version in self.published[key[1]], "published before the offset moved"


TestRecovery = as_test(RecoveryMachine, runs=80, steps=50)
