"""From pulled bytes to envelopes: after a takeover, and for messages that cannot be decoded, or not yet."""

from __future__ import annotations

from typing import Any

import pytest

from enode_django.bus.results import CommandResult, encode_receipt
from enode_django.commanding.decisions import DecisionKind
from enode_django.commanding.intake import Intake, Received
from enode_django.commanding.mailbox_router import MailboxRouter
from enode_django.commanding.publisher import answer_of
from enode_django.commanding.remembered_answers import RememberedAnswers
from enode_django.domain.messages import Command
from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import CommandKilledWorker, InvalidField, MalformedMessage, UnknownMessageType
from enode_django.serialization.codec import encode_command
from enode_django.serialization.plain import pack
from enode_django.serialization.upcasting import upcasts
from tests.races.counting import Add, AddWithin, Create
from tests.races.harness import Clock, Worker

DELAYS = (1.0, 5.0)


def window(backlog_end: int = 0, queue: int = 3) -> OffsetWindow:
    return OffsetWindow("commands", queue, epoch=1, committed=0, deadline=1e9, backlog_end=backlog_end)


def body(command: Command, reply_to: str = "") -> bytes:
    return encode_command(command, b"", reply_to)


def unknown(type_name: str, aggregate_root_id: str = "x", id: str = "u") -> bytes:
    return pack((1, type_name, id, aggregate_root_id, {}, b"", "inbox"))


class CountsQueries(MemoryEventStore):
    finds = 0

    def find(self, keys: Any) -> Any:
        self.finds += 1
        return super().find(keys)


@pytest.fixture
def store() -> CountsQueries:
    return CountsQueries()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def intake(clock: Clock) -> Intake:
    return Intake(MailboxRouter(2, 1), remembering(), delays=DELAYS, clock=clock)


def remembering(*answers: CommandResult) -> RememberedAnswers:
    return RememberedAnswers(10, lambda window: [encode_receipt(answer) for answer in answers])


def ids(received: Received) -> list[str]:
    return [envelope.id for envelope in received.commands]


def receive(intake: Intake, window: OffsetWindow, *bodies: bytes) -> Received:
    offsets = range(window.next_offset, window.next_offset + len(bodies))
    window.add(offsets)
    return intake.receive(window, offsets, bodies)


def test_backlog_is_looked_up_at_once_and_what_is_found_is_finished_from_the_store(
    intake: Intake, store: CountsQueries
) -> None:
    worker = Worker(store)
    stored = [Create("x", id="c0"), AddWithin("x", id="c1", limit=0)]
    worker.run(*stored)
    store.finds = 0
    lease = window(backlog_end=3)
    received = receive(intake, lease, *map(body, [*stored, *(Add("x", id=f"n{n}") for n in (0, 1))]))
    assert received.is_backlog
    entries, left = worker.processor.take_stored(received.commands)
    assert store.finds == 1
    assert [(entry.kind, entry.record and entry.record.command_id) for entry in entries] == [
        (DecisionKind.STORED, "c0"),
        (DecisionKind.STORED, "c1"),
    ]
    assert [envelope.id for envelope in left] == ["n0", "n1"]
    committed = worker.committer.commit(entries)
    assert [answer_of(one) for one in committed.finished] == [worker.answers["c0"], worker.answers["c1"]]
    later = receive(intake, lease, body(Add("x")))
    assert not later.is_backlog
    assert worker.processor.take_stored(later.commands) == ([], later.commands)
    assert store.finds == 1, "what came after the takeover is not looked up"


def test_stored_outcome_is_not_finished_for_a_lease_that_is_lost(intake: Intake, store: CountsQueries) -> None:
    worker = Worker(store)
    worker.run(Create("x", id="c0"))
    lease = window(backlog_end=1)
    received = receive(intake, lease, body(Create("x", id="c0")))
    entries, _ = worker.processor.take_stored(received.commands)
    lease.close()
    assert worker.committer.commit(entries).finished == []
    assert dict(worker.committer.awaiting) == {}


