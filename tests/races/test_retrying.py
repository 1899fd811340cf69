"""Errors that pass: the command is handled again, in its aggregate's order, and other aggregates do not wait."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from math import inf
from threading import Lock
from typing import Any, SupportsIndex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enode_django.bus.results import CommandStatus
from enode_django.commanding.context import CommandContext
from enode_django.commanding.decisions import POSTPONED, DecisionKind
from enode_django.commanding.handler_retries import HandlerRetries, PostponedCommands
from enode_django.domain.handlers import HandlerTable
from enode_django.domain.messages import Command
from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import Retry, StoreUnavailable
from tests.races.counting import Add, Counter, Create, handlers
from tests.races.harness import Worker, assert_history_is_whole, commands_stored, envelope, versions

ATTEMPTS, DELAY = 3, 1.0
RETRIES = HandlerRetries(ATTEMPTS, DELAY, (ConnectionError,))


class Try(Command):
    type_name = "races.Try"


Script = Callable[[CommandContext], None]


def raises(error: Exception | None) -> Script:
    """Return a script that adds one, and then raises the error, if it is not None."""

    def script(context: CommandContext) -> None:
        context.get(Counter).add(1)
        if error is not None:
            raise error

    return script


def fails(*errors: Exception) -> list[Script]:
    """Return a script that fails with each error, and then one that succeeds."""
    return [*map(raises, errors), raises(None)]


def test_an_attempt_that_does_not_count_leaves_the_failures_before_it() -> None:
    waiting, command = PostponedCommands(RETRIES, lambda: 0.0), envelope(Try("x"))
    waiting.fail(command, ConnectionError(), None, counts=True)
    waiting.fail(command, ConnectionError(), None, counts=False)
    assert waiting.attempts_of(command) == f"1 of {ATTEMPTS}"


class Trying:
    """A worker, and the scripts for the attempts at its `Try` commands, by command id."""

    def __init__(self, retries: HandlerRetries = RETRIES, store: EventStore | None = None, **options: Any) -> None:
        self.store = store if store is not None else MemoryEventStore()
        self.scripts: dict[str, list[Script]] = {}
        self.attempts: list[str] = []
        self.worker = Worker(self.store, retries=retries, **options)
        self.worker.processor._handlers = table = HandlerTable()
        for command, found in handlers._handlers.items():
            table.add(command, found[0])
        table.add(Try, self._try)
        self.table = table
        self.worker.acquire(lease=1e6)
        self.worker.run(Create("x"), Create("y"))

    def _try(self, command: Try, context: CommandContext) -> None:
        self.attempts.append(command.id)
        self.scripts[command.id].pop(0)(context)

    def send(self, id: str, *scripts: Script, to: str = "x") -> Try:
        command = Try(to, id=id)
        self.scripts[id] = list(scripts)
        self.worker.send(command)
        return command

    def wait(self, seconds: float = DELAY) -> None:
        self.worker.clock.now += seconds
        self.worker.settle()

    @property
    def statuses(self) -> dict[str, CommandStatus]:
        return {id: answer.status for id, answer in self.worker.answers.items() if id in self.scripts or id == "add"}


def test_a_command_is_handled_again_after_an_error_that_passes() -> None:
    trying = Trying()
    trying.send("t", *fails(ConnectionError("reset"), Retry("not yet")))
    trying.worker.settle()
    assert (trying.attempts, trying.statuses, trying.worker.window.unfinished) == (["t"], {}, 3)
    trying.wait(0.9 * DELAY)
    assert trying.attempts == ["t"]
    trying.wait(0.1 * DELAY)
    assert trying.attempts == ["t", "t"]
    trying.wait(2 * DELAY)
    assert trying.attempts == ["t"] * 3
    assert trying.statuses == {"t": CommandStatus.SUCCESS}
    assert versions(trying.store, "x") == [1, 2]
    assert_history_is_whole(trying.store, "x")


def test_attempts_of_the_same_command_id_on_another_aggregate_are_counted_apart() -> None:
    """The two commands may have the same offset, in different queues."""
    trying = Trying()
    trying.send("t", *[raises(ConnectionError())] * 4, raises(None), raises(None))
    other = OffsetWindow("commands", 1, epoch=1, committed=0, deadline=inf)
    offset = trying.worker.envelopes[-1].offset
    other.add([offset])
    trying.worker.envelopes.append(envelope(Try("y", id="t"), other, offset))
    trying.worker.settle()
    for _ in range(ATTEMPTS):
        trying.wait(2 * DELAY)
    assert commands_stored(trying.store, "x")[1:] == commands_stored(trying.store, "y")[1:] == ["t"]


def test_retry_says_after_how_many_seconds() -> None:
    trying = Trying()
    trying.send("t", *fails(Retry(after=7.5)))
    trying.worker.settle()
    assert trying.worker.processor.pause == 7.5
    trying.wait(7.4)
    assert trying.attempts == ["t"]
    trying.wait(0.1)
    assert trying.statuses == {"t": CommandStatus.SUCCESS}
    assert trying.worker.processor.pause is None


def test_what_is_due_soon_does_not_wait_for_what_is_due_late() -> None:
    trying = Trying()
    trying.send("soon", *fails(Retry(after=1.0)))
    trying.send("late", *fails(Retry(after=5.0)), to="y")
    trying.worker.settle()
    assert trying.worker.processor.pause == 1.0
    trying.wait(1.0)
    assert trying.statuses == {"soon": CommandStatus.SUCCESS}
    assert trying.worker.processor.pause == 4.0


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), 1e10, 2**70, "soon", True])
def test_retry_refuses_what_is_no_number_of_seconds(after: Any) -> None:
    with pytest.raises(ValueError, match="number of seconds"):
        Retry(after=after)


def test_after_the_last_attempt_the_command_fails_with_what_it_raised() -> None:
    trying = Trying()
    trying.send("t", *[raises(ConnectionError(f"reset {number}")) for number in range(9)])
    for _ in range(9):
        trying.wait(60.0)
    assert trying.attempts == ["t"] * ATTEMPTS
    answer = trying.worker.answers["t"]
    assert (answer.status, answer.error_type) == (CommandStatus.FAILED, "ConnectionError")
    assert "reset 2" in answer.error_message
    assert versions(trying.store, "x") == [1]


def test_other_errors_fail_at_once() -> None:
    trying = Trying()
    trying.send("t", *fails(ValueError("v")))
    trying.worker.settle()
    assert trying.statuses == {"t": CommandStatus.FAILED}


def test_a_handler_has_errors_of_its_own_that_pass() -> None:
    trying = Trying()
    for own, error, expected in (
        ((ValueError,), ValueError("v"), 2),
        ((ValueError,), ConnectionError("c"), 1),
        ((), StoreUnavailable("s"), 1),
        ((), Retry(), 2),
    ):
        trying.table.add(Try, trying._try, retry_on=own)
        id = f"{own}{error!r}"
        trying.send(id, *fails(error))
        trying.worker.settle()
        trying.wait()
        assert trying.attempts.count(id) == expected, id


def test_commands_of_the_same_aggregate_wait_behind_it_in_order_and_others_do_not() -> None:
    trying = Trying()
    trying.send("a", raises(None))
    trying.send("b", *fails(ConnectionError(), ConnectionError()))
    trying.send("c", raises(None))
    trying.send("other", raises(None), to="y")
    trying.worker.settle()
    trying.send("d", *fails(ConnectionError()))
    trying.send("e", raises(None))
    trying.worker.settle()
    assert trying.statuses == dict.fromkeys(("a", "other"), CommandStatus.SUCCESS)
    trying.wait(DELAY)
    trying.wait(2 * DELAY)
    assert list(trying.statuses) == ["a", "other", "b", "c"]
    trying.wait(DELAY)
    assert commands_stored(trying.store, "x")[1:] == ["a", "b", "c", "d", "e"]
    assert trying.attempts == ["a", "b", "other", "b", "b", "c", "d", "d", "e"]
    assert_history_is_whole(trying.store, "x")


def test_the_window_moves_up_to_the_command_that_waits() -> None:
    trying = Trying()
    window = trying.worker.window
    trying.send("a", raises(None))
    trying.send("b", *fails(ConnectionError()))
    trying.send("c", raises(None), to="y")
    trying.worker.settle()
    for one in trying.worker.finished:
        window.finish(one.envelope.offset)
    assert window.committable == 3
    assert trying.worker.processor.postponed_in(window) == 1
    trying.wait()
    assert trying.worker.processor.postponed_in(window) == 0
    window.finish(trying.worker.finished[-1].envelope.offset)
    assert window.committable == 5


def test_what_the_attempt_did_to_the_aggregate_is_undone_before_the_next() -> None:
    trying = Trying()
    totals: list[int] = []

    def look(context: CommandContext) -> None:
        totals.append(context.get(Counter).total)
        context.get(Counter).add(1)
        if len(totals) == 1:
            raise Retry

    trying.send("before", raises(None))
    trying.worker.handle()  # its stream is not stored yet when the next attempt fails
    trying.send("t", look, look)
    trying.worker.handle()
    trying.wait()
    assert totals == [1, 1]
    assert_history_is_whole(trying.store, "x")


def test_an_aggregate_that_waits_may_leave_the_cache() -> None:
    trying = Trying(max_aggregates=1)
    trying.send("t", *fails(ConnectionError()))
    trying.send("new", *[lambda context: context.find(Counter) and None, raises(None)], to="nowhere")
    trying.worker.settle()
    for number in range(3):
        trying.worker.run(Create(f"z{number}"))
    assert trying.worker.processor.cached == 1
    trying.wait()
    assert trying.statuses["t"] is CommandStatus.SUCCESS


def test_a_command_that_would_create_and_waits_leaves_nothing_behind() -> None:
    trying = Trying()

    def refuse(context: CommandContext) -> None:
        context.add(Counter("new"))
        raise Retry

    def create(context: CommandContext) -> None:
        assert context.find(Counter) is None
        counter = Counter("new")
        counter.add(1)
        context.add(counter)

    cached = trying.worker.processor.cached
    trying.send("t", refuse, create, to="new")
    trying.worker.settle()
    assert trying.worker.processor.cached == cached
    trying.wait()
    assert trying.statuses == {"t": CommandStatus.SUCCESS}


def test_a_repeat_waits_behind_its_first_and_has_the_same_answer() -> None:
    trying = Trying()
    trying.send("t", *fails(ConnectionError()))
    trying.worker.settle()
    trying.worker.send(Try("x", id="t"))
    trying.worker.settle()
    assert trying.statuses == {}
    trying.wait()
    assert [one.envelope.id for one in trying.worker.finished[2:]] == ["t", "t"]
    assert commands_stored(trying.store, "x")[1:] == ["t"]
    assert trying.statuses == {"t": CommandStatus.SUCCESS}


def somebody_adds(store: EventStore) -> None:
    Worker(store).run(Add("x", id="somebody"))


def test_recovered_commands_are_handled_before_the_one_that_waits() -> None:
    trying = Trying()
    trying.send("a", raises(None), raises(None))
    trying.send("b", raises(None), raises(None))
    trying.send("c", *fails(ConnectionError()))
    trying.send("d", raises(None))
    trying.worker.handle()
    somebody_adds(trying.store)
    trying.worker.settle()
    assert trying.attempts == ["a", "b", "c", "a", "b"]
    trying.wait()
    assert commands_stored(trying.store, "x")[1:] == ["somebody", "a", "b", "c", "d"]
    assert_history_is_whole(trying.store, "x")


def test_a_recovered_command_that_has_to_wait_keeps_its_place_before_the_others() -> None:
    trying = Trying()
    trying.send("a", raises(None), *fails(ConnectionError()))
    trying.send("b", raises(None), raises(None))
    trying.send("c", *fails(ConnectionError(), ConnectionError()))
    trying.send("d", raises(None))
    trying.worker.handle()
    somebody_adds(trying.store)
    trying.worker.settle()
    assert trying.attempts == ["a", "b", "c", "a"]
    trying.wait()
    trying.wait(2 * DELAY)
    assert commands_stored(trying.store, "x")[1:] == ["somebody", "a", "b", "c", "d"]
    assert trying.attempts.count("c") == ATTEMPTS, "a recovery does not give it more attempts"
    assert_history_is_whole(trying.store, "x")


def test_a_repeat_among_the_recovered_is_decided_with_its_first() -> None:
    trying = Trying()
    trying.send("a", raises(None), *fails(ConnectionError()))
    trying.worker.send(Try("x", id="a"))
    trying.worker.handle()
    somebody_adds(trying.store)
    trying.worker.settle()
    trying.wait()
    assert trying.attempts == ["a"] * 3
    assert commands_stored(trying.store, "x")[1:] == ["somebody", "a"]
    assert trying.worker.answers["a"].status is CommandStatus.SUCCESS


def test_what_waits_under_a_lease_that_ended_is_left_to_the_next_owner() -> None:
    trying = Trying()
    old = trying.worker.window
    trying.send("t", *fails(ConnectionError()))
    trying.worker.settle()
    old.close()
    trying.wait(60.0)
    assert trying.attempts == ["t"]
    assert trying.worker.processor.pause is None


def test_a_queue_that_comes_back_begins_anew() -> None:
    """A command that was postponed under the earlier lease is delivered again, and handled at once."""
    trying = Trying()
    trying.send("t", *fails(ConnectionError()))
    trying.worker.settle()
    trying.worker.window.close()
    trying.worker.acquire()
    trying.worker.send(Try("x", id="t"))
    trying.worker.settle()
    assert trying.statuses == {"t": CommandStatus.SUCCESS}
    assert trying.attempts == ["t", "t"]


class GoesAway(MemoryEventStore):
    """Raises `StoreUnavailable` for the next ``times`` loads of the aggregate "y"."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def load(self, aggregate_root_id: str, **options: Any) -> Any:
        if aggregate_root_id == "y" and self.times:
            self.times -= 1
            raise StoreUnavailable("away")
        return super().load(aggregate_root_id, **options)


