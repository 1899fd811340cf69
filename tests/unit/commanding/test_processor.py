"""Application code in a command mailbox: its errors fail its own command, and harm nothing else."""

from __future__ import annotations

import copy
import pickle
from asyncio import CancelledError
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from enode_django.bus.results import CommandResult, CommandStatus
from enode_django.commanding.command_processor import CommandProcessor
from enode_django.commanding.context import CommandContext
from enode_django.concurrency.in_flight import NOTHING_IN_FLIGHT
from enode_django.domain.aggregate import replay_stream
from enode_django.domain.handlers import HandlerTable
from enode_django.domain.messages import Command
from enode_django.domain.refusals import DomainException
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import AggregateNotFound, BrokenHistory, HandlerNotFound, InvalidId, StoreUnavailable
from tests.races.counting import Counter, Created
from tests.races.counting import handlers as race_handlers
from tests.races.harness import Worker


class Do(Command):
    type_name = "unit.Do"


class Awkward(DomainException):
    type_name = "unit.Awkward"
    amount: Decimal

    def __init__(self) -> None:
        Exception.__init__(self, "made without its fields")


class Fits(DomainException):
    type_name = "unit.Fits"
    amount: Decimal


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


Script = Callable[[CommandContext], None]


def play(store: EventStore, script: Script, *, create: bool = True, **options: Any) -> tuple[Worker, CommandResult]:
    """The outcome of a command whose handler is ``script``, and the worker that handled it."""
    worker = Worker(store, **options)
    table = HandlerTable()
    for command, found in race_handlers._handlers.items():
        table.add(command, found[0])
    table.add(Do, lambda command, context: script(context))
    worker.processor._handlers = table
    if create:
        from tests.races.counting import Create

        worker.run(Create("x"))
    (result,) = worker.run(Do("x", id="do"))
    return worker, result


@pytest.fixture
def store() -> MemoryEventStore:
    return MemoryEventStore()


def raises(error: BaseException) -> Script:
    def script(context: CommandContext) -> None:
        context.get(Counter).add(5)
        raise error

    return script


def surprising() -> Fits:
    refusal = Fits("it fits", amount=Decimal(1))
    refusal.__dict__["amount"] = object()
    return refusal


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ValueError("v"), "ValueError"),
        (SystemExit(3), "SystemExit"),
        (CancelledError(), "CancelledError"),
        (Speechless(), "Speechless"),
        (Awkward(), "KeyError"),
        (surprising(), "InvalidField"),
        (Fits("\ud800", amount=Decimal(1)), "InvalidField"),
        (RecursionError("deep"), "RecursionError"),
        (StoreUnavailable("of the application's own"), "StoreUnavailable"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whatever_a_handler_raises_fails_its_command_and_leaves_clean_state(
    store: MemoryEventStore, error: BaseException, name: str
) -> None:
    from tests.races.counting import Add

    worker, result = play(store, raises(error))
    assert (result.status, result.error_type) == (CommandStatus.FAILED, name if name != "KeyError" else "KeyError")
    assert worker.run(Add("x"))[0].value == 1


@pytest.mark.parametrize(
    ("error", "with_traceback"),
    [(AggregateNotFound("none"), False), (HandlerNotFound("none"), True), (ValueError("v"), True)],
    ids=lambda value: type(value).__name__,
)
def test_whatever_fails_a_command_is_logged_for_senders_that_do_not_wait(
    store: MemoryEventStore, error: Exception, with_traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    play(store, raises(error))
    [record] = caplog.records
    assert record.getMessage().startswith("command unit.Do 'do' failed")
    assert (record.exc_info is not None) == with_traceback


def test_the_record_of_a_senders_mistake_has_the_ids_of_its_command(
    store: MemoryEventStore, caplog: pytest.LogCaptureFixture
) -> None:
    play(store, raises(AggregateNotFound("none")))
    context = {"command_id": "do", "aggregate_root_id": "x", "correlation_id": "do"}
    assert context.items() <= caplog.records[0].__dict__.items()


def test_a_repeat_whose_answer_is_stored_is_not_logged_as_failed(
    store: MemoryEventStore, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.races.counting import Create

    create = Create("x", id="create")
    answers = [Worker(store).run(create)[0] for _ in range(2)]
    assert [answer.status for answer in answers] == [CommandStatus.SUCCESS] * 2
    assert not caplog.records


def test_unencodable_error_text_still_arrives(store: MemoryEventStore) -> None:
    from enode_django.bus.results import decode_result, encode_result

    _, result = play(store, raises(ValueError("lone \ud800")))
    assert decode_result(encode_result(result)).error_message == "lone ?"


def test_adding_an_aggregate_that_is_not_new_fails(store: MemoryEventStore) -> None:
    def add_old(context: CommandContext) -> None:
        old = Counter("x")
        replay_stream(old, [Created()], 1)
        old.add(1)
        context.add(old)

    _, result = play(store, add_old, create=False)
    assert result.status is CommandStatus.FAILED
    assert "version 1" in result.error_message
    assert list(store.load("x")) == []


def test_adding_two_aggregates_fails(store: MemoryEventStore) -> None:
    def add_two(context: CommandContext) -> None:
        for _ in range(2):
            counter = Counter("x")
            counter.apply(Created())
            context.add(counter)

    _, result = play(store, add_two, create=False)
    assert (result.error_type, list(store.load("x"))) == ("AggregateAlreadyExists", [])


def test_adding_an_aggregate_without_events_changes_nothing(store: MemoryEventStore) -> None:
    _, result = play(store, lambda context: context.add(Counter("x")), create=False)
    assert (result.status, result.version) == (CommandStatus.NOTHING_CHANGED, 0)


def test_handler_that_fails_after_adding_leaves_no_aggregate(store: MemoryEventStore) -> None:
    def add_then_raise(context: CommandContext) -> None:
        counter = Counter("x")
        counter.apply(Created())
        context.add(counter)
        raise ValueError("no")

    worker, _ = play(store, add_then_raise, create=False)
    from tests.races.counting import Create

    assert worker.run(Create("x"))[0].version == 1


def test_events_copy_and_pickle_inside_a_handler(store: MemoryEventStore) -> None:
    seen: list[Any] = []

    def keep(context: CommandContext) -> None:
        counter = context.get(Counter)
        counter.add(1)
        event = counter.uncommitted_events[0]
        seen.extend([event, copy.deepcopy(event), pickle.loads(pickle.dumps(event))])

    _, result = play(store, keep)
    assert result.status is CommandStatus.SUCCESS
    assert {(event.id, event.command_id) for event in seen} == {("x/2/0", "do")}


def test_aggregate_is_asked_for_twice_and_found_or_not(store: MemoryEventStore) -> None:
    def look(context: CommandContext) -> None:
        assert context.find(Counter, "none") is None
        assert context.get(Counter) is context.get(Counter, "x") is context.find(Counter)
        assert context.command_id == "do"
        with pytest.raises(InvalidId, match=r"aggregate root id must be a string, got 5; pass str\(value\)"):
            context.find(Counter, 5)  # type: ignore[arg-type]
        context.set_result("fine")

    assert play(store, look)[1].value == "fine"


def broken(store: MemoryEventStore, **changes: Any) -> None:
    worker = Worker(store)
    from tests.races.counting import Add, Create

    worker.run(Create("y"), Add("y"))
    for record in list(store.load("y")):
        row = record._replace(aggregate_root_id="x", command_id=f"x{record.version}")
        store.append([row._replace(**changes) if row.version == 2 else row])


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"events": b""}, "MalformedMessage"),
        ({"events": b"\x01\xff"}, "MalformedMessage"),
        ({"events": b"\x01\x92\x91\x93\xab" + b"races.Added" + b"\x01\x01\xc0"}, "MalformedMessage"),
        ({"version": 3}, "BrokenHistory"),
        ({"aggregate_root_type": "races.Unknown"}, "UnknownMessageType"),
    ],
)
def test_history_that_cannot_be_read_fails_every_command_and_no_other_aggregate(
    store: MemoryEventStore, changes: dict[str, Any], name: str
) -> None:
    from tests.races.counting import Add

    broken(store, **changes)
    worker = Worker(store)
    here, again, elsewhere = worker.run(Add("x"), Add("x"), Add("y"))
    assert (here.error_type, again.error_type, elsewhere.status) == (name, name, CommandStatus.SUCCESS)
    assert worker.processor.cached == 1, "it is looked at anew each time: newer code may read it"


