"""Consumers of one group come, fall silent, leave and die, and queues are added and hidden: no message is lost, no
queue has two owners, and once all is quiet every queue has one and each consumer its share."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.offsets import OffsetWindow
from enode_django.equeue.transports.memory import MemoryTransport
from tests.models.profiles import as_test

GROUP, TOPIC, LEASE = "g", "orders", 10.0
PLACES = st.integers(0, 11)
MOST_MEMBERS, MOST_QUEUES = 4, 7
UNQUIET = 12
"""Steps before things calm down."""
BEAT, BEATS = 3.0, 10
"""Seconds between two beats of a consumer that is well, and how many of them outlast a session and a lease."""


class Member:
    """A consumer and the messages that it has pulled. ``name`` is its own for ever."""

    def __init__(self, name: str, consumer: QueueConsumer) -> None:
        self.name = name
        self.consumer = consumer
        self.pulled: list[tuple[OffsetWindow, int]] = []
        self.has_left = False

    def beat(self) -> None:
        self.consumer.join()
        self.consumer.renew()
        self.consumer.acquire_missing()
        self.consumer.commit()
        self.consumer.release_drained()

    def pull(self, limit: int) -> None:
        for window, offsets, bodies in self.consumer.pull(limit, 0):
            assert bodies == [b"%d" % offset for offset in offsets]
            self.pulled += ((window, offset) for offset in offsets)


class ConsumersMachine(RuleBasedStateMachine):
    @initialize(queues=st.integers(1, 4))
    def begin(self, queues: int) -> None:
        self.now = 1_000.0
        self.transport = MemoryTransport(clock=lambda: self.now)
        self.transport.create_topic(TOPIC, queues)
        self.members: list[Member] = []
        self.dead: list[str] = []
        self.handled: set[tuple[int, int]] = set()
        self.hidden: set[int] = set()
        self.granted: dict[int, tuple[int, str]] = {}
        self.steps = 0
        self._names = count()

    @property
    def _queues(self) -> int:
        return self.transport.queue_count(TOPIC)

    def _member(self, place: int) -> Member:
        return self.members[place % len(self.members)]

    # -- what happens ---------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, BEAT, LEASE]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(queue=PLACES, messages=st.integers(1, 3))
    def send(self, queue: int, messages: int) -> None:
        queue %= self._queues
        first = self.transport.end_offsets(TOPIC)[queue]
        self.transport.send(TOPIC, {queue: [b"%d" % offset for offset in range(first, first + messages)]})

    @precondition(lambda self: self._queues < MOST_QUEUES)
    @rule()
    def add_queue(self) -> None:
        self.transport.add_queues(TOPIC, self._queues + 1, unordered=True)

    @rule(queue=PLACES, visible=st.booleans())
    def show(self, queue: int, visible: bool) -> None:
        queue %= self._queues
        self.transport.show(TOPIC, queue, to_consumers=visible)
        self.hidden = self.hidden - {queue} if visible else self.hidden | {queue}

    @precondition(lambda self: len(self.members) < MOST_MEMBERS)
    @rule()
    def start(self) -> None:
        name = f"member-{next(self._names)}"
        consumer = QueueConsumer(
            self.transport, group=GROUP, topic=TOPIC, owner=name, lease=LEASE, clock=lambda: self.now
        )
        self.members.append(Member(name, consumer))
        self.members[-1].beat()

    @precondition(lambda self: self.members)
    @rule(place=PLACES)
    def beat(self, place: int) -> None:
        self._member(place).beat()

    @rule()
    def beat_all(self) -> None:
        for member in self.members:
            member.beat()

    @precondition(lambda self: self.members)
    @rule(place=PLACES, limit=st.integers(1, 4), finish=st.integers(0, 3), oldest=st.booleans())
    def work(self, place: int, limit: int, finish: int, oldest: bool) -> None:
        """Send messages first, so that the member has work."""
        member = self._member(place)
        for queue in member.consumer.owned:
            self.send(queue, 2)
        member.pull(limit)
        self._finish(member, finish, oldest=oldest)
        member.consumer.commit()

    def _finish(self, member: Member, count: int, *, oldest: bool = False) -> None:
        """A member may also handle messages that it pulled under a lost lease: it does not notice the loss at once."""
        for _ in range(min(count, len(member.pulled))):
            window, offset = member.pulled.pop(0 if oldest else -1)
            window.finish(offset)
            self.handled.add((window.queue, offset))

    @precondition(lambda self: self.members)
    @rule(place=PLACES)
    def leave(self, place: int) -> None:
        member = self._member(place)
        member.has_left = True
        member.consumer.leave()

    @precondition(lambda self: self.members)
    @rule(place=PLACES, finish=st.booleans())
    def stop(self, place: int, finish: bool) -> None:
        """The member leaves without waiting. It leaves unfinished messages to others."""
        member = self._member(place)
        member.consumer.leave()
        self._finish(member, len(member.pulled) if finish else 0)
        member.consumer.abandon()
        self.members.remove(member)

    @precondition(lambda self: self.members)
    @rule(place=PLACES)
    def die(self, place: int) -> None:
        member = self._member(place)
        self.members.remove(member)
        self.dead.append(member.name)

    @precondition(lambda self: self.dead)
    @rule(place=PLACES)
    def mark_dead(self, place: int) -> None:
        """Report a dead member, as somebody who saw it die."""
        self.transport.bury(GROUP, TOPIC, self.dead.pop(place % len(self.dead)))

    @precondition(lambda self: self.steps >= UNQUIET)
    @rule()
    def be_quiet(self) -> None:
        """All members do their usual work for a while, and nothing else happens."""
        self.steps = 0
        for _ in range(BEATS):
            self.now += BEAT
            for member in self.members:
                member.beat()
                member.pull(100)
                self._finish(member, len(member.pulled))
        staying = [member.consumer for member in self.members if not member.has_left]
        assert all(member.consumer.is_idle for member in self.members if member.has_left)
        if not staying:
            return
        consumed = set(range(self._queues)) - self.hidden
        assert sorted(queue for consumer in staying for queue in consumer.owned) == sorted(consumed)
        sizes = [len(consumer.owned) for consumer in staying]
        assert max(sizes) - min(sizes) <= 1
        self._check_all_is_done(consumed)

    def _check_all_is_done(self, consumed: set[int]) -> None:
        ends = self.transport.end_offsets(TOPIC)
        for member in self.members:
            member.consumer.commit()
        committed = self.transport.committed(GROUP, TOPIC)
        assert {queue: committed[queue] for queue in consumed} == {queue: ends[queue] for queue in consumed}

    # -- invariants -----------------------------------------------------------------------------------------------

    @invariant()
    def what_is_committed_was_handled(self) -> None:
        self.steps += 1
        for queue, offset in self.transport.committed(GROUP, TOPIC).items():
            assert {(queue, at) for at in range(offset)} <= self.handled

    @invariant()
    def no_queue_has_two_owners(self) -> None:
        windows = [(w, member.name) for member in self.members for w in member.consumer.open_windows]
        certain = [window.queue for window, _ in windows if window.deadline > self.now]
        assert len(certain) == len(set(certain))
        for window, name in windows:
            epoch, owner = self.granted.get(window.queue, (0, ""))
            if window.epoch > epoch:
                self.granted[window.queue] = epoch, owner = window.epoch, name
            assert window.epoch < epoch or owner == name, "an epoch has one owner"


TestConsumers = as_test(ConsumersMachine, runs=100, steps=50)
