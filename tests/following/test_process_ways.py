"""The same process by each way that events take: in a scenario, in memory, inline, without a queue, and with one."""

from __future__ import annotations

from contextlib import closing

import pytest
from django.db import connection, transaction
from django.test import TestCase, override_settings

from enode_django import CancelDeadline, Deadline, try_command
from enode_django.conf.groups import IMMEDIATE
from enode_django.eventing.event_subscription import EventSubscription
from enode_django.eventing.registry import subscribers
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import DefinitionError
from enode_django.immediate import catch_up
from enode_django.models import EventStream, OutboxCommand, ProcessState
from enode_django.runtime import close_bus, make_store, make_subscription, make_transport, use_bus
from enode_django.serialization.codec import decode_command
from enode_django.testing import given, inline
from tests.following.auctions import (
    Auction,
    Auctions,
    Bid,
    BidMade,
    BidRefused,
    CloseLot,
    LotClosed,
    LotOpened,
    OpenLot,
)
from tests.following.processes import Paid, Patience, Placed, Remind, Sales, Ship
from tests.outbox.harness import Harness as OutboxHarness

CLOSED = LotClosed(winner="bob", bids=3)


def bid_three_times() -> None:
    """Bid once before the lot is opened, once with an amount that is refused, and once with success."""
    try_command(Bid("ann", lot="lot", amount=4))
    try_command(OpenLot("lot"))
    try_command(Bid("cid", lot="lot", amount=0))
    try_command(Bid("bob", lot="lot", amount=5))


# -- scenarios ------------------------------------------------------------------------------------------------------


def test_a_scenario_shows_state_and_commands() -> None:
    auction = given(Auctions, "lot", LotOpened()).then_state(Auction()).then_nothing()
    auction.when(BidMade(lot="lot", amount=4), of="ann").then_state(Auction(highest=4, winner="ann", bids=1))
    auction.when(BidRefused("bid more", lot="lot"), of="cid").then_nothing()
    auction.when(BidMade(lot="lot", amount=5), of="bob").then(CloseLot("lot", winner="bob", bids=3))
    auction.when(CLOSED).then_ended()
    auction.when(BidMade(lot="lot", amount=6), of="ann").then_nothing().then_ended()
    assert auction.state == Auction(highest=5, winner="bob", bids=3)


def test_in_a_scenario_an_early_event_waits() -> None:
    auction = given(Auctions, "lot").when(BidMade(lot="lot", amount=4), of="ann").then_waits().then_state(None)
    auction.when(LotOpened()).then_state(Auction(highest=4, winner="ann", bids=1))


def test_a_scenario_shows_deadlines() -> None:
    reminder = Remind("o1", why="not paid")
    scenario = given(Patience, "o1").when(Placed(price=1)).then(Deadline("paid", reminder, after=3600))
    scenario.when(Paid(order="o1", amount=1), of="p1").then(CancelDeadline("paid")).then_ended()


def test_a_scenario_delivers_the_crash_of_a_command() -> None:
    sale = given(Sales, "o1", Placed(price=9)).when_crashed(Ship("parcel-o1", paid=1), KeyError("truck"))
    sale.then(Remind("clerk", why="KeyError after 0"))
    with pytest.raises(
        DefinitionError, match=r"processes.sales handles no crash of Remind, .* @handles_crash\(Remind\)"
    ):
        sale.when_crashed(Remind("clerk", why="late"), KeyError("paper"))


def test_a_scenario_does_not_deliver_a_refusal_as_a_crash() -> None:
    sale = given(Sales, "o1", Placed(price=9))
    with pytest.raises(DefinitionError, match=r"BidRefused\(.*\) refuses the command, .* no crash.*when\(.*, of="):
        sale.when_crashed(Ship("parcel-o1", paid=1), BidRefused("bid more", lot="lot"))


def test_a_scenario_says_that_a_crash_has_no_key() -> None:
    sale = given(Sales, "o1", Placed(price=9)).when_crashed(Ship("parcel-", paid=1), KeyError("truck"))
    told = r"Remind.*, got \[\]; it concerns no process: nothing handles it, or its key is None"
    with pytest.raises(AssertionError, match=told):
        sale.then(Remind("clerk", why="KeyError after 0"))
    with pytest.raises(AssertionError, match="expected the process to have ended; it concerns no process"):
        sale.then_ended()


def test_a_scenario_names_what_it_has_got_instead() -> None:
    auction = given(Auctions, "lot", LotOpened())
    with pytest.raises(AssertionError, match=r"expected the state None, got Auction\(highest=0"):
        auction.then_state(None)
    with pytest.raises(AssertionError, match="expected the process to have ended; the state is Auction"):
        auction.then_ended()
    with pytest.raises(AssertionError, match="expected the event to wait for its process to begin"):
        auction.then_waits()
    with pytest.raises(AssertionError, match=r"got \[\]; the state is Auction"):
        auction.then(CloseLot("lot", winner="", bids=3))


def test_a_scenario_says_that_the_process_has_ended_or_not_begun() -> None:
    ended = given(Patience, "o1", Placed(price=1)).when(Paid(order="o1", amount=1), of="p1").then_ended()
    ended.when(Paid(order="o1", amount=1), of="p2")
    with pytest.raises(
        AssertionError, match=r"got \[\]; the process 'o1' had ended before, and passes over what comes"
    ):
        ended.then(CancelDeadline("paid"))
    early = given(Patience, "o1", Placed(price=1)).when(Paid(order="o9", amount=1), of="p1")
    with pytest.raises(AssertionError, match=r"got \[\]; the process 'o9' has not begun, and the event waits for it"):
        early.then(CancelDeadline("paid"))


