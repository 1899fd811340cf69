"""Workers that are killed amid processes with a state, unique values, and rows of many aggregates."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import pytest

from enode_django.eventstore.base import StreamRecord
from enode_django.repository.loading import events_of, replay_records
from enode_django.serialization.codec import decode_command
from sample_project.conference.domain import (
    Customer,
    OpenConference,
    OrderCancelled,
    OrderConfirmed,
    OrderPaid,
    OrderPlaced,
    OrderReserved,
    PayOrder,
    PlaceOrder,
    RegisterCustomer,
    SeatsReserved,
    SeatsSold,
)
from tests.acceptance.processors import Processors
from tests.acceptance.stack import COMMANDS, QUEUES, Stack
from tests.acceptance.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

CONFERENCES, WAVES, ORDERS, EMAILS, RIVALS = 2, 3, 16, 6, 3
SEATS = 2 * ORDERS * WAVES * 3 // 4 // CONFERENCES
"""Seats of each conference: too few for all orders."""
PROCESSES = """
    SELECT key, version, ended_at IS NOT NULL FROM enode_django_processstate WHERE subscriber = 'conference.bookings'
"""
RESERVED = "SELECT aggregate_root_id, amount FROM conference_ordersummary WHERE state = 'reserved'"
SENT = ("ReserveSeats", "MarkReserved", "SellSeats", "ConfirmOrder", "CancelOrder", "ReleaseSeats")
"""The commands that the processes send."""
OF_PROCESSES = (OrderPlaced, SeatsReserved, OrderReserved, OrderPaid, SeatsSold, OrderConfirmed, OrderCancelled)
"""The events that belong to one."""


def test_whoever_is_killed_each_command_is_sent_once_each_value_is_held_once_and_rows_equal_a_replay(
    stack: Stack, seed: int
) -> None:
    random_ = random.Random(seed)
    names = ("bookings", "Orders", "Availabilities", "Customers")
    stack.install("sample_project.conference", [f"conference.{name}" for name in names])
    for queue in range(QUEUES):  # by a group that commits nothing, so that the commands can be looked at
        stack.transport.acquire("onlooker", COMMANDS, queue, "onlooker", 1)
    processors = stack.start(2, role="all", COMMANDS={"CLAIM_DEADLINE": 1.0})
    stack.client.send(
        [OpenConference(f"conference-{n}", title=f"{n}", seats=SEATS, price=10) for n in range(CONFERENCES)]
    )
    world = _World(stack)
    for wave in range(WAVES):
        world.send(wave, random_)
        world.goes_on(ORDERS // 2, "a few of its commands are handled")
        _kill(processors, processors.living_workers, random_)
        world.goes_on(2 * ORDERS, "more of them are handled")
        _kill(processors, processors.following_event_workers, random_)
    wait_until(world.is_done, "all orders have ended")
    stack.wait_followed()
    wait_until(lambda: not world.claimed(), "housekeeping has settled what the dead had claimed")
    world.check_processes()
    world.check_values()
    figures = stack.check_read_side()
    assert figures["rows of Availability"] == CONFERENCES
    assert figures["rows of CustomerSummary"] >= EMAILS
    assert stack.dead_letters() == []


def _kill(processors: Processors, found: Callable[[], Mapping[str, int]], random_: random.Random) -> None:
    wait_until(lambda: bool(found()), "there is a worker of this kind")  # event workers may begin after the first rows
    workers = found()
    name = random_.choice(sorted(workers))
    os.kill(workers[name], signal.SIGKILL)
    processors.wait_for(f"worker {name} died: killed by SIGKILL; starting another")


class _World:
    """The load, and checks of the stored results."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.orders: list[str] = []
        self._paid: set[str] = set()
        self._before = 0
        """The rows that were stored when the last wave was sent."""

    def send(self, wave: int, random_: random.Random) -> None:
        """Register several customers for each address, and place orders."""
        emails = [_email(wave, number) for number in range(EMAILS)]
        customers = [(email, f"customer-{email}-{rival}") for email in emails for rival in range(RIVALS)]
        orders = [f"order-{wave}-{number}" for number in range(ORDERS)]
        self.orders += orders
        commands = [
            *(RegisterCustomer(id, name="Ada", email=email) for email, id in customers),
            *(
                PlaceOrder(order, customer=customers[0][1], conference=f"conference-{n % CONFERENCES}", seats=2)
                for n, order in enumerate(orders)
            ),
        ]
        random_.shuffle(commands)
        self._before = self._stored()
        self.stack.client.send(commands)

    def goes_on(self, rows: int, what: str) -> None:
        """Pay until this number of rows of the last wave is stored. Each order makes three rows at least."""
        wait_until(lambda: self.pay() or self._stored() >= self._before + rows, what)

    def _stored(self) -> int:
        ((count,),) = self.stack.query("SELECT count(*) FROM enode_django_eventstream")
        return int(count)

    def pay(self) -> None:
        """Pay for orders whose seats are reserved."""
        rows = self.stack.query(
            "SELECT aggregate_root_id, amount FROM conference_ordersummary WHERE state = 'reserved'"
        )
        payable = [(id, amount) for id, amount in rows if id not in self._paid]
        self._paid |= {id for id, _ in payable}
        if payable:
            self.stack.client.send([PayOrder(id, amount=amount) for id, amount in payable])

    def is_done(self) -> bool:
        self.pay()
        ended = {key for key, _, has_ended in self.stack.query(PROCESSES) if has_ended}
        return ended == {*self.orders}

    def claimed(self) -> list[tuple[object, ...]]:
        return self.stack.query("SELECT name FROM enode_django_uniquevalue WHERE claims <> '{}' OR releases <> '{}'")

    # -- invariants ---------------------------------------------------------------------------------------------------

    def check_processes(self) -> None:
        """Each process has handled each of its events once, and sent each of its commands once, or with the same id."""
        sent = self._sent_by_processes()
        repeated = {key: ids for key, ids in sent.items() if len(ids) > 1}
        assert repeated == {}
        reserving = {id: order for (name, order), ids in sent.items() if name == "ReserveSeats" for id in ids}
        assert sorted(reserving.values()) == sorted(self.orders)
        handled, confirmed = Counter[str](), 0
        for record in self.stack.stored():
            if record.version is None:
                handled[reserving.get(record.command_id, "")] += 1
                continue
            for event in events_of(record):
                if isinstance(event, OF_PROCESSES):
                    handled[getattr(event, "order", record.aggregate_root_id)] += 1
                confirmed += isinstance(event, OrderConfirmed)
        versions = {key: version for key, version, _ in self.stack.query(PROCESSES)}
        assert versions == {order: handled[order] for order in self.orders}
        assert 0 < confirmed < len(self.orders), "some are confirmed, and some refused"

    def _sent_by_processes(self) -> Mapping[tuple[str, str], set[str]]:
        """Return the ids of the commands by class and order."""
        found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for body in self.stack.messages(COMMANDS):
            wire = decode_command(body)
            name = wire.type_name.removeprefix("conference.")
            if name in SENT:
                found[name, wire.fields.get("order", wire.aggregate_root_id)].add(wire.id)
        return found

    def check_values(self) -> None:
        """Check that one of the rivals holds each address, and that its row says so. None does if the claim of one that
        a worker had taken with it ran out before the next worker came to its command."""
        held: dict[str, str] = {}
        for id, group in groupby(self._registered(), lambda record: record.aggregate_root_id):
            customer = replay_records(list(group))
            assert isinstance(customer, Customer)
            assert customer.email not in held, f"{id} and {held[customer.email]} have {customer.email}"
            held[customer.email] = id
        late = {_email_of(record) for record in self.stack.stored() if b"not stored in time" in record.events}
        assert held
        assert held.keys() | late == {_email(wave, n) for wave in range(WAVES) for n in range(EMAILS)}
        owners = self.stack.query("SELECT aggregate_root_id FROM enode_django_uniquevalue")
        assert sorted(id for (id,) in owners) == sorted(held.values())

    def _registered(self) -> Sequence[StreamRecord]:
        streams = [record for record in self.stack.stored() if record.version is not None]
        customers = [record for record in streams if record.aggregate_root_id.startswith("customer-")]
        return sorted(customers, key=lambda record: (record.aggregate_root_id, record.version))


def _email(wave: int, number: int) -> str:
    return f"{wave}-{number}@example.org"


def _email_of(record: StreamRecord) -> str:
    return record.aggregate_root_id.removeprefix("customer-").rpartition("-")[0]