def test_applier_that_raises_while_history_is_replayed_is_a_broken_history(store: MemoryEventStore) -> None:
    from tests.races.counting import Add

    broken(store, events=_stream_of("races.Added", {"amount": 1, "total": "many"}))
    assert Worker(store).run(Add("x"))[0].error_type == "MalformedMessage", "InvalidField would blame the command"
    assert issubclass(BrokenHistory, Exception)


def _stream_of(name: str, fields: dict[str, Any]) -> bytes:
    from enode_django.serialization.plain import pack

    return b"\x01" + pack(([(name, 1, fields)], None))


class Noting:
    """A note that keeps everything that was ever written."""

    def __init__(self) -> None:
        self.value = NOTHING_IN_FLIGHT
        self.seen: list[int] = []

    def __getitem__(self, index: int) -> int:
        return self.value

    def __setitem__(self, index: int, value: int) -> None:
        self.value = value
        self.seen.append(value)


def test_note_says_which_command_is_handled_also_while_its_handler_loads_another_aggregate(
    store: MemoryEventStore,
) -> None:
    note = Noting()
    notes_at_load: list[int] = []

    class Watched(MemoryEventStore):
        def load(self, aggregate_root_id: str, **options: Any) -> Any:
            notes_at_load.append(note.value)
            return super().load(aggregate_root_id, **options)

    watched = Watched()
    watched._commands, watched._streams = store._commands, store._streams

    def script(context: CommandContext) -> None:
        assert note.value == context_position
        context.find(Counter, "other")
        assert note.value == context_position
        context.get(Counter).add(1)
        raise ValueError("and the state is restored")

    context_position = 2  # queue 0, offset 1
    worker = Worker(watched)
    table = HandlerTable()
    for command, found in race_handlers._handlers.items():
        table.add(command, found[0])
    table.add(Do, lambda command, context: script(context))
    worker.processor = CommandProcessor(
        worker.processor._loader, table, persist=lambda call: call(), max_aggregates=9, max_recent=9, max_bytes=999,
        note=note,
    )  # fmt: skip
    from tests.races.counting import Create

    worker.send(Create("x"), Do("x"))
    worker.settle()
    assert [answer.error_type for answer in worker.answers.values()] == ["", "ValueError"]
    assert notes_at_load == [context_position, NOTHING_IN_FLIGHT], "undoing what it did is not the handler's time"
    assert note.value == NOTHING_IN_FLIGHT
