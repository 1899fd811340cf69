"""A `Consumer` whose handler fails."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pytest

from enode_django.equeue.consumer.failing import FailureTopics
from enode_django.equeue.dead_letters import dead_letters, discard, requeue
from enode_django.equeue.messages import Commit, Start
from enode_django.equeue.portions import PORTION_BYTES
from enode_django.equeue.retrying import Failed, encode_failed
from enode_django.equeue.subscribing import Message, Order, RetryPolicy
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.exceptions import QueueError, QueueFull, QueueHeld, TopicDeleted
from tests.equeue.consuming import AT_ONCE, Handled, consuming, eventually, texts


@pytest.mark.parametrize("order", Order)
def test_failed_message_is_tried_again_and_those_behind_it_go_on(memory: MemoryTransport, order: Order) -> None:
    clock = Clock()
    handled = Handled(b=1)
    memory.send("orders", {1: texts("a", "b", "c", "d")})
    with consuming(memory, handled, order=order, retry=RetryPolicy(delays=(10.0,)), clock=clock):
        eventually(lambda: memory.committed("billing", "orders")[1] == 4)
        assert sorted(handled.bodies) == ["a", "b", "c", "d"]
        clock.now += 10
        eventually(lambda: len(handled.messages) == 5)
        eventually(lambda: memory.committed("billing", "retry.billing") == {0: 0, 1: 1})
    assert handled.messages[-1] == Message("orders", 1, 1, b"b", attempt=2)
    assert "dead.billing" not in memory.topics()
    if order is Order.LINEAR:
        assert handled.bodies == ["a", "b", "c", "d", "b"]


def test_delays_follow_one_another_and_stop_nobody(memory: MemoryTransport) -> None:
    clock = Clock()
    handled = Handled(slow=2, quick=1)
    memory.send("orders", {0: texts("slow")})
    with consuming(memory, handled, retry=RetryPolicy(delays=(10.0, 1000.0)), clock=clock):
        eventually(lambda: levels(memory) == {0: 1})
        clock.now += 9
        memory.send("orders", {0: texts("other")})
        eventually(lambda: handled.bodies == ["slow", "other"])
        clock.now += 1
        eventually(lambda: handled.bodies == ["slow", "other", "slow"])
        eventually(lambda: levels(memory) == {0: 1, 1: 1})
        memory.send("orders", {0: texts("quick")})
        eventually(lambda: levels(memory) == {0: 2, 1: 1})
        clock.now += 10  # the one of the shorter delay passes the one of the longer delay
        eventually(lambda: handled.bodies[-2:] == ["quick", "quick"])
        clock.now += 990
        eventually(lambda: handled.bodies[-1] == "slow")
    assert [m.attempt for m in handled.messages if m.body == b"slow"] == [1, 2, 3]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def levels(memory: MemoryTransport) -> Mapping[int, int]:
    """Return the number of messages that were sent to the retries, by queue."""
    ends = memory.end_offsets("retry.billing") if "retry.billing" in memory.topics() else {}
    return {queue: end for queue, end in ends.items() if end}


def test_messages_that_failed_in_several_queues_are_tried_again_at_once(orders: Transport) -> None:
    tried_again = Handled()
    tried_again.gate.clear()

    def handle(message: Message) -> None:
        if message.attempt == 1:
            raise ValueError("not yet")
        tried_again(message)

    orders.send("orders", {0: texts("a", "b"), 1: texts("c", "d")})
    with consuming(orders, handle, threads=4, retry=RetryPolicy(delays=(0.0, 5.0))):
        eventually(lambda: tried_again.busy == 2)
        tried_again.gate.set()
        eventually(lambda: orders.committed("billing", "retry.billing") == {0: 2, 1: 0, 2: 2, 3: 0})
    assert tried_again.overlaps == []
    for queue, bodies in enumerate((["a", "b"], ["c", "d"])):
        assert [m.body.decode() for m in tried_again.messages if m.queue == queue] == bodies


def test_retries_of_queues_that_are_added_later_have_queues_of_their_own(memory: MemoryTransport) -> None:
    memory.send("orders", {1: texts("bad")})
    with consuming(memory, Handled(bad=-1, worse=-1), retry=RetryPolicy(delays=(60.0,))):
        eventually(lambda: levels(memory) == {1: 1})
        memory.add_queues("orders", 4, unordered=True)
        memory.send("orders", {2: texts("worse")})
        eventually(lambda: levels(memory) == {1: 1, 2: 1})
    assert memory.queue_count("retry.billing") == 4


def test_message_that_always_fails_is_a_dead_letter_that_says_why(memory: MemoryTransport) -> None:
    clock = Clock()
    clock.now = 1_893_456_000.0
    handled = Handled(bad=-1)
    memory.send("orders", {1: texts("good", "bad")})
    with consuming(memory, handled, retry=RetryPolicy(delays=(0.0, 0.0)), clock=clock):
        eventually(lambda: "dead.billing" in memory.topics() and memory.end_offsets("dead.billing") == {0: 1})
        eventually(lambda: memory.committed("billing", "retry.billing") == {0: 0, 1: 0, 2: 1, 3: 1})
    assert handled.bodies == ["good", "bad", "bad", "bad"]
    (letter,) = dead_letters(memory, "billing")
    assert letter.failed == Failed(
        Message("orders", 1, 1, b"bad", attempt=3), "ValueError: cannot handle b'bad'", clock.now, clock.now
    )
    assert datetime.fromtimestamp(letter.failed.failed_at, UTC).year == 2030


def test_without_delays_a_failed_message_is_a_dead_letter_at_once(memory: MemoryTransport) -> None:
    memory.send("orders", {0: texts("bad")})
    with consuming(memory, Handled(bad=-1), retry=RetryPolicy(delays=())):
        eventually(lambda: memory.committed("billing", "orders")[0] == 1)
    assert [letter.body for letter in dead_letters(memory, "billing")] == [b"bad"]


class RefusesSends(MemoryTransport):
    """Refuses sends to topics whose names begin with ``refused``."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = "retry."
        self.refusals = 0

    def send(self, topic: str, bodies: Mapping[int, Sequence[bytes]], **options: object) -> Mapping[int, int]:
        if self.refused and topic.startswith(self.refused):
            self.refusals += 1
            raise QueueFull("the disk is full")
        return super().send(topic, bodies, **options)  # type: ignore[arg-type]


