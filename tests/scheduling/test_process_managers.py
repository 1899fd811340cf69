"""Deadlines of process managers: written with the checkpoint, so that each is set once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management import call_command

from enode_django import CancelDeadline, Command, Deadline, DomainException, ProcessManager, handles, send_command
from enode_django.bus.derived_ids import derived_id
from enode_django.concurrency.backoff import once
from enode_django.conf import conf
from enode_django.eventing.effects import EffectProcessor
from enode_django.eventing.event_subscription import EventSubscription
from enode_django.eventing.process_managers import with_derived_ids
from enode_django.eventing.registry import subscribers
from enode_django.eventing.retry_decisions import RAISE
from enode_django.eventing.runner import Runner
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import ConfigurationError, DefinitionError, InvalidField, MessageTooLarge
from enode_django.ids import new_id
from enode_django.models import Checkpoint, ScheduledCommand
from enode_django.outbox.relay import Relay
from enode_django.outbox.rows import NewRow
from enode_django.runtime import make_transport
from enode_django.scheduling import rows
from enode_django.scheduling.due import DeadlineKey, Due, Scheduled
from enode_django.scheduling.memory import MemorySchedule
from enode_django.serialization.codec import decode_command, encode_refusal, encode_stream
from enode_django.testing import given, inline
from tests.outbox.harness import Harness
from tests.scheduling.domain import (
    PATIENCE,
    CancelCart,
    CartCancelled,
    CartFilled,
    CartPaid,
    FillCart,
    Impatience,
    PayCart,
    RefillCart,
)
from tests.scheduling.test_scheduling import make_due


def stream(version: int, event: CartFilled | CartPaid) -> StreamRecord:
    return StreamRecord(
        "cart", version, new_id(), "scheduling.Cart", "scheduling.Do", datetime.now(UTC), encode_stream([event]), b""
    )


class Following:
    """The process manager on the real database."""

    def __init__(self, manager: type[ProcessManager] = Impatience) -> None:
        self.store = PostgresEventStore()
        self.sent: list[Any] = []
        self.processor = EffectProcessor(subscribers.instance(manager), self.store, self.sent.extend)
        for shard in self.store.shards:
            self.processor.subscribe(shard)
        self.subscription = EventSubscription(Runner(self.processor, once), policy=RAISE, notify=lambda notices: None)

    def handle(self, *records: StreamRecord) -> None:
        self.subscription.follow(list(records))


@pytest.fixture
def following(harness: Harness) -> Following:
    return Following()


def deadlines() -> list[tuple[str, str, str, int]]:
    return [
        (row.subscriber, row.scope, row.name, decode_command(bytes(row.body)).fields["fillings"])
        for row in ScheduledCommand.objects.all()
    ]


FILLED = ("scheduling.impatience", "cart", "payment")


def test_a_deadline_is_set_replaced_and_cancelled(following: Following) -> None:
    records = [stream(1, CartFilled(fillings=1)), stream(2, CartFilled(fillings=2)), stream(3, CartPaid())]
    following.store.append(records)
    following.handle(records[0])
    assert deadlines() == [(*FILLED, 1)]
    row = ScheduledCommand.objects.get()
    assert row.due_at == records[0].created_at + PATIENCE, "the time of the event counts"
    assert row.command_id == derived_id("cart/1/0", "scheduling.impatience", "scheduling.CancelCart", "cart", 1)
    following.handle(records[1])
    assert deadlines() == [(*FILLED, 2)]
    following.handle(records[2])
    assert deadlines() == []
    assert following.sent == []


def test_a_batch_writes_what_is_left_of_it(following: Following) -> None:
    records = [stream(1, CartFilled(fillings=1)), stream(2, CartPaid()), stream(3, CartFilled(fillings=2))]
    following.store.append(records)
    following.handle(*records)
    assert deadlines() == [(*FILLED, 2)]


def test_the_deadlines_of_a_forgotten_process_manager_are_deleted(following: Following, redis_url: str) -> None:
    """Nobody would cancel them any more."""
    records = [stream(1, CartFilled(fillings=1))]
    following.store.append(records)
    following.handle(*records)
    send_command(CancelCart("other", fillings=9), after=timedelta(days=1))
    with closing(make_transport()) as transport:
        transport.create_topic(conf().SUBSCRIBERS.TOPIC, 1)
    with subscribers.only():
        call_command("enode", "forgetsubscriber", "scheduling.impatience", verbosity=0)
    assert deadlines() == [("", "", "", 9)]


def test_deadline_and_checkpoint_are_one_transaction(following: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [stream(1, CartFilled(fillings=1))]
    following.store.append(records)

    class Killed(BaseException):
        pass

    def dies(alias: str, changes: Any) -> None:
        rows.change(alias, changes)
        raise Killed

    following.processor._change_deadlines = dies
    with pytest.raises(Killed):
        following.handle(*records)
    assert (deadlines(), Checkpoint.objects.count()) == ([], 0)
    again = Following()
    again.handle(*records)
    assert (deadlines(), Checkpoint.objects.count()) == ([(*FILLED, 1)], 1)
    again.handle(*records)
    assert deadlines() == [(*FILLED, 1)]


class Haste(ProcessManager):
    """Pays at once, and cancels the cart that was not paid."""

    name = "scheduling.haste"
    abstract = True
    start = "beginning"

    @handles
    def filled(self, event: CartFilled) -> Iterator[Command | Deadline]:
        yield Deadline("payment", CancelCart(event.aggregate_root_id, fillings=event.fillings), after=PATIENCE)
        yield PayCart(event.aggregate_root_id)


def test_a_deadline_is_not_set_if_a_command_of_the_same_event_cannot_be_sent(harness: Harness) -> None:
    """The event has failed, so its checkpoint does not move."""

    def refuse(commands: Any) -> None:
        raise MessageTooLarge("too large")

    following = Following(Haste)
    following.processor.send = refuse
    record = stream(1, CartFilled(fillings=1))
    following.store.append([record])
    with pytest.raises(MessageTooLarge):
        following.handle(record)
    assert deadlines() == []
    following.processor.send = following.sent.extend
    following.handle(record)
    assert (len(following.sent), len(deadlines())) == (1, 1)


class Reminding(ProcessManager):
    """Sends a command with each deadline."""

    name = "scheduling.reminding"
    abstract = True
    start = "beginning"

    @handles
    def filled(self, event: CartFilled) -> Iterator[Command | Deadline]:
        yield Deadline("payment", CancelCart(event.aggregate_root_id, fillings=event.fillings), after=PATIENCE)
        yield RefillCart(event.aggregate_root_id)

    @handles
    def paid(self, event: CartPaid | CartCancelled) -> Iterator[CancelDeadline]:
        yield CancelDeadline("payment")


@pytest.mark.parametrize("others", [1, 2, 3])
def test_a_slow_worker_does_not_set_what_another_one_has_replaced_or_cancelled(harness: Harness, others: int) -> None:
    """Two workers handle the same events: one sweeps, or has lost its lease without knowing it."""
    slow, other = Following(Reminding), Following(Reminding)
    records = [stream(1, CartFilled(fillings=1)), stream(2, CartFilled(fillings=2)), stream(3, CartPaid())]
    slow.store.append(records)

    def send(commands: Any) -> None:
        other.handle(*records[:others])

    slow.processor.send = send
    slow.handle(records[0])
    expected = [] if others == 3 else [("scheduling.reminding", "cart", "payment", others)]
    assert deadlines() == expected
    slow.processor.send = slow.sent.extend
    slow.handle(*records)
    assert deadlines() == []


class NotFilled(DomainException):
    type_name = "scheduling.NotFilled"


class Consoling(ProcessManager):
    """Sends a command with a deadline that follows from a refusal."""

    name = "scheduling.consoling"
    abstract = True
    start = "beginning"

    @handles
    def not_filled(self, refusal: NotFilled) -> Iterator[Command | Deadline]:
        yield Deadline("payment", CancelCart(refusal.aggregate_root_id, fillings=7), after=PATIENCE)
        yield RefillCart(refusal.aggregate_root_id)

    @handles
    def paid(self, event: CartPaid) -> Iterator[CancelDeadline]:
        yield CancelDeadline("payment")


def test_a_slow_worker_does_not_set_what_follows_from_a_refusal_again(harness: Harness) -> None:
    slow, other = Following(Consoling), Following(Consoling)
    refusal = stream(1, CartPaid())._replace(version=None, events=encode_refusal(NotFilled("no")))
    records = [refusal, stream(1, CartPaid())]
    slow.store.append(records)

    def send(commands: Any) -> None:
        other.handle(refusal)
        assert deadlines() == [("scheduling.consoling", "cart", "payment", 7)]
        other.handle(records[1])

    slow.processor.send = send
    slow.handle(refusal)
    assert deadlines() == []


def test_a_worker_that_comes_further_than_another_one_sets_its_deadlines(harness: Harness) -> None:
    fast, other = Following(Reminding), Following(Reminding)
    records = [stream(1, CartFilled(fillings=1)), stream(2, CartFilled(fillings=2))]
    fast.store.append(records)

    def send(commands: Any) -> None:
        other.handle(records[0])

    fast.processor.send = send
    fast.handle(*records)
    assert deadlines() == [("scheduling.reminding", "cart", "payment", 2)]


def test_what_is_handled_again_after_it_was_fired_sends_the_same_command(
    following: Following, harness: Harness
) -> None:
    """This happens after a failover, which sets a checkpoint back."""
    records = [stream(1, CartFilled(fillings=1)), stream(2, CartPaid())]
    following.store.append(records)
    relay = Relay("default", harness.sender(), schedule=rows)
    ids = []
    for _ in range(2):
        following.handle(records[0])
        make_due()
        relay.run()
        ids.append(harness.sent()[-1].id)
        Checkpoint.objects.all().delete()
        following = Following()
    assert len(ids) == 2
    assert len(set(ids)) == 1
    following.handle(*records)
    assert deadlines() == [], "the cancellation is handled again, too"


def test_what_is_sent_again_after_a_failover_of_the_queue_leaves_deadlines_out(following: Following) -> None:
    record = stream(1, CartFilled(fillings=1))
    assert following.processor.commands_of(record) == []


def test_ids_count_the_commands_of_deadlines_with_the_others() -> None:
    command = CancelCart("cart", fillings=1)
    yielded = list(
        with_derived_ids([command, Deadline("a", command, after=1), CancelDeadline("b")], cause="c/1/0", subscriber="s")
    )
    first, second, third = yielded
    assert isinstance(second, Deadline)
    assert first.id != second.command.id
    assert third == CancelDeadline("b")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Deadline("", PayCart("c"), after=1), InvalidField),
        (lambda: Deadline("x" * 256, PayCart("c"), after=1), InvalidField),
        (lambda: Deadline("x", PayCart("c")), InvalidField),
        (lambda: Deadline("x", "command", after=1), DefinitionError),  # type: ignore[arg-type]
        (lambda: CancelDeadline("\0"), InvalidField),
        (lambda: CancelDeadline("\ud800"), InvalidField),
        (lambda: Deadline("\ud800", PayCart("c"), after=1), InvalidField),
        (lambda: list(with_derived_ids(CancelDeadline("x"), cause="c", subscriber="s")), DefinitionError),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_deadline_is_refused(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


# -- in the tests of applications ------------------------------------------------------------------------------------


def test_the_scenario_shows_deadlines() -> None:
    process = given(Impatience, "cart").when(CartFilled(fillings=1))
    process.then(Deadline("payment", CancelCart("cart", fillings=1), after=PATIENCE))
    assert process.commands == []
    process.when(CartPaid()).then(CancelDeadline("payment"))
    with pytest.raises(AssertionError, match="expected the commands"):
        process.then_nothing()


def test_inline_turns_the_clock_by_hand() -> None:
    with inline(MemoryEventStore(), followed_by=[Impatience]) as bus:
        send_command(FillCart("cart"))
        bus.advance(minutes=9)
        send_command(RefillCart("cart"))
        bus.advance(minutes=9, seconds=59)
        assert len(bus.results) == 2
        bus.advance(timedelta(seconds=1))
        assert [type(event).__name__ for event in bus.events] == ["CartFilled", "CartFilled", "CartCancelled"]
        send_command(FillCart("other"))
        send_command(PayCart("other"))
        bus.advance(days=1)
        assert list(bus.scheduled) == []
        assert len(bus.results) == 5


def test_inline_executes_what_is_due_at_its_time_and_in_order() -> None:
    with inline(MemoryEventStore()) as bus:
        now = bus.scheduled.now
        send_command(PayCart("cart"), after=20)
        send_command(FillCart("cart"), at=now + timedelta(seconds=10))
        assert [at - now for at, _ in bus.scheduled] == [timedelta(seconds=10), timedelta(seconds=20)]
        bus.advance(seconds=20)
        assert [type(event).__name__ for event in bus.events] == ["CartFilled", "CartPaid"]
        assert bus.scheduled.now == now + timedelta(seconds=20)


def test_inline_counts_the_hours_that_pass_while_the_clocks_of_a_zone_are_set_back() -> None:
    first = datetime(2026, 10, 25, 2, 55, tzinfo=ZoneInfo("Europe/Berlin"))
    with inline(MemoryEventStore(), followed_by=[Impatience]) as bus:
        bus.scheduled.now = datetime(2026, 10, 25, tzinfo=UTC)
        send_command(PayCart("paid"), at=first.replace(minute=2, fold=1))
        for cart in ("paid", "left"):
            send_command(FillCart(cart), at=first)
        bus.advance(minutes=65)
        happened = [(type(event).__name__, event.aggregate_root_id) for event in bus.events]
        assert happened[2:] == [("CartPaid", "paid"), ("CartCancelled", "left")]
        assert bus.scheduled.now == datetime(2026, 10, 25, 1, 5, tzinfo=UTC)


def test_command_that_is_late_does_not_turn_the_clock_back() -> None:
    schedule = MemorySchedule()
    now = schedule.now
    schedule.add(NewRow("a", "late", b""), Due(now - timedelta(days=1)))
    late = schedule.next_due(now)
    assert late is not None
    assert (late.command_id, schedule.now) == ("late", now)


@pytest.mark.django_db
def test_deadlines_that_are_due_together_have_the_same_order_in_memory_and_in_the_database() -> None:
    schedule = MemorySchedule()
    due = Due(schedule.now + timedelta(days=1))
    for names in (["sent"], ["paid", "asked"], ["sent"]):
        changes = {DeadlineKey("s", "a", name): Scheduled(NewRow("a", name, b""), due) for name in names}
        schedule.change(changes)
        rows.change("default", changes)
    stored = ScheduledCommand.objects.order_by("due_at", "id").values_list("command_id", flat=True)
    assert [command.command_id for _, command in schedule] == [*stored] == ["sent", "asked", "paid"]


@pytest.mark.django_db
def test_inline_with_a_database_keeps_deadlines_in_memory() -> None:
    with inline(followed_by=[Impatience]) as bus:
        send_command(FillCart("cart"))
        assert ScheduledCommand.objects.count() == 0
        bus.advance(minutes=10)
        assert [type(event).__name__ for event in bus.events] == ["CartFilled", "CartCancelled"]


def test_without_a_database_a_deadline_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from enode_django.immediate.bus import ImmediateCommandBus
    from enode_django.immediate.memory import MemorySubscribers
    from enode_django.outbox import rows as outbox

    monkeypatch.setattr(outbox, "keeps_in_memory", lambda: True)
    bus = ImmediateCommandBus(MemoryEventStore(), MemorySubscribers)
    with pytest.raises(ConfigurationError, match="no database is configured"):
        bus.change_deadlines("default", {rows.DeadlineKey("s", "a", "n"): None})
