"""A catch-up in tasks. Each task may run late or twice."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from enode_django import DomainEvent
from enode_django.concurrency.stopping import stoppable
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventstore.position_ranges import heads
from enode_django.exceptions import RebuildError
from enode_django.rebuilding import catch_up_tasks, catching_up
from enode_django.rebuilding.catch_up_tasks import CatchUpTask, todo_of
from enode_django.rebuilding.catching_up import CatchingUp, now
from enode_django.rebuilding.engine import InProcess, Plan
from enode_django.rebuilding.rebuild import rebuild
from enode_django.rebuilding.replaying import Todo, replayer
from enode_django.rebuilding.shadow import Shadow
from enode_django.rebuilding.target import Target
from tests.following.domain import Added, Closed
from tests.following.harness import Harness, stream_of
from tests.integration.store_sessions import Call, bare_session, insert, wait_until
from tests.rebuilding.conftest import schemas
from tests.rebuilding.domain import Balances, Effects, Postings
from tests.rebuilding.engines import Threads, again
from tests.rebuilding.histories import balances, follow, nothing
from tests.rebuilding.histories import postings as posted

BOTH = pytest.mark.parametrize("cls", [Postings, Balances])


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit tasks to a few streams, so that there are many tasks."""
    monkeypatch.setattr(catch_up_tasks, "ALONE", 1)
    monkeypatch.setattr(catching_up, "ALONE", 1)
    monkeypatch.setattr(catching_up, "TASK_STREAMS", 2)


class Begun:
    """A rebuild that has replayed an empty store."""

    def __init__(self, cls: type[Subscriber], harness: Harness) -> None:
        self.harness = harness
        self.target = Target.of(cls.name)
        self.record, self.shadow = self.target.begin()
        self.engine = Threads()
        self.catching_up = CatchingUp(harness.store, self.engine, self.shadow, now(harness.store), nothing)

    def replayed(self) -> Shadow:
        """Replay everything stored into another shadow, and return that. Other tests may use the same server: what
        their open transactions hold back is caught up."""
        scratch, horizon = self.target.make_scratch(self.record), now(self.harness.store)
        InProcess().replay(Plan(scratch, self.target.types(), horizon), nothing)
        CatchingUp(self.harness.store, InProcess(), scratch, horizon, nothing).run()
        return scratch


def rows(cls: type[Subscriber], shadow: Shadow) -> dict[str, Any]:
    with shadow.opened():
        if cls is Balances:
            return {id: balance[:2] for id, balance in balances().items()}
        return posted()


def keys(engine: Threads) -> Iterator[list[set[str]]]:
    """Yield the aggregates of each task, for each list of tasks."""
    for tasks in engine.given:
        yield [set(heads(*task)) for task in tasks]


@BOTH
def test_tasks_at_work_at_a_time_share_no_aggregate_and_none_has_many(postings: Harness, cls: type[Subscriber]) -> None:
    begun = Begun(cls, postings)
    for id, amounts in itertools.product("abcdefgh", (1, 2)):
        postings.stored(id, Added(amount=amounts), after=amounts - 1)
    begun.catching_up.run()
    together = list(keys(begun.engine))
    assert max(map(len, together)) == 3
    for tasks in together:
        assert sum(map(len, tasks)) == len(set().union(*tasks))
        assert max(map(len, tasks)) <= 3
    assert rows(cls, begun.shadow) == rows(cls, begun.replayed())
    assert len(rows(cls, begun.shadow)) == 8


def test_one_transaction_with_many_aggregates_is_worked_off_in_small_ranges(postings: Harness) -> None:
    begun = Begun(Balances, postings)
    with bare_session() as session:
        insert(session, stream_of("first", 1, [Added(amount=1)]))
        postings.stored("beside", Added(amount=1))
        begun.catching_up.run()
        for number in range(20):
            insert(session, stream_of(f"a{number:02}", 1, [Added(amount=1)]))
        session.commit()
    given = len(begun.engine.given)
    begun.catching_up.run()
    ranges = [tasks[0].range.streams for tasks in begun.engine.given[given:]]
    assert sum(ranges) == 21
    assert max(ranges) <= 6
    assert len(rows(Balances, begun.shadow)) == 22


