"""Workers, crashes, copies and deadlines in any order: what two aggregates must never both have, they never have."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from enode_django.domain.messages import Command
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.unique_values import UniqueKey
from enode_django.repository.loading import AggregateLoader
from enode_django.repository.unique_keys import keys_of, values_of
from tests.races.harness import Worker
from tests.unique.domain import ChangeEmail, Join, Leave, SwapEmails, Wave, handlers
from tests.unique.test_crashes import AT_ONCE, NEVER, settle_old

MEMBERS, EMAILS, WORKERS = "abc", "xy", 3


class World:
    def __init__(self) -> None:
        self.store = MemoryEventStore()
        self.sent: list[Command] = []
        self.workers = [self._new_worker(number) for number in range(WORKERS)]

    def _new_worker(self, number: int) -> Worker:
        return Worker(self.store, table=handlers, claim_deadline=AT_ONCE if number else NEVER)

    def step(self, number: int, kind: str, command: Command, count: int) -> None:
        worker = self.workers[number]
        if kind == "send":
            self.sent.append(command)
            worker.send(command)
        elif kind == "copy" and self.sent:
            worker.send(self.sent[count % len(self.sent)])
        elif kind == "handle":
            worker.handle(count)
        elif kind == "commit" and worker.entries:
            worker.commit(count)
            self.check()
        elif kind == "deliver":
            worker.deliver()
        elif kind == "die":
            self._die(number)
        elif kind == "settle":
            settle_old(self.store)

    def _die(self, number: int) -> None:
        dead = self.workers[number]
        done = {one.envelope.id for one in dead.finished}
        self.workers[number] = self._new_worker(number)
        for one in dead.finished:
            if one.record is not None:  # without a row the answer is in the queue, which this test lacks
                assert self.store.find([one.record.command_key]) == {one.record.command_key: one.record}
        for command in self.sent:
            if command.id not in done:
                self.workers[number].send(command)

    def held(self) -> dict[UniqueKey, str]:
        """The values of the stored states. Raises `AssertionError` if two aggregates have one value."""
        held: dict[UniqueKey, str] = {}
        for id in MEMBERS:
            member = AggregateLoader(self.store).load(id)
            for key in keys_of(type(member), values_of(member)) if member is not None else ():
                assert key not in held, f"{held[key]} and {id} have one value"
                held[key] = id
        return held

    def check(self) -> None:
        owners = {row.key: row.aggregate_root_id for row in self.store.unique_values.rows()}
        for key, id in self.held().items():
            assert owners.get(key) == id, f"{id} has a value that it does not hold"

    def end(self) -> None:
        for worker in self.workers:
            worker.settle()
            self.check()
        settle_old(self.store)
        rows = list(self.store.unique_values.rows())
        assert {row.key: row.aggregate_root_id for row in rows} == self.held()
        assert all(not row.claims for row in rows)
        # A version that no command has made yet may give the value up.
        assert all(version > row.version for row in rows for version in row.releases)


ids, emails = st.sampled_from(MEMBERS), st.sampled_from(EMAILS)
commands: list[Callable[[str, str, str], Command]] = [
    lambda id, one, other: Join(id, email=one),
    lambda id, one, other: ChangeEmail(id, email=one),
    lambda id, one, other: SwapEmails(id, before=one, email=other),
    lambda id, one, other: Leave(id),
    lambda id, one, other: Wave(id),
]
kinds = ["send", "send", "send", "copy", "handle", "handle", "commit", "commit", "deliver", "deliver", "die", "settle"]
steps = st.tuples(
    st.integers(0, WORKERS - 1),
    st.sampled_from(kinds),
    st.builds(lambda make, id, one, other: make(id, one, other), st.sampled_from(commands), ids, emails, emails),
    st.integers(1, 4),
)


@settings(max_examples=60)
@given(st.lists(steps, min_size=10, max_size=60))
def test_whatever_happens_a_value_has_one_aggregate(made: list[tuple[int, str, Command, int]]) -> None:
    world = World()
    for number, kind, command, count in made:
        world.step(number, kind, command, count)
    world.end()