def test_failed_message_that_cannot_be_sent_to_the_retries_is_kept_and_tried_here() -> None:
    transport = RefusesSends()
    transport.create_topic("orders", 1)
    handled = Handled(bad=2)
    transport.send("orders", {0: texts("bad", "b", "c")})
    with consuming(transport, handled):
        eventually(lambda: handled.bodies.count("bad") == 3)
        eventually(lambda: transport.committed("billing", "orders") == {0: 3})
    assert sorted(handled.bodies) == ["b", "bad", "bad", "bad", "c"]
    assert transport.refusals == 2


@pytest.mark.parametrize("refused", ["retry.", "dead."])
def test_failed_message_that_cannot_be_set_aside_is_not_committed_and_comes_again(refused: str) -> None:
    transport = RefusesSends()
    transport.refused = refused
    transport.create_topic("orders", 1)
    transport.send("orders", {0: texts("a", "bad", "c")})
    retry = RetryPolicy(delays=(60.0,) if refused == "retry." else ())
    with consuming(transport, Handled(bad=-1), retry=retry) as consumer:
        eventually(lambda: transport.refusals >= 1)
        eventually(lambda: transport.committed("billing", "orders") == {0: 1})
        assert consumer.stop(60)  # messages that are not due yet do not delay it
    assert transport.committed("billing", "orders") == {0: 1}
    assert transport.groups("orders")["billing"].claims[0].owner is None
    handled = Handled()
    with consuming(transport, handled):
        eventually(lambda: transport.committed("billing", "orders") == {0: 3})
    assert handled.bodies == ["bad", "c"]


def test_retries_go_on_after_a_restart_and_in_another_consumer(memory: MemoryTransport) -> None:
    clock = Clock()
    memory.send("orders", {0: texts("bad")})
    with consuming(memory, Handled(bad=-1), retry=RetryPolicy(delays=(60.0, 60.0)), clock=clock):
        eventually(lambda: levels(memory).get(0) == 1)
    clock.now += 60
    handled = Handled()
    with consuming(memory, handled, start=Start.LAST, clock=clock):
        eventually(lambda: handled.messages == [Message("orders", 0, 0, b"bad", attempt=2)])
        eventually(lambda: memory.committed("billing", "retry.billing")[0] == 1)


def test_retries_that_wait_are_left_to_a_consumer_that_joins(memory: MemoryTransport) -> None:
    """The delay is over long after the test."""
    policy = RetryPolicy(delays=(10_000.0,))
    memory.send("orders", {0: texts("bad"), 1: texts("bad")})
    with consuming(memory, Handled(bad=-1), retry=policy):
        eventually(lambda: levels(memory) == {0: 1, 1: 1})
        with consuming(memory, Handled(), retry=policy):
            eventually(lambda: len(owners(memory, "retry.billing")) == 2, 20)


def owners(memory: MemoryTransport, topic: str) -> set[str]:
    return {claim.owner for claim in memory.groups(topic)["billing"].claims.values() if claim.owner}