def test_a_catch_up_ends_at_once_when_the_job_is_to_end(postings: Harness, effects: Effects) -> None:
    handled: list[str] = []
    effects.balance = lambda row, event: handled.append(event.aggregate_root_id)

    class Cancelled(Exception):
        pass

    class Work:
        has_raised = False

        def check_once(self) -> None:
            if handled and not self.has_raised:
                self.has_raised = True
                raise Cancelled

        def pause(self, seconds: float) -> None:
            self.check_once()

    def store(stage: str, **figures: object) -> None:
        if stage == "replay":
            for id in "abcdefgh":
                postings.stored(id, Added(amount=1))

    with stoppable(Work()), pytest.raises(Cancelled):
        rebuild(Balances.name, InProcess(), store)
    assert 1 <= len(handled) <= 2, "of eight"
    assert schemas() == []


# -- tasks that run late, or again ------------------------------------------------------------------------------------


def first_task(begun: Begun) -> CatchUpTask:
    return begun.engine.given[0][0]


@BOTH
def test_a_task_that_goes_on_after_its_aggregate_was_brought_further_changes_nothing(
    postings: Harness, cls: type[Subscriber]
) -> None:
    """The task has looked up its work before a second run does that work."""
    begun = Begun(cls, postings)
    postings.stored("z", Added(amount=1))
    begun.catching_up.run()
    postings.stored("z", Added(amount=2), after=1)
    with replayer(begun.shadow) as late:
        task = CatchUpTask(first_task(begun).range._replace(stretches=_all_of(begun)))
        todo = todo_of(late, task)
        assert [(one.aggregate_root_id, one.until) for one in todo] == [("z", 2)]
        begun.catching_up.run()
        postings.stored("z", Closed(), Added(amount=7), Closed(), after=2)
        begun.catching_up.run()
        before = rows(cls, begun.shadow)
        late.catch_up(todo)
    assert rows(cls, begun.shadow) == before == {}


def _all_of(begun: Begun) -> tuple[Any, ...]:
    (one,) = first_task(begun).range.stretches
    return (one._replace(end=2**62),)


@BOTH
def test_two_runs_of_a_task_at_a_time_handle_each_event_once(
    postings: Harness, effects: Effects, cls: type[Subscriber]
) -> None:
    """The second run waits for the first one, which is blocked in a handler."""
    begun = Begun(cls, postings)
    stands, go_on, calls = threading.Event(), threading.Event(), itertools.count()

    def stand_still(*arguments: Any) -> None:
        if next(calls) == 0:
            stands.set()
            assert go_on.wait(60)

    effects.posting = effects.balance = stand_still
    postings.stored("z", Added(amount=1), Added(amount=2))
    round_ = Call(begun.catching_up.run)
    assert stands.wait(60)
    second = again(begun.shadow, first_task(begun))
    with connection.cursor() as cursor:
        wait_until(lambda: _is_anybody_waiting(cursor))
    go_on.set()
    round_.result()
    second.result()
    assert rows(cls, begun.shadow) == ({"z": (3, 2)} if cls is Balances else {"z": [1, 2]})


def _is_anybody_waiting(cursor: Any) -> bool:
    cursor.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")
    return cursor.fetchone() is not None


@BOTH
def test_a_task_that_goes_on_after_the_swap_changes_nothing(postings: Harness, cls: type[Subscriber]) -> None:
    engine = Threads()

    def store(stage: str, **figures: object) -> None:
        if stage == "replay":
            postings.stored("z", Added(amount=1))

    rebuild(cls.name, engine, store)
    postings.stored("z", Added(amount=2), Added(amount=3), after=1)
    with replayer(engine.shadow) as late, pytest.raises(RebuildError, match="needs what it does not declare"):
        late.catch_up([Todo("z", "following.Counter", 3)])
    with pytest.raises(RebuildError, match="needs what it does not declare"):
        again(engine.shadow, engine.given[0][0]).result()
    assert (balances() == {"z": (1, 1, 1)}) if cls is Balances else (posted() == {"z": [1]})
    follow(cls)
    assert (balances() == {"z": (6, 3, 3)}) if cls is Balances else (posted() == {"z": [1, 2, 3]})


