"""Process managers with a state: each event changes the state of its key, and sends commands, exactly once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now

from enode_django import Command, CommandCrashed, DomainEvent, handles
from enode_django.bus.command_bus import outbox_rows
from enode_django.concurrency.in_flight import NOTHING_IN_FLIGHT, InFlightMarker
from enode_django.eventing import checkpoints, process_rows, processes
from enode_django.eventing.event_subscription import EventSubscription
from enode_django.eventing.in_flight import InFlight
from enode_django.eventing.registry import subscribers
from enode_django.eventing.state_types import plain_state
from enode_django.eventing.unparking import retry_parked
from enode_django.eventstore.base import StreamRecord
from enode_django.models import ProcessState, ScheduledCommand
from enode_django.operating.correcting import handled_before
from enode_django.operating.corrections import correct
from tests.following.domain import Behaviour
from tests.following.harness import Harness, stream_of
from tests.following.processes import (
    Finished,
    NotPaid,
    Order,
    Paid,
    Patience,
    Payment,
    Placed,
    Remind,
    Sale,
    Sales,
    Ship,
    Wired,
)


def order(harness: Harness, id: str, *events: DomainEvent, after: int = 0) -> list[StreamRecord]:
    return _stored(harness, Order, id, events, after)


def payment(harness: Harness, id: str, *events: DomainEvent, after: int = 0) -> list[StreamRecord]:
    return _stored(harness, Payment, id, events, after)


def _stored(harness: Harness, kind: type, id: str, events: Sequence[DomainEvent], after: int) -> list[StreamRecord]:
    records = [stream_of(id, version, [event], kind) for version, event in enumerate(events, after + 1)]
    harness.store.append(records)
    return records


def subscription(harness: Harness, attempts: int = 3) -> EventSubscription:
    return harness.subscription(subscribers.instance(Sales), attempts=attempts)


def row(key: str = "o1") -> ProcessState:
    return ProcessState.objects.get(subscriber="processes.sales", key=key)


def state(key: str = "o1") -> dict[str, object]:
    return plain_state(bytes(row(key).state))


def test_the_events_of_several_aggregates_change_the_state_of_their_key(harness: Harness) -> None:
    harness.deliver(
        subscription(harness),
        [
            *order(harness, "o1", Placed(price=10)),
            *payment(harness, "p1", Paid(order="o1", amount=4)),
            *payment(harness, "p2", Paid(order="o1", amount=6)),
        ],
    )
    assert state() == {"price": 10, "paid": 10, "payments": ["p1/1/0", "p2/1/0"], "rate": 1}
    assert [(type(one), one.aggregate_root_id, one.paid) for one in harness.sent] == [(Ship, "parcel-o1", 10)]  # type: ignore[attr-defined]
    assert row().version == 3
    assert row().started_at is not None
    assert row().ended_at is None
    assert not harness.window.unfinished


def test_an_event_before_the_beginning_waits_beside_its_key_and_its_aggregate_goes_on(harness: Harness) -> None:
    early = payment(harness, "p1", Paid(order="o1", amount=4), Paid(order="o2", amount=1), Paid(order="o1", amount=6))
    going = subscription(harness)
    harness.deliver(going, early)
    assert harness.sent == []
    assert harness.checkpoint("processes.sales", "p1") == 3
    assert row().started_at is None
    assert [one[0] for one in row().waiting] == ["p1/1/0", "p1/3/0"]
    harness.deliver(going, order(harness, "o1", Placed(price=10)))
    assert state()["payments"] == ["p1/1/0", "p1/3/0"]
    assert row().waiting == []
    (command,) = harness.sent
    assert command.paid == 10  # type: ignore[attr-defined]
    assert harness.metadata[0].causation_id == "p1/3/0"
    assert row("o2").started_at is None


def test_a_waiting_event_that_fails_is_named_by_the_error_of_the_beginning(
    harness: Harness, behaviour: Behaviour
) -> None:
    """The aggregate of the beginning is parked, though another one's event is to be mended."""
    going = subscription(harness, attempts=1)
    harness.deliver(going, payment(harness, "p1", Paid(order="o1", amount=4)))
    behaviour.failing["p1"] = 1
    harness.deliver(going, order(harness, "o1", Placed(price=4)))
    (parked,) = harness.parked("processes.sales")
    assert (parked.aggregate_root_id, parked.version) == ("o1", 1)
    assert "told to fail at p1/1/0" in parked.error
    assert "p1/1/0 has waited for the process 'o1' to begin" in parked.error
    assert retry_parked(going, "o1") is None
    assert state()["payments"] == ["p1/1/0"]