# -- in the sender's process ----------------------------------------------------------------------------------------


def test_without_a_database_the_states_are_in_memory() -> None:
    with inline(MemoryEventStore(), followed_by=[Auctions]) as bus:
        bid_three_times()
    assert bus.events[-1] == CLOSED


def test_in_memory_a_refusal_counts_once_however_often_its_command_is_sent() -> None:
    refused = Bid("cid", lot="lot", amount=0)
    with inline(MemoryEventStore(), followed_by=[Auctions]) as bus:
        for command in (OpenLot("lot"), refused, refused, refused):
            try_command(command)
        assert bus.events == [LotOpened()]
        try_command(Bid("bob", lot="lot", amount=5))
        try_command(Bid("ann", lot="lot", amount=4))
    assert bus.events[-1] == CLOSED


class Inline(TestCase):
    """A test case never commits: the commands are handled in its transaction all the same."""

    def test_a_process_goes_its_way(self) -> None:
        with inline(followed_by=[Auctions]) as bus:
            bid_three_times()
        assert bus.events[-1] == CLOSED
        row = ProcessState.objects.get(key="lot")
        assert (row.version, row.waiting) == (5, [])
        assert row.ended_at is not None


@pytest.fixture
def immediate(transactional_db: None) -> object:
    close_bus()
    with override_settings(ENODE={"QUEUE": {"BACKEND": IMMEDIATE}}), subscribers.only(Auctions):
        close_bus()
        yield
    close_bus()


def closed() -> bool:
    return EventStream.objects.filter(aggregate_root_id="lot", command_type="auctions.CloseLot").exists()


def test_without_a_queue_its_commands_are_handled_after_the_commit_of_the_state(immediate: object) -> None:
    bid_three_times()
    assert closed()
    assert ProcessState.objects.get().ended_at is not None
    assert not OutboxCommand.objects.exists()


def test_without_a_queue_it_follows_what_a_transaction_has_committed(immediate: object) -> None:
    with transaction.atomic():
        bid_three_times()
        assert not ProcessState.objects.exists()
    assert closed()


def test_what_a_process_left_between_the_commit_and_its_commands_is_done_later(
    immediate: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from enode_django.immediate.bus import ImmediateCommandBus

    monkeypatch.setattr(ImmediateCommandBus, "relay", lambda self, alias, seconds=0.0: None)  # as if killed before
    bid_three_times()
    monkeypatch.undo()
    assert (closed(), ProcessState.objects.get().version, OutboxCommand.objects.count()) == (False, 4, 1)
    catch_up()
    assert closed()
    assert not OutboxCommand.objects.exists()


# -- with a queue ---------------------------------------------------------------------------------------------------


@pytest.fixture
def queue(transactional_db: None) -> object:
    harness = OutboxHarness()
    with use_bus(harness.bus), subscribers.only(Auctions):
        yield harness


def stored() -> dict[str, int]:
    """Store what `bid_three_times` brings, without any subscriber. Return the heads."""
    with inline(followed_by=[]):
        bid_three_times()
    return dict(make_store().heads(["ann", "bob", "cid", "lot"]))


def follow_all(subscription: EventSubscription) -> None:
    for id in ("ann", "lot", "bob"):
        subscription.follow(make_store().load(id))
    refusal = EventStream.objects.get(version=None)
    subscription.follow(make_store().find([(refusal.command_id, "cid")]).values())


def test_with_a_queue_state_and_commands_commit_together_and_the_relay_sends_them(queue: OutboxHarness) -> None:
    assert stored() == {"ann": 1, "bob": 1, "lot": 1}
    with closing(make_transport()) as transport:
        subscription = make_subscription(subscribers.instance(Auctions), transport, make_store())
        subscription.begin()
        follow_all(subscription)
    assert queue.sent() == [], "only the relay sends"
    (waiting,) = OutboxCommand.objects.all()
    assert decode_command(bytes(waiting.body)).fields == {"winner": "bob", "bids": 3}
    assert ProcessState.objects.get().version == 4
    queue.relay().run()
    assert [(one.type_name, one.aggregate_root_id) for one in queue.sent()] == [("auctions.CloseLot", "lot")]


def test_a_rollback_takes_the_commands_along(queue: OutboxHarness) -> None:
    stored()
    with closing(make_transport()) as transport, transaction.atomic():
        subscription = make_subscription(subscribers.instance(Auctions), transport, make_store())
        follow_all(subscription)
        assert (OutboxCommand.objects.count(), ProcessState.objects.count()) == (1, 1)
        connection.set_rollback(True)
    assert not OutboxCommand.objects.exists()
    assert not ProcessState.objects.exists()


def test_it_has_no_resender(queue: OutboxHarness) -> None:
    with closing(make_transport()) as transport:
        assert make_subscription(subscribers.instance(Auctions), transport, make_store())._new_resender is None


def test_a_sent_command_names_the_process_manager_that_handles_its_crash(queue: OutboxHarness) -> None:
    from enode_django.bus.addresses import crash_handler_in
    from enode_django.domain.metadata import Metadata
    from enode_django.eventing.effects import sending
    from enode_django.runtime import current_bus
    from tests.following.processes import Remind, Sales, Ship

    send = sending(subscribers.instance(Sales), current_bus)
    send([(Ship("parcel-o1", paid=1), Metadata()), (Remind("clerk", why="x"), Metadata())])
    bodies = [decode_command(bytes(row.body)) for row in OutboxCommand.objects.order_by("id")]
    assert [crash_handler_in(one.reply_to) for one in bodies] == ["processes.sales", ""]