def test_policy_with_more_delays_finds_room_for_them(memory: MemoryTransport) -> None:
    memory.create_topic("retry.billing", 1)
    memory.send("orders", {0: texts("bad")})
    handled = Handled(bad=2)
    with consuming(memory, handled, retry=AT_ONCE):
        eventually(lambda: handled.bodies.count("bad") == 3)
    assert memory.queue_count("retry.billing") == 2 * 2


def test_what_is_no_retry_is_a_dead_letter(memory: MemoryTransport) -> None:
    memory.create_topic("retry.billing", 2)
    memory.send("retry.billing", {1: [b"\xffgarbage"]})
    handled = Handled()
    with consuming(memory, handled):
        eventually(lambda: memory.committed("billing", "retry.billing") == {0: 0, 1: 1})
    (letter,) = dead_letters(memory, "billing")
    assert letter.failed is not None
    assert letter.failed.message == Message("retry.billing", 1, 0, b"\xffgarbage")
    assert "no message that a consumer has set aside" in letter.failed.error
    assert handled.messages == []


# Sending dead letters anew


@pytest.fixture
def letters(memory: MemoryTransport) -> list[int]:
    """The offsets of the dead letters "b0" to "b4" of the group "billing"."""
    memory.send("orders", {1: texts(*(f"b{number}" for number in range(5)))})
    failing = Handled(**{f"b{number}": -1 for number in range(5)})
    with consuming(memory, failing, retry=RetryPolicy(delays=())):
        eventually(lambda: memory.committed("billing", "orders")[1] == 5)
    return [letter.offset for letter in dead_letters(memory, "billing")]


def bodies_left(memory: MemoryTransport) -> list[bytes]:
    return [letter.body for letter in dead_letters(memory, "billing")]


def test_requeued_letters_are_handled_by_their_group_alone(memory: MemoryTransport, letters: list[int]) -> None:
    assert letters == [0, 1, 2, 3, 4]
    assert requeue(memory, "billing", [1, 3]) == [1, 3]
    assert bodies_left(memory) == texts("b0", "b2", "b4")
    handled, others = Handled(), Handled()
    with consuming(memory, handled), consuming(memory, others, group="other", start=Start.LAST):
        eventually(lambda: handled.bodies == ["b1", "b3"])
        assert requeue(memory, "billing") == [0, 2, 4]
        eventually(lambda: handled.bodies == ["b1", "b3", "b0", "b2", "b4"])
    assert {message.attempt for message in handled.messages} == {1}
    assert handled.messages[0] == Message("orders", 1, 1, b"b1", attempt=1)
    assert others.messages == []
    assert bodies_left(memory) == []
    assert requeue(memory, "billing") == []


def test_letters_are_requeued_to_the_queue_they_came_from(memory: MemoryTransport, letters: list[int]) -> None:
    assert requeue(memory, "billing", [4], to_topic=True) == [4]
    others = Handled()
    with consuming(memory, others, group="other"):
        eventually(lambda: others.bodies == ["b0", "b1", "b2", "b3", "b4", "b4"])
    assert others.messages[-1] == Message("orders", 1, 5, b"b4")


def test_settled_letters_are_trimmed_and_later_ones_kept(memory: MemoryTransport, letters: list[int]) -> None:
    requeue(memory, "billing", [0, 1, 3])
    assert memory.queues("dead.billing")[0].first == 2
    assert bodies_left(memory) == texts("b2", "b4")
    memory.send("dead.billing", {0: [b"of somebody else"]})
    requeue(memory, "billing")
    (foreign,) = dead_letters(memory, "billing")
    assert (foreign.failed, foreign.body) == (None, b"of somebody else")
    assert memory.queues("dead.billing")[0].first == foreign.offset


def test_offset_without_a_letter_is_refused_and_nothing_is_sent(memory: MemoryTransport, letters: list[int]) -> None:
    requeue(memory, "billing", [2])
    with pytest.raises(QueueError, match="no dead letter at 2, 17"):
        requeue(memory, "billing", [0, 2, 17])
    assert len(bodies_left(memory)) == 4
    assert levels(memory) == {0: 1}


class DiesBeforeTheNote(MemoryTransport):
    dying = False

    def send(self, topic: str, bodies: Mapping[int, Sequence[bytes]], **options: object) -> Mapping[int, int]:
        if self.dying and topic.startswith("dead."):
            raise KeyboardInterrupt
        return super().send(topic, bodies, **options)  # type: ignore[arg-type]


