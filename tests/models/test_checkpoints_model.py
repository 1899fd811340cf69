"""The broker's state beside the messages, against a model: after a crash it is the state at one earlier moment.

The model is a list: the end of the log after each call, and the visible state of the broker then. After a crash, the
visible state is the entry of the last record that is left, and every flushed record is left.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from enode_django.equeue.broker.batches import NewBatch
from enode_django.equeue.broker.checkpoint import PendingCheckpoint
from enode_django.equeue.broker.state import BrokerState
from enode_django.equeue.broker.store import MessageStore
from enode_django.equeue.messages import Commit, Receipt
from enode_django.equeue.records import encode_records
from enode_django.exceptions import QueueBacklog, QueueError, QueueFull, QueueHeld
from tests.memory import MEMORY
from tests.models.profiles import as_test
from tests.models.torn_disks import TEARS, spoil

GROUPS, TOPICS, MEMBERS = (st.sampled_from(names) for names in (["g", "g", "h"], ["t", "t", "u"], ["one", "two"]))
QUEUES = st.integers(0, 2)
SECONDS = st.sampled_from([20.0, 60.0])
PATIENCE = 10.0
PRODUCERS = st.sampled_from([b"p" * 16, b"q" * 16])

Key = tuple[str, str, int]
"""Group, topic, queue."""


class Owned(NamedTuple):
    """``run``: of the broker, when it was granted."""

    owner: str
    epoch: int
    run: int


class Moment(NamedTuple):
    """The visible state when the log ended at ``position``, and the highest epoch written by then."""

    position: int
    seen: list[Any]
    written: int


class CheckpointMachine(RuleBasedStateMachine):
    @initialize(chunk_size=st.sampled_from([2_000, 100_000]))
    def begin(self, chunk_size: int) -> None:
        self.now = 1_000.0
        self.home = TemporaryDirectory(dir=MEMORY)
        self.directory = Path(self.home.name)
        self.chunk_size = chunk_size
        self.flushed = self.highest = self.written = self.run = 0
        self.has_been_full = False
        self.moments: list[Moment] = []
        self.owned: dict[Key, Owned] = {}
        self.answers: dict[tuple[str, bytes, int], Mapping[int, int]] = {}
        self.pending: PendingCheckpoint | None = None
        self._open()
        self.run = self.state.run
        self._note()
        self.create_topic("t", 2)
        self.flush()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.abandon()
            self.home.cleanup()

    def _open(self) -> None:
        self.store = MessageStore(
            self.directory, chunk_size=self.chunk_size, preload=0, clock=lambda: self.now, monotonic=lambda: self.now
        )
        self.state = BrokerState(self.store, patience=PATIENCE, clock=lambda: self.now)
        self.state.open()
        self.flushed, self.pending = self.store.position, None

    # -- the visible state ----------------------------------------------------------------------------------------

    def _seen(self) -> list[Any]:
        """Return everything that must survive. The times until which members and owners count are not part of it: a
        restart sets them anew."""
        return [self._seen_of(topic) for topic in sorted(self.state.coordinator.topics)] + [self._known_sends()]

    def _seen_of(self, topic: str) -> Any:
        known, coordinator = self.state.coordinator.topic(topic), self.state.coordinator
        groups = {}
        for group, shown in self.state.shown_groups(topic).items():
            held = known.groups[group].claims
            claims = {queue: (claim.owner, claim.until > 0) for queue, claim in held.items()}
            receipts = [coordinator.receipts(group, topic, queue) for queue in range(known.queues)]
            deaths = {queue: claim.deaths for queue, claim in held.items() if claim.deaths}
            division = (shown.generation, sorted(shown.members), shown.division)
            committed = coordinator.committed(group, topic)
            groups[group] = [claims, committed, receipts, deaths, division, shown.counts]
        return topic, known.queues, known.route, known.given(""), dict(self.state.bounds(topic)), groups

    def _known_sends(self) -> Any:
        return {key: self.state.sends.answer(*key) for key in self.answers if self.state.sends.answer(*key) is not None}

    def _note(self) -> None:
        """Record the end of the log and the visible state. Every change calls this."""
        self.moments.append(Moment(self.store.position, deepcopy(self._seen()), self.written))

    # -- topics and messages --------------------------------------------------------------------------------------

    @rule(topic=TOPICS, queues=st.integers(1, 2))
    def create_topic(self, topic: str, queues: int) -> None:
        self.state.create_topic(topic, queues)
        self._note()

    def _topic(self, topic: str) -> str:
        return topic if topic in self.state.coordinator.topics else "t"

    def _queue(self, topic: str, queue: int) -> int:
        return queue % self.state.coordinator.topic(topic).queues

    @rule(topic=TOPICS, unordered=st.booleans())
    def add_queue(self, topic: str, unordered: bool) -> None:
        topic = self._topic(topic)
        queues = min(self.state.coordinator.topic(topic).queues + 1, 4)
        with suppress(QueueBacklog):
            self.state.add_queues(topic, queues, unordered)
        self._note()

    @rule(topic=TOPICS, queue=QUEUES, to_producers=st.none() | st.booleans(), to_consumers=st.none() | st.booleans())
    def show(self, topic: str, queue: int, to_producers: bool | None, to_consumers: bool | None) -> None:
        topic = self._topic(topic)
        with suppress(QueueError):  # it is the last one that producers see
            self.state.show(topic, self._queue(topic, queue), to_producers, to_consumers, unordered=True)
        self._note()

    @rule(topic=TOPICS, queue=QUEUES, producer=PRODUCERS, messages=st.integers(1, 3))
    def send(self, topic: str, queue: int, producer: bytes, messages: int) -> None:
        topic = self._topic(topic)
        queue, sequence = self._queue(topic, queue), len(self.moments)
        self.state.ensure_written()
        batch = NewBatch(queue, messages, encode_records([b"body"] * messages))
        firsts = self.store.append(topic, [batch], producer=producer, sequence=sequence)
        self.state.sends.add(topic, producer, sequence, firsts, self.now)
        self.answers[topic, producer, sequence] = firsts
        self._note()

    @rule(seconds=st.sampled_from([1.0, PATIENCE, 30.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # -- groups ---------------------------------------------------------------------------------------------------

    @rule(group=GROUPS, topic=TOPICS, member=MEMBERS, session=SECONDS)
    def join(self, group: str, topic: str, member: str, session: float) -> None:
        self.state.join(group, self._topic(topic), member, session)
        self._note()

    @rule(group=GROUPS, topic=TOPICS, member=MEMBERS)
    def leave(self, group: str, topic: str, member: str) -> None:
        self.state.leave(group, self._topic(topic), member)
        self._note()

    @rule(group=GROUPS, topic=TOPICS, member=MEMBERS, deaths=st.lists(st.tuples(QUEUES, st.integers(0, 5)), max_size=2))
    def mark_dead(self, group: str, topic: str, member: str, deaths: list[tuple[int, int]]) -> None:
        topic = self._topic(topic)
        self.state.bury(group, topic, member, [(self._queue(topic, queue), offset) for queue, offset in deaths])
        dead = {key for key, owned in self.owned.items() if key[:2] == (group, topic) and owned.owner == member}
        self.owned = {key: owned for key, owned in self.owned.items() if key not in dead}
        self._note()

    @rule(group=GROUPS, topic=TOPICS, queue=QUEUES, member=MEMBERS, lease=SECONDS)
    def acquire(self, group: str, topic: str, queue: int, member: str, lease: float) -> None:
        topic = self._topic(topic)
        queue = self._queue(topic, queue)
        with suppress(QueueHeld):
            epoch = self.state.acquire(group, topic, queue, member, lease, 0).epoch
            assert epoch > self.highest, "no epoch is given twice, whatever a crash has torn away"
            self.highest = self.written = epoch
            self.owned[group, topic, queue] = Owned(member, epoch, self.run)
        self._note()

    @rule(group=GROUPS, queue=QUEUES, member=MEMBERS, receipt=st.booleans(), release=st.booleans())
    def consume(self, group: str, queue: int, member: str, receipt: bool, release: bool) -> None:
        """Send, acquire and commit, as a member does all the time. Maybe release."""
        queue = self._queue("t", queue)
        self.send("t", queue, b"p" * 16, 2)
        self.acquire(group, "t", queue, member, 60.0)
        place = [*self.owned].index((group, "t", queue)) if (group, "t", queue) in self.owned else 0
        if self.owned:
            self.commit(place, 1, receipt)
        if self.owned and release:
            self.renew_or_release(place, release=True)

    def _owned(self, place: int) -> tuple[Key, Owned]:
        return [*self.owned.items()][place % len(self.owned)]

    @precondition(lambda self: self.owned)
    @rule(place=st.integers(0, 9), on=st.integers(0, 3), receipt=st.booleans())
    def commit(self, place: int, on: int, receipt: bool) -> None:
        (group, topic, queue), (_, epoch, run) = self._owned(place)
        offset = self.state.coordinator.committed(group, topic)[queue] + on
        offset = min(offset, self.state.bounds(topic)[queue][1])
        receipts = [Receipt(offset - 1, b"%d" % offset)] if receipt and offset else []
        refused = self.state.commit(group, topic, {queue: Commit(epoch, offset, receipts, 2)})
        assert run == self.run or refused == {queue}, "no lease outlives a restart"
        self._note()

    @precondition(lambda self: self.owned)
    @rule(place=st.integers(0, 9), release=st.booleans())
    def renew_or_release(self, place: int, release: bool) -> None:
        (group, topic, queue), (owner, epoch, _) = self._owned(place)
        if release:
            self.state.release(group, topic, owner, {queue: epoch})
        else:
            self.state.renew(group, topic, owner, {queue: epoch}, 60.0)
        self._note()

    @rule(group=GROUPS, topic=TOPICS, queue=QUEUES, offset=st.integers(0, 5))
    def set_offset(self, group: str, topic: str, queue: int, offset: int) -> None:
        topic = self._topic(topic)
        self.state.set_offset(group, topic, self._queue(topic, queue), offset)
        self._note()

    @rule(group=GROUPS, topic=TOPICS, delete=st.booleans())
    def end_group(self, group: str, topic: str, delete: bool) -> None:
        end = self.state.delete_group if delete else self.state.retire_group
        end(group, self._topic(topic))
        self._note()

    # -- the disk -------------------------------------------------------------------------------------------------

    @rule()
    def flush(self) -> None:
        self.flushed = self.store.flush()

    @precondition(lambda self: self.pending is None)
    @rule()
    def checkpoint(self) -> None:
        self.state.checkpoint()
        self.flushed = self.store.position

    @precondition(lambda self: self.pending is None)
    @rule()
    def begin_checkpoint(self) -> None:
        self.pending = self.state.begin_checkpoint()

    @precondition(lambda self: self.pending is not None)
    @rule(indexes=st.integers(0, 2))
    def write_part_of_checkpoint(self, indexes: int) -> None:
        self.flush()
        for write in self.pending.writes[:indexes]:
            write.write()

    @precondition(lambda self: self.pending is not None)
    @rule(told=st.booleans())
    def write_checkpoint(self, told: bool) -> None:
        """Write the checkpoint. With ``told`` False, report that the write failed."""
        self.pending.write()
        self.flushed, self.pending = self.store.position, None
        self.state.finish_checkpoint(written=told)

    @precondition(lambda self: self.pending is None)
    @rule(group=GROUPS, crash=st.booleans())
    def run_out_of_room(self, group: str, crash: bool) -> None:
        """A change that cannot be written down is refused, and known all the same; it is written before any other."""
        self.has_been_full = True
        with _no_room(), suppress(QueueFull):
            self.state.set_offset(group, "t", 0, 0)
            raise AssertionError("there was room")
        if crash:
            self.crash(("nothing", b""), 0, "")
            return
        self.state.ensure_written()
        self.flushed = self.store.position
        self._note()

    @rule(tear=TEARS, place=st.integers(0, 1_000), lost=st.sampled_from(["", "", "", "checkpoint"]))
    def crash(self, tear: tuple[str, bytes], place: int, lost: str) -> None:
        """A checkpoint that is lost is made again from the log, but for what never could be written there."""
        self.store.abandon()
        safe = self.flushed
        spoil(self.directory, safe + place * (self.store.position - safe) // 1_000, tear)
        is_lost = lost == "checkpoint" and not self.has_been_full
        if is_lost:
            (self.directory / "checkpoint").unlink()
        self._open()
        assert self.store.position >= safe, "what was flushed stays"
        assert is_lost or self.state.run == self.run + 1
        self.run = self.state.run
        self._check_survived(is_lost)
        self.owned = {key: owned for key, owned in self.owned.items() if self._is_there(*key)}

    @rule(is_flushed=st.booleans())
    def end_suddenly(self, is_flushed: bool) -> None:
        """The process ends, the machine does not."""
        if is_flushed:
            self.flush()
        self.crash(("nothing", b""), 0, "")

    def _check_survived(self, is_lost: bool) -> None:
        left = [moment for moment in self.moments if moment.position <= self.store.position]
        if self.store.position == left[-1].position:  # not between the records of one call
            assert _promised(self._seen(), is_lost) == _promised(left[-1].seen, is_lost)
        self.moments = left
        self.written = left[-1].written
        if is_lost:  # nobody was told of a grant before it was flushed
            self.highest = self.written
        self._note()

    def _is_there(self, group: str, topic: str, queue: int) -> bool:
        known = self.state.coordinator.topics.get(topic)
        return known is not None and queue < known.queues

    # -- invariants -----------------------------------------------------------------------------------------------

    @invariant()
    def sends_that_are_known_have_their_answer(self) -> None:
        for key, firsts in self._known_sends().items():
            assert firsts == self.answers[key]


def _promised(seen: list[Any], is_lost: bool) -> list[Any]:
    """Leave out what a lost checkpoint loses: without it the restarts are unknown, and so are the owners whose leases
    they ended."""
    if not is_lost:
        return seen
    *topics, sends = seen
    return [
        *([*topic, {group: values[1:] for group, values in groups.items()}] for *topic, groups in topics),
        sends,
    ]


@contextmanager
def _no_room() -> Iterator[None]:
    """Writes to all files of this process fail meanwhile."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


TestCheckpoints = as_test(CheckpointMachine, runs=80)