def loads(context: CommandContext) -> None:
    context.get(Counter).add(1 + context.get(Counter, "y").total)


def swallows(context: CommandContext) -> None:
    try:
        loads(context)
    except StoreUnavailable as error:
        raise ValueError("it decides on what it has not seen") from error


@pytest.mark.parametrize("script", [loads, swallows])
def test_while_the_store_is_away_attempts_do_not_count(script: Script) -> None:
    away = 4 * ATTEMPTS
    trying = Trying(store=GoesAway(away))
    trying.send("t", *[script] * (away + 1))
    for _ in range(away + 1):
        trying.wait(60.0)
    assert trying.attempts == ["t"] * (away + 1)
    assert trying.statuses == {"t": CommandStatus.SUCCESS}


def test_a_retry_is_a_step_of_the_commands_way(caplog: pytest.LogCaptureFixture) -> None:
    trying = Trying()
    trying.send("t", *fails(ConnectionError("reset")))
    trying.send("u", raises(None))
    with caplog.at_level("DEBUG", logger="enode_django.flow"):
        trying.worker.settle()
    steps = [(record.command_id, record.outcome) for record in caplog.records if record.name == "enode_django.flow"]  # type: ignore[attr-defined]
    assert steps == [("t", "postponed: ConnectionError: reset"), ("u", "postponed: it waits behind another")]