def test_a_waiting_event_is_handled_as_corrected_by_the_process_that_it_waits_for(harness: Harness) -> None:
    going = subscription(harness)
    harness.deliver(going, payment(harness, "p1", Paid(order="o1", amount=4)))
    changed = {"type": "processes.Paid", "schema_version": 1, "fields": {"order": "o2", "amount": 10}}
    with subscribers.only(Sales):
        (told,) = handled_before("p1", 1)
        correct(harness.store, "p1", 1, [changed], by="ann", reason="a typing error", last=0)
    assert told.endswith("cannot be taken back; while the event waits for its process, it is read as corrected")
    harness.deliver(going, order(harness, "o1", Placed(price=20)))
    assert (state()["paid"], state()["payments"]) == (10, ["p1/1/0"])


def test_events_before_and_with_the_beginning_in_one_batch_are_handled_once_each(harness: Harness) -> None:
    early = payment(harness, "p1", Paid(order="o1", amount=4), Paid(order="o1", amount=6))
    harness.deliver(subscription(harness), [*early, *order(harness, "o1", Placed(price=10))])
    assert state()["payments"] == ["p1/1/0", "p1/2/0"]
    assert row().version == 3


def test_events_of_one_command_that_have_waited_are_handled_once_each(harness: Harness) -> None:
    paid = [Paid(order="o1", amount=4), Paid(order="o2", amount=1), Paid(order="o1", amount=6)]
    record = stream_of("p1", 1, paid, Payment)
    harness.store.append([record])
    going = subscription(harness)
    harness.deliver(going, [record])
    harness.deliver(going, order(harness, "o1", Placed(price=10)))
    assert state()["payments"] == ["p1/1/0", "p1/1/2"]


def test_a_redelivered_event_changes_nothing_and_sends_nothing(harness: Harness) -> None:
    records = [*order(harness, "o1", Placed(price=1)), *payment(harness, "p1", Paid(order="o1", amount=4))]
    for _ in range(2):
        harness.deliver(subscription(harness), records)
    assert state()["paid"] == 4
    assert len(harness.sent) == 1