def test_nothing_is_lost_when_requeuing_is_interrupted() -> None:
    transport = DiesBeforeTheNote()
    transport.create_topic("orders", 1)
    transport.send("orders", {0: texts("bad")})
    with consuming(transport, Handled(bad=-1), retry=RetryPolicy(delays=())):
        eventually(lambda: transport.committed("billing", "orders") == {0: 1})
    transport.dying = True
    with pytest.raises(KeyboardInterrupt):
        requeue(transport, "billing")
    transport.dying = False
    assert [letter.body for letter in dead_letters(transport, "billing")] == [b"bad"]
    assert requeue(transport, "billing") == [0]
    handled = Handled()
    with consuming(transport, handled):
        eventually(lambda: handled.bodies == ["bad", "bad"])  # at least once


def test_two_do_not_requeue_at_once(memory: MemoryTransport, letters: list[int]) -> None:
    lease = memory.acquire("requeue", "dead.billing", 0, "another", 60)
    with pytest.raises(QueueHeld):
        requeue(memory, "billing")
    memory.commit("requeue", "dead.billing", {0: Commit(lease.epoch, 0)})
    assert len(bodies_left(memory)) == 5


class LetterComesLate(MemoryTransport):
    """Sends another dead letter before each call for end offsets, and before each commit, of the dead letters."""

    coming: bytes | None = None

    def come(self, topic: str) -> None:
        if topic == "dead.billing" and self.coming is not None:
            self.send(topic, {0: [self.coming]})

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        self.come(topic)
        return super().end_offsets(topic)

    def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> frozenset[int]:
        self.come(topic)
        return frozenset(super().commit(group, topic, commits))


def test_letter_that_comes_while_others_are_requeued_is_kept() -> None:
    transport = LetterComesLate()
    transport.create_topic("dead.billing", 1)
    transport.coming = encode_failed(Failed(Message("orders", 0, 0, b"late", attempt=1), "", 0.0, 0.0))
    transport.send("dead.billing", {0: [transport.coming]})
    assert requeue(transport, "billing") == [0]
    transport.coming = None
    assert len(list(dead_letters(transport, "billing"))) == 2


@pytest.mark.parametrize("to_topic", [False, True], ids=["to the group", "to the topic"])
def test_letters_that_no_send_takes_at_once_are_requeued(memory: MemoryTransport, to_topic: bool) -> None:
    memory.create_topic("dead.billing", 1)
    body = bytes(1 << 20)
    count = memory.max_send // len(body) + 6
    for number in range(count):
        failed = Failed(Message("orders", 1, number, body), "broken", 0.0, 0.0)
        memory.send("dead.billing", {0: [encode_failed(failed)]})
    assert requeue(memory, "billing", to_topic=to_topic) == list(range(count))
    sent = memory.end_offsets("orders")[1] if to_topic else memory.end_offsets("retry.billing")[0]
    assert sent == count
    assert bodies_left(memory) == []


def test_letters_are_settled_without_all_of_them_in_memory(memory: MemoryTransport) -> None:
    count = 64
    memory.create_topic("dead.billing", 1)
    for offset in range(count):
        message = Message("orders", 0, offset, b"x" * (1 << 20))
        memory.send("dead.billing", {0: [encode_failed(Failed(message, "", 0.0, 0.0))]})
    tracemalloc.start()
    try:
        assert discard(memory, "billing") == list(range(count))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * PORTION_BYTES


def test_consumer_goes_on_when_its_retries_are_deleted(memory: MemoryTransport) -> None:
    handled = Handled(a=1, b=1)
    with consuming(memory, handled) as consumer:
        memory.send("orders", {0: texts("a")})
        eventually(lambda: handled.bodies == ["a", "a"])
        memory.delete_topic("retry.billing", force=True)
        memory.send("orders", {0: texts("b"), 1: texts("c")})
        eventually(lambda: sorted(handled.bodies[2:]) == ["b", "b", "c"])
        assert not consumer.join(0)


def test_retries_that_were_made_again_with_fewer_queues_get_the_missing_ones(memory: MemoryTransport) -> None:
    topics = FailureTopics(memory, "billing", AT_ONCE, for_all=False, clock=lambda: 0.0)
    message = Message("orders", 1, 0, b"a", attempt=1)
    assert topics.set_aside(message, "it failed") is None
    memory.delete_topic("retry.billing", force=True)
    memory.create_topic("retry.billing", 1)
    assert topics.set_aside(message, "it failed") is not None  # it stays here
    assert topics.set_aside(message, "it failed") is None
    assert memory.queue_count("retry.billing") == 4


def test_consumer_of_a_deleted_topic_ends_with_an_error_that_says_so(memory: MemoryTransport) -> None:
    with consuming(memory, Handled(), queues=2) as consumer:
        memory.delete_topic("orders", force=True)
        with pytest.raises(TopicDeleted, match="create it anew"):
            consumer.join(60)
    assert "orders" not in memory.topics()
    with pytest.raises(TopicDeleted):
        consuming(memory, Handled(), queues=2).__enter__()
