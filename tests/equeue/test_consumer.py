"""A `Consumer` whose handler does not fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from enode_django.equeue.messages import Commit
from enode_django.equeue.subscribing import Consumer, Limits, Message, Mode, Order, Start, lease_holds
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.exceptions import QueueError, TransportUnavailable, UnknownTopic
from tests.equeue.consuming import FAST, Handled, consuming, eventually, texts


def committed(orders: Transport, group: str = "billing", topic: str = "orders") -> Mapping[int, int]:
    return orders.committed(group, topic)


def test_messages_of_a_queue_are_handled_in_order_and_committed(orders: Transport) -> None:
    handled = Handled()
    for number in range(50):
        orders.send("orders", {0: texts(f"a{number}"), 1: texts(f"b{number}")})
    with consuming(orders, handled):
        eventually(lambda: committed(orders) == {0: 50, 1: 50})
        orders.send("orders", {1: texts("later")})
        eventually(lambda: committed(orders) == {0: 50, 1: 51})
    assert [m.offset for m in handled.messages if m.queue == 0] == list(range(50))
    assert [m.offset for m in handled.messages if m.queue == 1] == list(range(51))
    assert handled.messages[-1] == Message("orders", 1, 50, b"later", attempt=1)
    assert handled.overlaps == []
    assert orders.topics() == ["orders"]  # nothing has failed


def test_parallel_handling_commits_up_to_the_first_unfinished_message(orders: Transport) -> None:
    first_may_end = threading.Event()
    handled: list[int] = []

    def handle(message: Message) -> None:
        if message.offset == 2:
            assert first_may_end.wait(60)
        handled.append(message.offset)

    orders.send("orders", {0: texts(*range(20))})
    with consuming(orders, handle, order=Order.PARALLEL, threads=3):
        eventually(lambda: len(handled) == 19 and committed(orders)[0] == 2)
        first_may_end.set()
        eventually(lambda: committed(orders)[0] == 20)
    assert sorted(handled) == list(range(20))


def test_linear_handling_takes_queues_at_once_but_each_with_one_thread(orders: Transport) -> None:
    handled = Handled()
    handled.gate.clear()
    orders.send("orders", {0: texts(*range(10)), 1: texts(*range(10))})
    with consuming(orders, handled, threads=4):
        eventually(lambda: handled.busy == 2)
        handled.gate.set()
        eventually(lambda: committed(orders) == {0: 10, 1: 10})
    assert handled.most_busy == 2
    assert handled.overlaps == []


def test_linear_handling_stays_linear_when_the_queue_is_set_back_while_a_handler_is_at_work(orders: Transport) -> None:
    handled = Handled()
    handled.gate.clear()
    orders.send("orders", {0: texts("a", "b")})
    with consuming(orders, handled, threads=4):
        eventually(lambda: handled.busy == 1)
        epoch = orders.groups("orders")["billing"].claims[0].epoch
        orders.set_offset("billing", "orders", 0, 0)
        # It loses the queue, acquires it anew and pulls the same messages again.
        eventually(lambda: orders.groups("orders")["billing"].claims[0].epoch > epoch)
        handled.gate.set()
        eventually(lambda: committed(orders)[0] == 2)
    assert handled.overlaps == []
    assert handled.bodies == ["a", "a", "b"]


def test_no_more_is_pulled_while_too_many_messages_are_unfinished(orders: Transport) -> None:
    handled = Handled()
    handled.gate.clear()
    orders.send("orders", {0: texts(*range(500)), 1: texts(*range(500))})
    limits = Limits(max_held=40, pull_limit=30, pull_wait=0.02, commit_interval=0.02)
    pulled: list[int] = []
    pull = orders.pull

    def counting_pull(topic: str, offsets: Mapping[int, int], **options: float) -> object:
        batches = pull(topic, offsets, **options)  # type: ignore[arg-type]
        pulled.append(sum(len(batch.bodies) for batch in batches))
        return batches

    orders.pull = counting_pull  # type: ignore[method-assign,assignment]
    with consuming(orders, handled, limits=limits):
        eventually(lambda: sum(pulled) >= 30)
        rounds = len(pulled)
        assert not eventually_more(pulled, 40 + 2)
        handled.gate.set()
        eventually(lambda: committed(orders) == {0: 500, 1: 500})
    assert len(pulled) > rounds
    assert max(pulled) <= 40


def test_a_queue_whose_messages_are_not_finished_stops_no_other(memory: MemoryTransport) -> None:
    stuck = threading.Event()
    handled: list[Message] = []

    def handle(message: Message) -> None:
        if message.queue == 0:
            assert stuck.wait(60)
        handled.append(message)

    memory.add_queues("orders", 4, unordered=True)
    memory.send("orders", {queue: texts(*range(1_000)) for queue in range(4)})
    most_held = [0]
    limits = Limits(max_held=400, commit_interval=0.05)
    with consuming(memory, handle, limits=limits) as consumer:
        share = consumer._consumers["orders"]

        def others_are_done() -> bool:
            most_held[0] = max(most_held[0], share._queues.unfinished)
            return committed(memory) == {0: 0, 1: 1_000, 2: 1_000, 3: 1_000}

        eventually(others_are_done)
        assert 50 <= share._queues.unfinished <= 100
        memory.send("orders", {1: texts("later")})
        eventually(lambda: committed(memory)[1] == 1_001)
        stuck.set()
        eventually(lambda: committed(memory)[0] == 1_000)
    assert most_held[0] <= 400
    assert [m.offset for m in handled if m.queue == 0] == list(range(1_000))


def test_queues_that_come_when_too_many_messages_are_unfinished_are_pulled_from(memory: MemoryTransport) -> None:
    stuck = threading.Event()
    handled: list[Message] = []

    def handle(message: Message) -> None:
        if message.queue < 2:
            assert stuck.wait(60)
        handled.append(message)

    memory.send("orders", {queue: texts(*range(500)) for queue in (0, 1)})
    limits = Limits(max_held=40, pull_limit=30, commit_interval=0.05)
    with consuming(memory, handle, limits=limits) as consumer:
        share = consumer._consumers["orders"]
        eventually(lambda: share._queues.unfinished >= 30)
        memory.add_queues("orders", 4, unordered=True)
        memory.send("orders", {queue: texts(*range(50)) for queue in (2, 3)})
        eventually(lambda: committed(memory) == {0: 0, 1: 0, 2: 50, 3: 50})
        assert share._queues.unfinished <= 40
        stuck.set()


def eventually_more(pulled: list[int], than: int) -> bool:
    """Return True if more than ``than`` messages are pulled within 0.2 seconds, which is enough for several pulls."""
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline:
        if sum(pulled) > than:
            return True
        threading.Event().wait(0.01)
    return False


@pytest.mark.parametrize(("start", "expected"), [(Start.FIRST, ["old", "new"]), (Start.LAST, ["new"])])
def test_new_group_begins_where_it_is_told(orders: Transport, start: Start, expected: list[str]) -> None:
    orders.send("orders", {0: texts("old")})
    handled = Handled()
    with consuming(orders, handled, start=start):
        orders.send("orders", {0: texts("new")})
        eventually(lambda: handled.bodies == expected)


def test_new_group_begins_at_a_time(orders: Transport) -> None:
    orders.send("orders", {0: texts("old")})
    between = time.time()
    eventually(lambda: time.time() > between + 0.05)  # more than the times of messages are apart
    moment = datetime.fromtimestamp(time.time(), UTC)
    orders.send("orders", {0: texts("new")})
    handled = Handled()
    with consuming(orders, handled, start=moment):
        eventually(lambda: handled.bodies == ["new"])


def test_queue_that_is_added_is_consumed_from_its_first_message_on(orders: Transport) -> None:
    handled = Handled()
    with consuming(orders, handled, start=Start.LAST):
        orders.add_queues("orders", 3, unordered=True)
        orders.send("orders", {2: texts("in the new one")})
        eventually(lambda: handled.bodies == ["in the new one"])


def test_queue_that_was_added_while_no_consumer_ran_is_consumed_from_its_first_message_on(orders: Transport) -> None:
    orders.send("orders", {0: texts("old"), 1: texts("old")})
    handled = Handled()
    with consuming(orders, handled, start=Start.LAST):
        eventually(lambda: orders.groups("orders")["billing"].claims.keys() == {0, 1})
    orders.add_queues("orders", 3, unordered=True)
    orders.send("orders", {2: texts("in the new one")})
    with consuming(orders, handled, start=Start.LAST):
        eventually(lambda: orders.groups("orders")["billing"].claims.keys() == {0, 1, 2})
        orders.send("orders", {2: texts("behind it")})
        eventually(lambda: handled.bodies[-1:] == ["behind it"])
    assert handled.bodies == ["in the new one", "behind it"]


def test_start_of_a_new_group_that_broke_off_is_finished_by_the_next_consumer(memory: MemoryTransport) -> None:
    memory.send("orders", {0: texts("old"), 1: texts("old")})
    lease = memory.acquire("billing", "orders", 1, "killed", 60, start=1)
    memory.release("billing", "orders", "killed", {1: lease.epoch})
    memory.send("orders", {0: texts("older"), 1: texts("since then")})
    handled = Handled()
    with consuming(memory, handled, start=Start.LAST):
        eventually(lambda: committed(memory) == {0: 2, 1: 2})
    assert handled.bodies == ["since then"]


def test_known_group_goes_on_where_it_was_whatever_the_start(orders: Transport) -> None:
    orders.send("orders", {0: texts("a", "b", "c")})
    lease = orders.acquire("billing", "orders", 0, "before", 60)
    orders.commit("billing", "orders", {0: Commit(lease.epoch, 1)})
    orders.release("billing", "orders", "before", {0: lease.epoch})
    handled = Handled()
    with consuming(orders, handled, start=Start.LAST):
        eventually(lambda: handled.bodies == ["b", "c"])


def test_two_consumers_share_the_queues_and_hand_them_over_without_overlap(orders: Transport) -> None:
    handled = Handled()
    stopping = threading.Event()

    def send() -> None:
        number = 0
        while not stopping.wait(0.001):
            orders.send("orders", {0: texts(number), 1: texts(number)})
            number += 1

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with consuming(orders, handled):
            eventually(lambda: len(handled.messages) > 20)
            with consuming(orders, handled) as second:
                eventually(lambda: len(owners(orders)) == 2)
                assert second.name in owners(orders)
                before = len(handled.messages)
                eventually(lambda: len(handled.messages) > before + 50)
            eventually(lambda: len(owners(orders)) == 1)
            before = len(handled.messages)
            eventually(lambda: len(handled.messages) > before + 50)
            stopping.set()
            sender.join(60)
            eventually(lambda: committed(orders) == orders.end_offsets("orders"))
    finally:
        stopping.set()
        sender.join(60)
    assert handled.overlaps == []
    for queue, end in orders.end_offsets("orders").items():
        # All came in order, and none twice: every hand-over was drained and committed.
        assert [m.offset for m in handled.messages if m.queue == queue] == list(range(end))


def owners(orders: Transport) -> set[str]:
    claims = orders.groups("orders")["billing"].claims.values()
    return {claim.owner for claim in claims if claim.owner and claim.seconds > 0}


def test_stop_drains_commits_and_gives_the_queues_back(orders: Transport) -> None:
    handled = Handled()
    handled.gate.clear()
    orders.send("orders", {0: texts(*range(30)), 1: texts(*range(30))})
    with consuming(orders, handled, limits=FAST) as consumer:
        eventually(lambda: handled.busy == 2)
        stopped: list[bool] = []
        stopper = threading.Thread(target=lambda: stopped.append(consumer.stop(60)))
        stopper.start()
        handled.gate.set()
        stopper.join(60)
        assert stopped == [True]
        assert consumer.join(60)
    pulled = {queue: sum(m.queue == queue for m in handled.messages) for queue in (0, 1)}
    assert committed(orders) == pulled
    assert owners(orders) == set()
    assert orders.groups("orders")["billing"].members == {}


def test_stop_leaves_to_others_what_it_has_no_time_for(orders: Transport) -> None:
    handled = Handled()
    orders.send("orders", {0: texts("endless", "behind it"), 1: texts("done")})
    gate = threading.Event()

    def handle(message: Message) -> None:
        handled(message)
        if message.body == b"endless":
            assert gate.wait(60)

    consumer = Consumer(orders, group="billing", topics=["orders"], handle=handle, limits=FAST)
    consumer.start()
    try:
        eventually(lambda: sorted(handled.bodies) == ["done", "endless"])
        stopper = threading.Thread(target=consumer.stop, args=(0.1,))
        stopper.start()
        eventually(lambda: consumer._worklist._closed)
        assert handled.bodies.count("behind it") == 0
        gate.set()
        stopper.join(60)
        assert not consumer.stop(0)
    finally:
        gate.set()
        consumer.stop(60)
    assert committed(orders) == {0: 1, 1: 1}
    assert owners(orders) == set()


class Unreachable(MemoryTransport):
    """A transport in memory whose methods named in ``away`` raise `TransportUnavailable`."""

    def __init__(self) -> None:
        super().__init__()
        self.away: set[str] = set()
        self.failed = 0

    def __getattribute__(self, name: str) -> object:
        if not name.startswith("_") and name not in ("away", "failed") and name in self.away:
            self.failed += 1
            raise TransportUnavailable(f"{name} is away")
        return super().__getattribute__(name)


def test_transport_that_is_away_is_waited_for() -> None:
    transport = Unreachable()
    transport.create_topic("orders", 2)
    transport.send("orders", {0: texts("a")})
    handled = Handled()
    transport.away = {"pull", "join", "acquire", "commit", "renew", "queue_count", "end_offsets"}
    with consuming(transport, handled):
        eventually(lambda: transport.failed > 3)
        transport.away = set()
        eventually(lambda: handled.bodies == ["a"])
        transport.away = {"pull", "commit"}
        failed = transport.failed
        eventually(lambda: transport.failed > failed + 3)
        transport.away = set()
        transport.send("orders", {0: texts("b")})
        eventually(lambda: handled.bodies == ["a", "b"])
        eventually(lambda: transport.committed("billing", "orders")[0] == 2)


def test_a_handler_can_ask_whether_its_lease_holds() -> None:
    transport = Unreachable()
    transport.create_topic("orders", 1)
    transport.send("orders", {0: texts("a")})
    done = threading.Event()
    holds: list[bool] = [False]

    def handle(message: Message) -> None:
        while not done.wait(0.005):
            holds[0] = lease_holds()

    with consuming(transport, handle, limits=Limits(lease=0.5, commit_interval=0.05)):
        eventually(lambda: holds[0])
        transport.away = {"renew"}
        eventually(lambda: not holds[0])
        transport.away = set()
        eventually(lambda: holds[0])
        done.set()
        eventually(lambda: transport.committed("billing", "orders")[0] == 1)


def test_a_handler_is_told_that_its_queue_was_lost(orders: Transport) -> None:
    orders.send("orders", {0: texts("a")})
    begun, lost = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        begun.set()
        while not lost.is_set() and lease_holds():
            threading.Event().wait(0.005)
        lost.set()

    with consuming(orders, handle):
        eventually(begun.is_set)  # the queue is owned before its first message is pulled
        orders.set_offset("billing", "orders", 0, 1)
        eventually(lost.is_set)


def test_nobody_can_ask_for_the_lease_of_no_message() -> None:
    with pytest.raises(QueueError, match="from a consumer's handler"):
        lease_holds()


def test_unknown_topic_is_raised_or_created(orders: Transport) -> None:
    with pytest.raises(UnknownTopic, match="payments"):
        Consumer(orders, group="billing", topics=["payments"], handle=print).start()
    handled = Handled()
    with consuming(orders, handled, topics=["payments"], queues=3):
        assert orders.queue_count("payments") == 3
        orders.send("payments", {2: texts("x")})
        eventually(lambda: handled.bodies == ["x"])


def test_handler_that_ends_its_thread_ends_the_consumer_loudly(orders: Transport) -> None:
    def handle(message: Message) -> None:
        raise SystemExit("enough")

    orders.send("orders", {0: texts("a", "b")})
    consumer = Consumer(orders, group="billing", topics=["orders"], handle=handle, limits=FAST)
    with pytest.raises(SystemExit, match="enough"):
        consumer.run()
    assert committed(orders) == {0: 0, 1: 0}  # it comes again


def test_error_that_is_not_retriable_ends_the_consumer(memory: MemoryTransport) -> None:
    with consuming(memory, Handled()) as consumer:
        memory._coordinator.topics.clear()  # as if somebody else had emptied the server
        with pytest.raises(UnknownTopic):
            consumer.join(60)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"topics": []}, ValueError),
        ({"topics": "orders"}, ValueError),
        ({"threads": 0}, ValueError),
        ({"mode": Mode.BROADCASTING}, ValueError),
        ({"start": datetime(2030, 1, 1)}, ValueError),
        ({"group": "a group"}, QueueError),
    ],
)
def test_options_that_cannot_be_are_refused(
    memory: MemoryTransport, options: dict[str, object], error: type[Exception]
) -> None:
    given = {"group": "billing", "topics": ["orders"], "handle": print, **options}
    with pytest.raises(error):
        Consumer(memory, **given)  # type: ignore[arg-type]


def test_limits_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="max_held must be above 0, got 0"):
        Limits(max_held=0)


def test_paused_group_finishes_what_it_has_pulled_and_pulls_no_more_until_it_is_resumed(
    memory: MemoryTransport,
) -> None:
    handled = Handled()
    handled.gate.clear()
    memory.send("orders", {0: texts("a"), 1: texts("b")})
    with consuming(memory, handled) as consumer:
        eventually(lambda: len(handled.messages) == 2)
        memory.pause_group("billing", "orders")
        eventually(lambda: not memory.groups("orders")["billing"].division[consumer.name])
        assert {claim.owner for claim in memory.groups("orders")["billing"].claims.values()} == {consumer.name}
        handled.gate.set()
        eventually(lambda: {claim.owner for claim in memory.groups("orders")["billing"].claims.values()} == {None})
        assert memory.committed("billing", "orders") == {0: 1, 1: 1}
        memory.send("orders", {0: texts("c"), 1: texts("d")})
        generation = memory.groups("orders")["billing"].generation
        memory.pause_group("billing", "orders", paused=False)
        eventually(lambda: sorted(handled.bodies) == ["a", "b", "c", "d"])
        assert memory.groups("orders")["billing"].generation > generation