def test_a_crash_before_the_commit_leaves_nothing_and_the_second_run_sends_the_same(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may die before and after each step of the transaction."""
    records = [*order(harness, "o1", Placed(price=1)), *payment(harness, "p1", Paid(order="o1", amount=4))]
    refusal = _refused(harness, "o1")
    kept: list[str] = []
    for module, step in [(process_rows, "lock"), (process_rows, "save"), (checkpoints, "save_refusals")]:
        for before in (True, False):
            _die_at(monkeypatch, module, step, before=before)
            with pytest.raises(_Death):
                harness.deliver(subscription(harness), [*records, refusal])
            monkeypatch.undo()
            kept += [command.id for command in harness.sent]
            assert not ProcessState.objects.exists()
            assert harness.checkpoint("processes.sales", "p1") is None
    assert kept == [], "commands are kept last"
    _die_at(monkeypatch, harness, "_send", before=False)
    with pytest.raises(_Death):
        harness.deliver(subscription(harness), [*records, refusal])
    monkeypatch.undo()
    assert not ProcessState.objects.exists()
    first = [command.id for command in harness.sent]
    assert len(first) == 2
    harness.deliver(subscription(harness), [*records, refusal])
    assert [command.id for command in harness.sent] == first * 2
    assert (state()["paid"], row().version) == (4, 3)


class _Death(BaseException):
    """The end of a worker: no code of the package catches it."""


def _die_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, before: bool) -> None:
    real = getattr(owner, name)

    def dies(*arguments: Any) -> None:
        if not before:
            real(*arguments)
        raise _Death

    monkeypatch.setattr(owner, name, dies)


def _refused(harness: Harness, key: str | None, id: str = "p9") -> StreamRecord:
    return harness.refused(id, NotPaid("no", order=key), kind="processes.Payment")


def test_a_refusal_changes_the_state_of_its_key_once(harness: Harness) -> None:
    going = subscription(harness)
    harness.deliver(going, order(harness, "o1", Placed(price=9)))
    refusal = _refused(harness, "o1")
    for _ in range(2):
        harness.deliver(going, [refusal])
    assert [(type(one), one.why) for one in harness.sent] == [(Remind, "0 of 9")]  # type: ignore[attr-defined]
    assert row().version == 2


def test_a_refusal_may_come_before_the_beginning(harness: Harness) -> None:
    going = subscription(harness)
    harness.deliver(going, [_refused(harness, "o1")])
    assert harness.sent == []
    harness.deliver(going, order(harness, "o1", Placed(price=9)))
    assert [one.why for one in harness.sent] == ["0 of 9"]  # type: ignore[attr-defined]


def test_none_as_a_key_says_that_no_process_is_concerned(harness: Harness) -> None:
    harness.deliver(subscription(harness), [_refused(harness, None)])
    assert not ProcessState.objects.exists()
    assert not harness.window.unfinished


def test_a_crash_of_its_command_comes_with_the_state(harness: Harness) -> None:
    going = subscription(harness)
    harness.deliver(going, order(harness, "o1", Placed(price=9)))
    crash = CommandCrashed.of(Ship("parcel-o1", paid=1), KeyError("truck"), sender="processes.sales")
    other = CommandCrashed.of(Ship("parcel-o1", paid=1), KeyError("truck"), sender="another")
    harness.deliver(going, [harness.refused("parcel-o1", one, kind="processes.Order") for one in (crash, other)])
    assert [one.why for one in harness.sent] == ["KeyError after 0"]  # type: ignore[attr-defined]


def test_an_ended_process_passes_over_what_comes_late_and_begins_no_more(harness: Harness) -> None:
    going = subscription(harness)
    harness.deliver(going, order(harness, "o1", Placed(price=1), Finished(), Placed(price=2)))
    harness.deliver(going, payment(harness, "p1", Paid(order="o1", amount=4)))
    assert (state()["price"], row().version, row().waiting) == (1, 2, [])
    assert row().ended_at is not None
    assert harness.sent == []
    assert harness.checkpoint("processes.sales", "o1") == 3


def test_a_crash_after_the_end_is_an_error_in_the_log(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """It is no dead letter: without this line nobody would learn that the effect of the command is missing."""
    going = subscription(harness)
    harness.deliver(going, order(harness, "o1", Placed(price=1), Finished()))
    crash = CommandCrashed.of(Ship("parcel-o1", paid=1), KeyError("truck"), sender="processes.sales")
    harness.deliver(going, [harness.refused("parcel-o1", crash, kind="processes.Order")])
    (error,) = [one.message for one in caplog.records if one.levelname == "ERROR"]
    assert "processes.sales" in error
    assert "processes.Ship" in error
    assert "'o1' has ended" in error
    assert harness.sent == []


def test_a_crash_without_a_key_is_an_error_in_the_log(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """As from a function that looks for a field of events. Without this line the process would wait in silence."""
    going = subscription(harness)
    harness.deliver(going, order(harness, "o1", Placed(price=1)))
    crash = CommandCrashed.of(Ship("parcel-", paid=1), KeyError("truck"), sender="processes.sales")
    harness.deliver(going, [harness.refused("parcel-", crash, kind="processes.Order")])
    (error,) = [one.message for one in caplog.records if one.levelname == "ERROR"]
    assert "processes.sales passes over the crash of processes.Ship" in error
    assert "its key is None; take the key from crash.command" in error
    assert harness.sent == []
    assert not harness.window.unfinished


def test_an_end_may_come_before_the_beginning(harness: Harness) -> None:
    """Here the subscriber has skipped the beginning at first, as when its aggregate was parked."""
    going = subscription(harness)
    early = [*payment(harness, "p1", Paid(order="o1", amount=4)), *order(harness, "o1", Placed(price=4), Finished())]
    harness.deliver(going, early)
    assert [one.paid for one in harness.sent] == [4]  # type: ignore[attr-defined]
    assert row().ended_at is not None


def test_a_failing_handler_stores_nothing_of_its_event_and_the_other_keys_go_on(
    harness: Harness, behaviour: Behaviour
) -> None:
    going = subscription(harness, attempts=1)
    orders = [r for key in ("o1", "o2") for r in order(harness, key, Placed(price=1))]
    bad = payment(harness, "p1", Paid(order="o2", amount=1), Paid(order="o1", amount=5))
    harness.deliver(going, orders)
    behaviour.failing["p1"] = 1
    harness.deliver(going, [*bad, *payment(harness, "p2", Paid(order="o1", amount=7))])
    assert (state("o1")["payments"], state("o2")["payments"]) == (["p2/1/0"], [])
    (parked,) = harness.parked("processes.sales")
    assert (parked.aggregate_root_id, parked.version, parked.error_type) == ("p1", 1, "RuntimeError")
    assert {one.aggregate_root_id for one in harness.sent} == {"parcel-o1"}
    assert retry_parked(going, "p1") is None
    assert (state("o1")["payments"], state("o2")["payments"]) == (["p2/1/0", "p1/2/0"], ["p1/1/0"])


def test_what_a_handler_did_to_the_state_before_it_failed_is_gone(harness: Harness, behaviour: Behaviour) -> None:
    """`paid` changes the state, and then fails: the batch goes on with the state from before."""
    going = subscription(harness)
    harness.deliver(going, order(harness, "o1", Placed(price=100)))
    behaviour.failing["p1"] = 1
    records = [*payment(harness, "p1", Paid(order="o1", amount=5)), *payment(harness, "p2", Paid(order="o1", amount=7))]
    harness.deliver(going, records)
    assert state()["paid"] == 7
    harness.clock.now += 100
    going.retry_due()
    assert (state()["paid"], state()["payments"]) == (12, ["p2/1/0", "p1/1/0"])


@pytest.mark.parametrize("is_refusal", [True, False])
def test_a_failing_query_of_a_handler_is_the_failure_of_its_event(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch, is_refusal: bool
) -> None:
    """It breaks the transaction that states and checkpoints share."""
    going = subscription(harness, attempts=1)
    harness.deliver(going, order(harness, "o1", Placed(price=9)))
    monkeypatch.setattr(behaviour, "handle", _divide_by_zero)
    bad = [_refused(harness, "o1", "p1")] if is_refusal else payment(harness, "p1", Paid(order="o1", amount=4))
    harness.deliver(going, bad)
    (parked,) = harness.parked("processes.sales")
    assert (parked.aggregate_root_id, parked.version, parked.error_type) == ("p1", bad[0].version, "DataError")
    assert row().version == 1


def _divide_by_zero(message: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


def test_a_command_that_cannot_be_sent_is_the_failure_of_its_refusal(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event of the same aggregate, in the same batch, is handled."""
    monkeypatch.setattr(harness, "_send", outbox_rows)
    going = subscription(harness, attempts=1)
    harness.deliver(going, order(harness, "o1", Placed(price=10**1_001)))
    refusal = _refused(harness, "o1", "p1")
    monkeypatch.setattr(Sales, "not_paid", _ship_too_much)
    harness.deliver(going, [*payment(harness, "p1", Paid(order="o1", amount=4)), refusal])
    (parked,) = harness.parked("processes.sales")
    assert (parked.version, parked.command_id, parked.error_type) == (None, refusal.command_id, "InvalidField")
    assert (state()["paid"], row().version) == (4, 2)


@handles(NotPaid, key=lambda refusal: refusal.order)
def _ship_too_much(manager: Sales, sale: Sale, refusal: NotPaid) -> Iterator[Command]:
    yield Ship("parcel-o1", paid=sale.price)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Wired(order=7), "the key function of processes.sales returns 7 for Wired(order=7); let it return the key"),
        (Paid(order="", amount=1), "the key function of processes.sales returns '' for"),
    ],
)
def test_a_key_that_is_none_parks_the_aggregate_with_a_clear_error(
    harness: Harness, event: DomainEvent, why: str
) -> None:
    good = payment(harness, "p1", Paid(order="o1", amount=5))
    bad = payment(harness, "p1", event, after=1)
    harness.deliver(subscription(harness, attempts=1), [*order(harness, "o1", Placed(price=1)), *good, *bad])
    assert state()["paid"] == 5, "what came before is handled"
    (parked,) = harness.parked("processes.sales")
    assert (parked.version, parked.error_type) == (2, "InvalidId")
    assert why in parked.error


