"""Groups, leases and offsets of the coordinator against dictionaries, over restarts, too."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgpack
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from enode_django.equeue.coordination import Coordinator
from enode_django.equeue.messages import Commit
from enode_django.exceptions import QueueBacklog, QueueHeld
from tests.models.profiles import as_test

TOPIC = "orders"
MEMBERS = st.sampled_from(["one", "two", "three"])
GROUPS = st.sampled_from(["g", "g", "h"])
QUEUES = st.integers(0, 5)
SECONDS = st.sampled_from([5.0, 10.0, 30.0])
PATIENCE = 10.0


@dataclass
class Held:
    """A group's state of a queue. ``acquired``: something has set its offset."""

    owner: str | None = None
    until: float = 0.0
    epoch: int = 0
    previous: str | None = None
    committed: int = 0
    deaths: dict[int, set[str]] = field(default_factory=dict)
    acquired: bool = False
    lease: float = 0.0

    def move_to(self, offset: int) -> None:
        self.committed, self.acquired = offset, True
        self.deaths = {at: members for at, members in self.deaths.items() if at >= offset}


class CoordinationMachine(RuleBasedStateMachine):
    @initialize(queues=st.integers(1, 4))
    def begin(self, queues: int) -> None:
        self.now, self.runs, self.last_epoch = 1_000.0, 0, 0
        self.coordinator = Coordinator()
        self.coordinator.create_topic(TOPIC, queues)
        self.ends = [0] * queues
        self.hidden: set[int] = set()
        self.sessions: dict[str, dict[str, float]] = {}
        self.held: dict[tuple[str, int], Held] = {}
        self.shares: dict[str, dict[str, frozenset[int]]] = {}
        self.generations: dict[str, int] = {}
        self.retired: set[str] = set()

    def _bounds(self) -> dict[int, tuple[int, int]]:
        return {queue: (0, end) for queue, end in enumerate(self.ends)}

    @property
    def _consumed(self) -> set[int]:
        return set(range(len(self.ends))) - self.hidden

    def _queue(self, number: int) -> int:
        return number % len(self.ends)

    # -- time, messages, queues -----------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1.0, 5.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(queue=QUEUES, count=st.integers(1, 5))
    def send(self, queue: int, count: int) -> None:
        self.ends[self._queue(queue)] += count

    @rule(more=st.integers(0, 2), unordered=st.booleans())
    def add_queues(self, more: int, unordered: bool) -> None:
        wanted = min(len(self.ends) + more, 6)
        if wanted > len(self.ends) and not unordered and self._has_backlog():
            with pytest.raises(QueueBacklog):
                self._add_queues(wanted, unordered)
            return
        assert self._add_queues(wanted, unordered) == wanted
        self.ends += [0] * (wanted - len(self.ends))

    def _add_queues(self, wanted: int, unordered: bool) -> int:
        return self.coordinator.add_queues(TOPIC, wanted, unordered=unordered, bounds=self._bounds())

    def _counting(self) -> set[str]:
        return {group for group, _ in self.held if group not in self.retired}

    def _lowest(self, queue: int) -> int:
        return min((self.held.get((group, queue), Held()).committed for group in self._counting()), default=0)

    def _has_backlog(self) -> bool:
        return any(end > self._lowest(queue) for queue, end in enumerate(self.ends))

    @rule(queue=QUEUES, visible=st.booleans())
    def show(self, queue: int, visible: bool) -> None:
        queue = self._queue(queue)
        shown = {"to_producers": None, "to_consumers": visible}
        self.coordinator.show(TOPIC, queue, **shown, unordered=False, bounds=self._bounds())
        self.hidden = self.hidden - {queue} if visible else self.hidden | {queue}

    # -- members --------------------------------------------------------------------------------------------------

    @rule(group=GROUPS, member=MEMBERS, session=SECONDS)
    def join(self, group: str, member: str, session: float) -> None:
        self.sessions.setdefault(group, {})[member] = self.now + session
        membership = self.coordinator.join(group, TOPIC, member, session, now=self.now)
        self._divided(group)
        assert membership == (self.generations[group], self.shares[group][member], tuple(sorted(self.sessions[group])))

    @rule(group=GROUPS, member=MEMBERS)
    def leave(self, group: str, member: str) -> None:
        known = group in self.sessions
        self.coordinator.leave(group, TOPIC, member, now=self.now)
        if known:
            self._left(group, member)

    def _left(self, group: str, member: str) -> None:
        self.sessions[group].pop(member, None)
        for held in self._of_group(group):
            if held.owner == member and not held.epoch:
                held.until = 0.0  # it was its own before a restart, and cannot be released
        self._divided(group)

    @rule(group=GROUPS, member=MEMBERS, deaths=st.lists(st.tuples(QUEUES, st.integers(0, 6)), max_size=2))
    def mark_dead(self, group: str, member: str, deaths: list[tuple[int, int]]) -> None:
        deaths = [(self._queue(queue), offset) for queue, offset in deaths]
        known = group in self.sessions
        self.coordinator.bury(group, TOPIC, member, deaths, now=self.now)
        for held in self._of_group(group):
            if held.owner == member:
                held.until = 0.0
        for queue, offset in deaths:
            held = self.held.setdefault((group, queue), Held())
            if offset >= held.committed:
                held.deaths.setdefault(offset, set()).add(member)
        if known:
            self._left(group, member)
        else:
            self.sessions[group] = {}

    def _of_group(self, group: str) -> list[Held]:
        return [held for (name, _), held in self.held.items() if name == group]

    def _divided(self, group: str) -> None:
        """Members or queues may have changed: then everything is divided evenly, and not otherwise."""
        living = {name: until for name, until in self.sessions[group].items() if until > self.now}
        self.sessions[group] = living
        shown = self.coordinator.groups(TOPIC, now=self.now)[group]
        assert set(shown.members) == set(shown.division) == set(living)
        before, shares = self.shares.get(group, {}), dict(shown.division)
        had = sorted(queue for share in before.values() for queue in share)
        if set(before) == set(living) and (set(had) == self._consumed or not living):
            assert (shown.generation, shares) == (self.generations.get(group, 0), before), "nothing has changed"
        else:
            assert shown.generation == self.generations.get(group, 0) + 1
        if living:
            assert sorted(queue for share in shares.values() for queue in share) == sorted(self._consumed)
            assert max(map(len, shares.values())) - min(map(len, shares.values())) <= 1
        self.generations[group], self.shares[group] = shown.generation, shares

    # -- leases ---------------------------------------------------------------------------------------------------

    @rule(group=GROUPS, queue=QUEUES, member=MEMBERS, lease=SECONDS, start=st.integers(0, 6))
    def acquire(self, group: str, queue: int, member: str, lease: float, start: int) -> None:
        queue = self._queue(queue)
        bounds = (0, self.ends[queue])
        held = self.held.setdefault((group, queue), Held())
        self.sessions.setdefault(group, {})
        arguments = (group, TOPIC, queue, member, lease, start)
        if held.owner not in (None, member) and held.until > self.now:
            with pytest.raises(QueueHeld) as refused:
                self.coordinator.acquire(*arguments, bounds=bounds, now=self.now)
            assert (refused.value.owner, refused.value.seconds) == (held.owner, held.until - self.now)
            return
        granted = self.coordinator.acquire(*arguments, bounds=bounds, now=self.now)
        assert granted.epoch > self.last_epoch, "no epoch is given twice"
        self.last_epoch = granted.epoch
        if not held.acquired:
            held.move_to(min(start, self.ends[queue]))
        if held.owner != member:
            held.previous = held.owner
        held.owner, held.until, held.epoch, held.lease = member, self.now + lease, granted.epoch, lease
        self.retired.discard(group)
        deaths = {offset: len(members) for offset, members in held.deaths.items()}
        assert granted == (granted.epoch, held.committed, self.ends[queue], held.previous, deaths)

    def _epoch(self, held: Held, late: int) -> int:
        return max(held.epoch - late, 0)

    @rule(group=GROUPS, queue=QUEUES, member=MEMBERS, lease=SECONDS, late=st.sampled_from([0, 0, 0, 1]))
    def renew(self, group: str, queue: int, member: str, lease: float, late: int) -> None:
        queue = self._queue(queue)
        held = self.held.get((group, queue), Held())
        epoch = self._epoch(held, late)
        is_lost = not epoch or bool(late) or held.owner != member
        lost = self.coordinator.renew(group, TOPIC, member, {queue: epoch}, lease, now=self.now)
        assert lost == ({queue} if is_lost else set())
        if not is_lost:
            held.until, held.previous, held.lease = self.now + lease, None, lease

    @rule(group=GROUPS, queue=QUEUES, member=MEMBERS, late=st.sampled_from([0, 0, 1]))
    def release(self, group: str, queue: int, member: str, late: int) -> None:
        queue = self._queue(queue)
        held = self.held.get((group, queue), Held())
        epoch = self._epoch(held, late)
        self.coordinator.release(group, TOPIC, member, {queue: epoch})
        if epoch and not late and held.owner == member:
            held.owner = None

    @rule(group=GROUPS, queue=QUEUES, offset=st.integers(0, 9), late=st.sampled_from([0, 0, 0, 1]))
    def commit(self, group: str, queue: int, offset: int, late: int) -> None:
        queue = self._queue(queue)
        held = self.held.get((group, queue), Held())
        epoch = self._epoch(held, late)
        is_stale = not epoch or bool(late)
        refused = self.coordinator.commit(group, TOPIC, {queue: Commit(epoch, offset)})
        assert refused == ({queue} if is_stale else set())
        if not is_stale:
            held.previous = None
            if offset > held.committed:
                held.move_to(offset)

    @rule(group=GROUPS, queue=QUEUES, offset=st.integers(0, 9))
    def set_offset(self, group: str, queue: int, offset: int) -> None:
        queue = self._queue(queue)
        self.coordinator.set_offset(group, TOPIC, queue, offset, bounds=(0, self.ends[queue]))
        held = self.held.setdefault((group, queue), Held())
        self.sessions.setdefault(group, {})
        held.owner, held.until, held.epoch = None, 0.0, 0
        held.move_to(min(offset, self.ends[queue]))

    # -- groups and restarts --------------------------------------------------------------------------------------

    @rule(group=GROUPS, delete=st.booleans())
    def retire(self, group: str, delete: bool) -> None:
        if not delete:
            self.coordinator.retire_group(group, TOPIC)
            self.retired |= {group} & self.sessions.keys()
            return
        self.coordinator.delete_group(group, TOPIC)
        self.retired.discard(group)
        for known in (self.sessions, self.shares, self.generations):
            known.pop(group, None)
        self.held = {key: held for key, held in self.held.items() if key[0] != group}

    @rule()
    def restart(self) -> None:
        """The broker stops, and starts again from the records that it has written."""
        self.runs += 1
        plain = msgpack.unpackb(msgpack.packb(self.coordinator.plain()), strict_map_key=False)
        self.coordinator = Coordinator.restore(plain)
        bounds = {TOPIC: self._bounds()}
        self.coordinator.restarted(self.runs, now=self.now, patience=PATIENCE, bounds=bounds)
        for group, members in self.sessions.items():
            leases = [held.lease for held in self._of_group(group) if held.owner is not None]
            members.update(dict.fromkeys(members, self.now + max([PATIENCE, *leases])))
        for (_, queue), held in self.held.items():
            held.epoch, held.until = 0, self.now + max(PATIENCE, held.lease) if held.until > 0 else 0.0
            held.committed = min(held.committed, self.ends[queue])

    # -- invariants -----------------------------------------------------------------------------------------------

    @invariant()
    def offsets_are_those_committed(self) -> None:
        for group in ("g", "h"):
            expected = {q: self.held.get((group, q), Held()).committed for q in range(len(self.ends))}
            assert self.coordinator.committed(group, TOPIC) == expected
        topic = self.coordinator.topic(TOPIC)
        assert [topic.lowest_committed(q) for q in range(len(self.ends))] == list(
            map(self._lowest, range(len(self.ends)))
        )

    @invariant()
    def owners_are_those_of_the_newest_leases(self) -> None:
        for group, shown in self.coordinator.groups(TOPIC, now=self.now).items():
            for queue, claim in shown.claims.items():
                held = self.held[group, queue]
                left = max(0.0, held.until - self.now) if held.owner else 0.0
                assert claim == (held.committed, held.epoch, held.owner, left)


TestCoordination = as_test(CoordinationMachine, runs=80, steps=50)