def test_a_suspect_that_waits_keeps_no_other_one_waiting() -> None:
    trying = Trying()
    suspects = trying.worker.processor._suspects = Lock()
    held: list[bool] = []

    def look(context: CommandContext) -> None:
        held.append(suspects.locked())
        context.find(Counter, "y")
        if len(held) == 1:
            raise Retry

    trying.send("t", look, look)
    trying.worker.envelopes[-1].suspect = True
    trying.worker.settle()
    assert not suspects.locked()
    trying.wait()
    assert (held, suspects.locked()) == ([True, True], False)
    assert trying.statuses == {"t": CommandStatus.NOTHING_CHANGED}


_errors = st.lists(st.sampled_from([ConnectionError(), Retry(after=3.0)]), max_size=ATTEMPTS - 1)
_steps = st.one_of(
    st.tuples(st.just("send"), st.sampled_from("xy"), _errors),
    st.tuples(st.just("handle"), st.integers(1, 3)),
    st.tuples(st.just("commit"), st.integers(1, 3)),
    st.tuples(st.sampled_from(["deliver", "somebody", "wait"])),
)


@settings(deadline=None)
@given(st.lists(_steps, max_size=40))
def test_every_command_is_stored_once_and_in_order_whatever_happens_meanwhile(steps: list[tuple[Any, ...]]) -> None:
    trying = Trying(max_recent=1_000)
    sent: dict[str, list[str]] = {"x": [], "y": []}
    for number, (step, *what) in enumerate(steps):
        if step == "send":
            to, errors = what
            again = itertools.chain(map(raises, errors), itertools.repeat(raises(None)))
            trying.scripts[f"{number}"] = Endless(again)
            trying.worker.send(Try(to, id=f"{number}"))
            sent[to].append(f"{number}")
        elif step == "somebody":
            Worker(trying.store).run(Add("x", id=f"somebody {number}"))
        elif step == "wait":
            trying.worker.clock.now += DELAY
        else:
            getattr(trying.worker, step)(*what)
    for _ in range(ATTEMPTS * len(steps)):
        trying.wait(5.0)
    for id, expected in sent.items():
        stored = commands_stored(trying.store, id)[1:]
        assert [command for command in stored if not command.startswith("somebody")] == expected
        assert_history_is_whole(trying.store, id)
    assert {*trying.statuses.values()} <= {CommandStatus.SUCCESS}
    assert len(trying.statuses) == sum(map(len, sent.values()))
    assert not trying.worker.processor._postponed.failures


class Endless(list[Script]):
    """Takes the next script for each attempt from an iterator, which need not end."""

    def __init__(self, scripts: Iterator[Script]) -> None:
        super().__init__()
        self._scripts = scripts

    def pop(self, index: SupportsIndex = -1) -> Script:
        return next(self._scripts)


def test_what_waits_has_an_entry_that_changes_nothing() -> None:
    """The caller of `handle` counts the decisions."""
    trying = Trying()
    trying.send("t", *fails(ConnectionError()))
    trying.send("u", raises(None))
    trying.send("v", raises(None), to="y")
    assert [entry.kind for entry in trying.worker.handle()] == [POSTPONED, POSTPONED, DecisionKind.STREAM]
    assert trying.worker.in_flight == 1
    committed = trying.worker.commit()
    assert [entry.aggregate_root_id for entry in committed.released] == ["y"]
    assert not committed.recoveries