def test_too_many_events_that_wait_in_vain_park_their_aggregate(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MOST_WAITING", 2)
    events = [Paid(order="o1", amount=n) for n in range(4)]
    going = subscription(harness, attempts=1)
    harness.deliver(going, payment(harness, "p1", *events))
    (parked,) = harness.parked("processes.sales")
    assert (parked.version, parked.error_type) == (3, "TooManyWaiting")
    assert "do the handlers marked with @starts use the same keys?" in parked.error
    harness.deliver(going, order(harness, "o1", Placed(price=100)))
    assert retry_parked(going, "p1") is None
    assert state()["payments"] == ["p1/1/0", "p1/2/0", "p1/3/0", "p1/4/0"]


def test_a_waiting_event_that_a_failover_has_erased_is_left_out(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    going = subscription(harness)
    harness.deliver(going, payment(harness, "p1", *(Paid(order="o1", amount=n) for n in (4, 5, 6))))
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")  # the store's rows are protected by triggers
        cursor.execute("DELETE FROM enode_django_eventstream WHERE aggregate_root_id = 'p1' AND version = 2")
        cursor.execute("SET session_replication_role = origin")
    harness.deliver(going, order(harness, "o1", Placed(price=99)))
    assert state()["payments"] == ["p1/1/0", "p1/3/0"]
    assert "p1/2/0 has waited, and is no longer stored" in caplog.text


def test_an_event_that_comes_again_after_a_failover_waits_once(harness: Harness) -> None:
    """Its command was handled again, after the failover had erased what waits."""
    going = subscription(harness)
    early = payment(harness, "p1", Paid(order="o1", amount=4))
    harness.deliver(going, early)
    assert going.runner.processor.take_back({"p1": 0}) is False
    harness.deliver(going, early)
    harness.deliver(going, order(harness, "o1", Placed(price=9)))
    assert state()["payments"] == ["p1/1/0"]


def test_one_that_begins_now_handles_the_later_events_only(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribers.instance(Sales), "start", "now")
    old = order(harness, "o1", Placed(price=1))
    _settle(harness, "o1")
    going = subscription(harness)
    going.runner.processor.subscribe(harness.store)
    later = order(harness, "o1", Placed(price=2), after=1)
    harness.deliver(going, [*old, *later])
    assert (state()["price"], row().version) == (2, 1)


def _settle(harness: Harness, id: str) -> None:
    """Wait until the stored streams are below the shard's position. Open transactions of other sessions delay that."""
    deadline = time.monotonic() + 60
    while not harness.store.heads_before([id], harness.store.position()):
        assert time.monotonic() < deadline, "what was stored does not settle"


def test_what_has_ended_and_what_waits_in_vain_is_kept_for_a_time(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    going = subscription(harness)
    harness.deliver(going, order(harness, "ended", Placed(price=1), Finished()))
    harness.deliver(going, order(harness, "running", Placed(price=1)))
    harness.deliver(going, payment(harness, "p1", Paid(order="unknown", amount=1)))
    processor = going.runner.processor
    processor.tidy()
    assert ProcessState.objects.count() == 3
    ProcessState.objects.update(changed_at=Now() - timedelta(days=31))
    ProcessState.objects.filter(key="ended").update(ended_at=Now() - timedelta(days=31))
    processor.tidy()
    assert list(ProcessState.objects.values_list("key", flat=True)) == ["running"]
    assert "processes.sales drops 1 event that waited for the process 'unknown' to begin" in caplog.text
    assert checkpoints.forget_subscriber("default", "processes.sales") > 0
    assert not ProcessState.objects.exists()


def test_each_event_that_has_waited_has_the_whole_time_limit(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    note: InFlightMarker = [NOTHING_IN_FLIGHT, 0]
    steps: list[int] = []
    monkeypatch.setattr(behaviour, "handle", lambda message: steps.append(note[1]))
    going = harness.subscription(subscribers.instance(Sales), in_flight=InFlight(note))
    harness.deliver(going, payment(harness, "p1", *(Paid(order="o1", amount=1) for _ in range(3))))
    harness.deliver(going, order(harness, "o1", Placed(price=1)))
    assert len(set(steps)) == len(steps) == 4


def test_a_deadline_belongs_to_the_key_and_is_written_with_the_state(harness: Harness, behaviour: Behaviour) -> None:
    going = harness.subscription(subscribers.instance(Patience))
    harness.deliver(going, [record for key in ("o1", "o2") for record in order(harness, key, Placed(price=1))])
    assert waiting_for() == {"o1", "o2"}
    behaviour.failing["p1"] = 1
    payments = payment(harness, "p1", Paid(order="o1", amount=1))
    harness.deliver(going, payments)
    assert waiting_for() == {"o1", "o2"}, "what a failing handler would have cancelled goes on"
    harness.clock.now += 100
    going.retry_due()
    assert waiting_for() == {"o2"}
    assert harness.sent == []


def waiting_for() -> set[str]:
    """Return the aggregates of the commands that wait for their time."""
    return set(ScheduledCommand.objects.values_list("aggregate_root_id", flat=True))


def test_a_renamed_process_manager_keeps_its_states(harness: Harness) -> None:
    harness.deliver(subscription(harness), order(harness, "o1", Placed(price=9)))
    renamed = Sales()
    renamed.name, renamed.aliases = "processes.revenue", ("processes.sales",)
    harness.deliver(harness.subscription(renamed), payment(harness, "p1", Paid(order="o1", amount=4)))
    assert (state()["paid"], row().version) == (4, 2)


def test_a_failover_takes_checkpoints_back_and_leaves_states_as_they_are(harness: Harness) -> None:
    going = subscription(harness)
    harness.deliver(going, order(harness, "o1", Placed(price=9)))
    harness.deliver(going, payment(harness, "p1", Paid(order="o1", amount=4)))
    assert going.runner.processor.take_back({"p1": 0}) is False
    assert harness.checkpoint("processes.sales", "p1") == 0
    assert state()["paid"] == 4