# -- any order of things ----------------------------------------------------------------------------------------------

IDS = 4
STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "hold", "release", "round", "retry"]), st.integers(0, IDS - 1)),
    max_size=16,
)


class Interleaving:
    """Interleaved appends, some in transactions that commit later, rounds of a catch-up, and second runs of tasks."""

    def __init__(self, begun: Begun, prefix: str) -> None:
        self._begun = begun
        self._prefix = prefix
        self._events: dict[str, list[DomainEvent]] = {}
        self._held: list[tuple[Any, Any, str]] = []
        self._runs_again: list[Call] = []

    def append(self, number: int) -> None:
        if (id := self._free(number)) is not None:
            with bare_session() as session:
                insert(session, self._next(id))
                session.commit()

    def hold(self, number: int) -> None:
        if (id := self._free(number)) is not None:
            manager = bare_session()
            session = manager.__enter__()
            insert(session, self._next(id))
            insert(session, self._next(id))
            self._held.append((manager, session, id))

    def release(self, number: int) -> None:
        if self._held:
            manager, session, _ = self._held.pop(number % len(self._held))
            session.commit()
            manager.__exit__(None, None, None)

    def round(self, number: int) -> None:
        self._begun.catching_up.run()

    def retry(self, number: int) -> None:
        given = [task for tasks in self._begun.engine.given[-IDS:] for task in tasks]
        if given:
            self._runs_again.append(again(self._begun.shadow, given[number % len(given)]))

    def end(self) -> None:
        while self._held:
            self.release(0)
        for call in self._runs_again:
            call.result()
        self.round(0)

    def expected(self) -> dict[str, tuple[int, int]]:
        """Return the sum and the number of the amounts added to each account since it was closed last."""
        found = {}
        for id, events in self._events.items():
            amounts: list[int] = []
            for event in events:
                amounts = [*amounts, event.amount] if isinstance(event, Added) else []
            if amounts:
                found[id] = (sum(amounts), len(amounts))
        return found

    def found(self, cls: type[Subscriber]) -> dict[str, tuple[int, int]]:
        known = {id: row for id, row in rows(cls, self._begun.shadow).items() if id.startswith(self._prefix)}
        return known if cls is Balances else {id: (sum(amounts), len(amounts)) for id, amounts in known.items()}

    def _free(self, number: int) -> str | None:
        id = f"{self._prefix}{number}"
        return None if id in [held for _, _, held in self._held] else id

    def _next(self, id: str) -> Any:
        events = self._events.setdefault(id, [])
        events.append(Closed() if len(events) % 5 == 3 else Added(amount=10 ** (len(events) % 5)))
        return stream_of(id, len(events), [events[-1]])


@BOTH
def test_whatever_comes_in_between_the_rows_are_those_of_a_replay_from_nothing(
    postings: Harness, cls: type[Subscriber]
) -> None:
    begun, number = Begun(cls, postings), itertools.count()

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @example([("append", 0), ("hold", 1), ("append", 2), ("round", 0), ("release", 0)])
    @example([("hold", 0), ("append", 1), ("round", 0), ("release", 0), ("round", 0), ("append", 0), ("retry", 0)])
    @given(STEPS)
    def interleave(steps: Sequence[tuple[str, int]]) -> None:
        one = Interleaving(begun, f"{next(number)}/")
        try:
            for name, argument in steps:
                getattr(one, name)(argument)
        finally:
            one.end()
        assert one.found(cls) == one.expected()

    with bare_session() as session:
        session.execute("SELECT pg_current_xact_id()")
        interleave()
        assert rows(cls, begun.shadow) == rows(cls, begun.replayed())