def test_command_of_an_unknown_type_holds_back_its_aggregate_only_and_in_order(intake: Intake, clock: Clock) -> None:
    lease = window()
    received = receive(
        intake,
        lease,
        body(Add("x", id="before")),
        unknown("races.NotYet"),
        body(Add("x", id="behind-1")),
        body(Add("y", id="other")),
    )
    assert ids(received) == ["before", "other"]
    assert ids(receive(intake, lease, body(Add("x", id="behind-2")))) == []
    assert intake.delayed == 3
    assert intake.retry()[:2] == ([], [])
    clock.now += DELAYS[0]
    assert intake.retry().commands == []  # tried and still unknown
    clock.now += DELAYS[0]
    assert intake.retry().commands == []  # not due: the second delay is longer

    class NotYet(Command):
        type_name = "races.NotYet"

    clock.now += DELAYS[1]
    arrived = intake.retry().commands
    assert [envelope.id for envelope in arrived] == ["u", "behind-1", "behind-2"]
    assert isinstance(arrived[0].command, NotYet)
    assert [envelope.offset for envelope in arrived] == [1, 2, 4]
    assert intake.delayed == 0


def test_command_of_a_newer_schema_waits_as_one_of_an_unknown_type_does(
    intake: Intake, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Add("x", id="newer")
    with monkeypatch.context() as sender:
        sender.setattr(Add, "schema_version", 2)
        newer = body(command)
    assert receive(intake, window(), newer, body(Add("x", id="behind"))).commands == []
    assert intake.delayed == 2
    monkeypatch.setattr(Add, "schema_version", 2)  # the deploy arrives
    clock.now += DELAYS[0]
    received = intake.retry()
    assert ids(received) == ["newer", "behind"]
    assert received.commands[0].command == command


@pytest.mark.parametrize("version", [2, 10**5000], ids=["next", "huge"])
def test_command_whose_schema_stays_newer_fails(intake: Intake, clock: Clock, version: int) -> None:
    lease = window()
    receive(intake, lease, pack((1, "races.Add", "newer", "x", {"unknown": 1}, b"", "inbox", version)))
    for delay in DELAYS:
        clock.now += delay
        received = intake.retry()
    (failed,) = received.commands
    assert isinstance(failed.failed, UnknownMessageType)
    assert failed.reply_to == "inbox"


@pytest.mark.parametrize("rest", [(None,), ("2",), (2.0,), (1, 1)])
def test_command_with_a_strange_schema_version_is_broken(intake: Intake, rest: tuple[object, ...]) -> None:
    received = receive(intake, window(), pack((1, "races.Add", "c", "x", {}, b"", "inbox", *rest)))
    assert received.commands == []
    assert len(received.finished) == 1


def test_command_that_stays_unknown_fails_and_what_is_behind_it_goes_on(
    intake: Intake, clock: Clock, store: CountsQueries
) -> None:
    lease = window()
    receive(intake, lease, unknown("races.Never"), body(Create("x", id="made")))
    received = Received([], [])
    for delay in DELAYS:
        assert received.commands == []
        clock.now += delay
        received = intake.retry()
    first, second = received.commands
    assert isinstance(first.failed, UnknownMessageType)
    assert first.body == unknown("races.Never")
    assert (second.id, second.failed) == ("made", None)
    worker = Worker(store)
    worker.envelopes.extend(received.commands)
    worker.settle()
    assert worker.answers["u"].error_type == "UnknownMessageType"
    assert worker.answers["made"].version == 1


def test_second_unknown_command_behind_the_first_gets_delays_of_its_own(intake: Intake, clock: Clock) -> None:
    receive(intake, window(), unknown("races.Never", id="1"), unknown("races.Never", id="2"))
    arrived: list[tuple[str, float]] = []
    start = clock.now
    while intake.delayed:
        clock.now += 1.0
        arrived += [(envelope.id, clock.now - start) for envelope in intake.retry().commands]
    assert arrived == [("1", 6.0), ("2", 12.0)]


def test_what_was_delayed_of_a_lost_lease_is_dropped_and_the_new_leases_copy_goes_on(
    intake: Intake, clock: Clock
) -> None:
    lost, fresh = window(), window()
    receive(intake, lost, unknown("races.Never", id="lost"), body(Add("x", id="lost-2")))
    lost.close()
    receive(intake, fresh, body(Add("x", id="fresh")))
    clock.now += DELAYS[0]
    (envelope,) = intake.retry().commands
    assert (envelope.id, envelope.window) == ("fresh", fresh)


@pytest.mark.parametrize(
    ("garbage", "answered"),
    [
        (b"", ("", "")),
        (b"\xc1", ("", "")),
        (pack([]), ("", "")),
        (pack(10**5000), ("", "")),
        (pack((1, "races.Add", "c", "", {}, b"", "inbox")), ("c", "inbox")),
        (pack((1, "races.Add", "c", "x\0", {}, b"", "inbox")), ("c", "inbox")),
        (pack((9, "races.Add", "c", "x", {}, b"", "inbox")), ("c", "inbox")),
        (pack((10**5000, "races.Add", "c", "x", {}, b"", "inbox")), ("c", "inbox")),
        (pack((1, "races.Add", 10**5000, "x", {}, b"", "inbox")), ("", "inbox")),
        (pack((1, None, "c", "x", [], b"", 5)), ("c", "")),
    ],
    ids=range(10),
)
def test_garbage_goes_to_the_publisher_with_what_can_be_made_out(
    intake: Intake, garbage: bytes, answered: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    lease = window(backlog_end=2)
    received = receive(intake, lease, garbage, body(Add("x", id="good")))
    (broken,) = received.finished
    assert ids(received) == ["good"]
    assert broken.envelope.body == garbage
    assert (answer_of(broken).command_id, broken.envelope.reply_to) == answered
    assert "message at commands/3, offset 0" in caplog.text


@pytest.mark.parametrize(
    "fields", [{"amount": "1"}, {"amount": 1.0}, {"amount": None}, {"n": 1}, {10**5000: 1}], ids=range(5)
)
def test_field_of_the_wrong_type_fails_in_its_place(intake: Intake, fields: dict[Any, Any]) -> None:
    received = receive(intake, window(), pack((1, "races.Add", "c", "x", fields, b"", "")), body(Add("x", id="next")))
    assert ids(received) == ["c", "next"]
    assert isinstance(received.commands[0].failed, InvalidField)
    assert received.commands[0].body is not None


def test_condemned_position_is_never_handled_and_a_suspect_is_marked(intake: Intake, store: CountsQueries) -> None:
    lease = window()
    intake.suspect(3, {1: 3, 2: 2})
    received = receive(intake, lease, *(body(Add("x", id=f"{n}")) for n in range(4)))
    assert [type(envelope.failed) for envelope in received.commands] == [
        type(None), CommandKilledWorker, type(None), type(None),
    ]  # fmt: skip
    assert [envelope.suspect for envelope in received.commands] == [False, False, True, False]
    assert received.commands[1].body is not None
    worker = Worker(store)
    worker.run(Create("x"))
    worker.envelopes.extend(received.commands)
    worker.settle()
    assert worker.answers["1"].error_type == "CommandKilledWorker"
    assert worker.answers["3"].value == 3


def test_deaths_are_forgotten_when_the_queue_is_acquired_without_any(intake: Intake) -> None:
    intake.suspect(3, {0: 3})
    intake.suspect(3, {})
    (envelope,) = receive(intake, window(), body(Add("x"))).commands
    assert envelope.failed is None
    assert not envelope.suspect


def test_condemned_command_that_is_stored_counts_as_what_it_is(intake: Intake, store: CountsQueries) -> None:
    worker = Worker(store)
    worker.run(Create("x", id="c0"))
    intake.suspect(3, {0: 3})
    received = receive(intake, window(backlog_end=1), body(Create("x", id="c0")))
    stored, left = worker.processor.take_stored(received.commands)
    assert (len(stored), left) == (1, [])


def test_command_of_an_older_version_and_name_is_upcast_or_else_fails_at_once(intake: Intake) -> None:
    class Raise(Command):
        type_name = "races.Raise"
        aliases = ("races.Lift",)
        schema_version = 2
        amount: int

    @upcasts(Raise, from_version=1)
    def as_number(fields: dict[str, Any]) -> dict[str, Any]:
        return {"amount": int(fields["amount"])}

    def sent(id: str, amount: str) -> bytes:
        return pack((1, "races.Lift", id, "x", {"amount": amount}, b"", "inbox"))

    read, failed = receive(intake, window(), sent("read", "3"), sent("failed", "many")).commands
    assert read.command == Raise("x", id="read", amount=3)
    assert isinstance(failed.failed, MalformedMessage)
    assert (failed.reply_to, failed.body) == ("inbox", sent("failed", "many"))


def test_what_waits_in_a_queue_that_was_lost_counts_no_more(intake: Intake) -> None:
    lost, kept = window(), window(queue=4)
    for lease in (lost, kept):
        receive(intake, lease, unknown("races.NeverYet", f"x{lease.queue}"), body(Add(f"x{lease.queue}")))
    assert (intake.delayed, intake.delayed_in(lost)) == (4, 2)
    lost.close()
    assert (intake.delayed, intake.delayed_in(kept)) == (2, 2)
