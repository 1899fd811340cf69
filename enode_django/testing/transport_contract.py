"""The contract of every transport as tests. Run them against your own driver::

    class TestMyTransport(TransportContract):
        @pytest.fixture
        def transport(self) -> Iterator[Transport]:
            transport = MyTransport(...)
            yield transport
            transport.close()

Each test uses its own topic, so that all can share one server. The fixture ``another`` may return a second transport to
the same queues, like that of another process.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from enode_django.equeue.messages import Commit
from enode_django.equeue.transport import TellsTimelines, Transport, WakesPulls
from enode_django.exceptions import QueueError, UnknownQueue, UnknownTopic
from enode_django.testing.transport_deletion_contract import TransportDeletionContract
from enode_django.testing.transport_group_contract import TransportGroupContract
from enode_django.testing.transport_lease_contract import DEADLINE, QUEUES, messages
from enode_django.testing.transport_pause_contract import TransportPauseContract
from enode_django.testing.transport_retention_contract import TransportRetentionContract
from enode_django.testing.transport_size_contract import TransportSizeContract


class TransportContract(
    TransportGroupContract,
    TransportDeletionContract,
    TransportPauseContract,
    TransportRetentionContract,
    TransportSizeContract,
):
    """The whole contract of a transport.

    For example::

        class TestMyTransport(TransportContract):
            @pytest.fixture
            def transport(self) -> Transport:
                return MemoryTransport()
    """

    # Topics

    def test_topic_is_created_once_and_keeps_its_queues(self, transport: Transport, another: Transport) -> None:
        name = f"topic-{uuid.uuid4().hex}"
        assert transport.create_topic(name, 3) == 3
        assert another.create_topic(name, 5) == 3
        assert transport.queue_count(name) == another.queue_count(name) == 3

    @pytest.mark.parametrize(("name", "queues"), [("", 1), ("a{b}", 1), ("a b", 1), ("fine", 0), ("fine", -1)])
    def test_topic_that_cannot_be_made_is_refused(self, transport: Transport, name: str, queues: int) -> None:
        with pytest.raises(QueueError):
            transport.create_topic(name, queues)

    @pytest.mark.parametrize(
        "use",
        [
            lambda transport, topic: transport.queue_count(topic),
            lambda transport, topic: transport.send(topic, {0: [b"x"]}),
            lambda transport, topic: transport.pull(topic, {0: 0}, limit=1, wait=0),
            lambda transport, topic: transport.look(topic, {0: 0}),
            lambda transport, topic: transport.end_offsets(topic),
            lambda transport, topic: transport.acquire("group", topic, 0, "owner", 60),
            lambda transport, topic: transport.renew("group", topic, "owner", {0: 1}, 60),
            lambda transport, topic: transport.release("group", topic, "owner", {0: 1}),
            lambda transport, topic: transport.commit("group", topic, {0: Commit(1, 1)}),
            lambda transport, topic: transport.committed("group", topic),
            lambda transport, topic: transport.receipts("group", topic, 0),
            lambda transport, topic: transport.trim(topic),
            lambda transport, topic: transport.announce(topic, "a process"),
            lambda transport, topic: transport.producers(topic),
        ],
    )
    def test_unknown_topic_is_named(self, transport: Transport, use: Callable[[Transport, str], object]) -> None:
        with pytest.raises(UnknownTopic, match="'nowhere'"):
            use(transport, "nowhere")

    @pytest.mark.parametrize("queue", [QUEUES, -1])
    def test_queue_the_topic_does_not_have_is_refused(self, transport: Transport, topic: str, queue: int) -> None:
        with pytest.raises(UnknownQueue, match=repr(queue)):
            transport.send(topic, {0: [b"not stored"], queue: [b"x"]})
        with pytest.raises(UnknownQueue, match=repr(queue)):
            transport.pull(topic, {queue: 0}, limit=1, wait=0)
        with pytest.raises(UnknownQueue, match=repr(queue)):
            transport.look(topic, {queue: 0})
        with pytest.raises(UnknownQueue, match=repr(queue)):
            transport.acquire("group", topic, queue, "owner", 60)
        with pytest.raises(UnknownQueue, match=repr(queue)):
            transport.receipts("group", topic, queue)
        assert messages(transport, topic, 0) == []

    # Sending and pulling

    def test_offsets_are_contiguous_from_zero_and_order_is_kept(self, transport: Transport, topic: str) -> None:
        assert transport.send(topic, {0: [b"a", b"b"], 2: [b"c"]}) == {0: 0, 2: 0}
        assert transport.send(topic, {0: [b"d"], 2: [b"e", b"f"]}) == {0: 2, 2: 1}
        assert messages(transport, topic, 0) == [(0, b"a"), (1, b"b"), (2, b"d")]
        assert messages(transport, topic, 2) == [(0, b"c"), (1, b"e"), (2, b"f")]
        assert transport.end_offsets(topic) == {0: 3, 1: 0, 2: 3, 3: 0}

    def test_sending_nothing_stores_nothing(self, transport: Transport, topic: str) -> None:
        assert transport.send(topic, {}) == {}
        assert transport.send(topic, {1: [], 2: [b"x"]}) == {2: 0}
        assert transport.end_offsets(topic) == {0: 0, 1: 0, 2: 1, 3: 0}

    def test_pull_starts_at_the_offset_and_leaves_out_queues_without_messages(
        self, transport: Transport, topic: str
    ) -> None:
        transport.send(topic, {0: [b"0", b"1", b"2"], 1: [b"x"]})
        batches = transport.pull(topic, {0: 1, 1: 1, 2: 0}, limit=10, wait=0)
        assert [(batch.queue, list(batch.offsets), list(batch.bodies)) for batch in batches] == [
            (0, [1, 2], [b"1", b"2"])
        ]
        assert transport.pull(topic, {}, limit=10, wait=DEADLINE) in ((), [])

    def test_limit_counts_per_queue(self, transport: Transport, topic: str) -> None:
        transport.send(topic, {queue: [b"x"] * 5 for queue in range(QUEUES)})
        batches = transport.pull(topic, dict.fromkeys(range(QUEUES), 0), limit=3, wait=0)
        assert {batch.queue: len(batch.bodies) for batch in batches} == dict.fromkeys(range(QUEUES), 3)
        with pytest.raises(ValueError, match="limit"):
            transport.pull(topic, {0: 0}, limit=0, wait=0)

    def test_look_returns_the_first_message_of_each_queue_and_leaves_it_to_pulls(
        self, transport: Transport, topic: str
    ) -> None:
        transport.send(topic, {0: [b"0", b"1", b"2"], 1: [b"x"]})
        (before,) = transport.pull(topic, {0: 0}, limit=1, wait=0)
        (looked,) = transport.look(topic, {0: 1, 1: 1, 2: 0})
        assert (looked.queue, list(looked.offsets), list(looked.bodies)) == (0, [1], [b"1"])
        (after,) = transport.pull(topic, {0: 1}, limit=2, wait=0)
        assert [*before.bodies, *after.bodies] == [b"0", b"1", b"2"]
        assert transport.look(topic, {}) in ((), [])

    @pytest.mark.parametrize(
        "body", [b"", bytes(range(256)), b"\r\n$-1\r\n", os.urandom(1_000_000)], ids=["empty", "binary", "crlf", "1 MB"]
    )
    def test_body_comes_out_as_it_went_in(self, transport: Transport, topic: str, body: bytes) -> None:
        transport.send(topic, {0: [body, b"next", body]})
        assert messages(transport, topic, 0) == [(0, body), (1, b"next"), (2, body)]

    def test_concurrent_senders_lose_and_repeat_nothing(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        def sent_by(sender: int) -> list[tuple[int, bytes]]:
            placed: list[tuple[int, bytes]] = []
            for size in (1, 7, 1_201, 1, 60):  # one is larger than a driver may store in one step
                bodies = [b"%d:%d" % (sender, len(placed) + index) for index in range(size)]
                first = (transport, another)[sender % 2].send(topic, {1: bodies})[1]
                placed += enumerate(bodies, first)
            return placed

        with ThreadPoolExecutor(4) as pool:
            placed = list(pool.map(sent_by, range(4)))
        stored = messages(transport, topic, 1)
        assert stored == sorted(pair for pairs in placed for pair in pairs)
        assert [offset for offset, _ in stored] == list(range(4 * 1_270))
        for pairs in placed:
            assert pairs == sorted(pairs)

    def test_pull_waits_for_the_first_message_and_gives_up_in_time(self, transport: Transport, topic: str) -> None:
        before = time.monotonic()
        assert not transport.pull(topic, {0: 0, 1: 0}, limit=1, wait=0.1)
        assert time.monotonic() - before >= 0.09

    def test_a_transport_that_can_end_pulls_ends_one_that_waits_and_keeps_the_next_one_from_waiting(
        self, transport: Transport, topic: str
    ) -> None:
        if not isinstance(transport, WakesPulls):
            pytest.skip("it cannot end pulls: see WakesPulls")

        def pull() -> int:
            transport.wake(threading.get_ident())  # it does not wait yet
            return len(transport.pull(topic, {0: 0, 1: 0}, limit=1, wait=10 * DEADLINE))

        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(pull).result(DEADLINE) == 0
            waiter = pool.submit(threading.get_ident).result()
            waiting = pool.submit(transport.pull, topic, {0: 0, 1: 0}, limit=1, wait=10 * DEADLINE)
            transport.wake(waiter)
            assert not waiting.result(DEADLINE)

    def test_a_transport_that_tells_timelines_tells_the_same_ones_to_all_while_nothing_is_lost(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        if not isinstance(transport, TellsTimelines) or not isinstance(another, TellsTimelines):
            pytest.skip("it does not tell what was lost: see TellsTimelines")
        timelines = transport.timelines(topic)
        assert sorted(timelines) == list(range(QUEUES))
        transport.send(topic, {0: [b"a"]})
        assert another.timelines(topic) == timelines
        with pytest.raises(UnknownTopic, match="'nowhere'"):
            transport.timelines("nowhere")

    def test_waiting_pull_is_answered_the_moment_a_message_arrives(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        rounds = 40

        def echo() -> None:
            for offset in range(rounds):
                (batch,) = another.pull(topic, {0: 0, 1: offset}, limit=1)
                another.send(topic, {2: batch.bodies})

        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(echo)
            started = time.monotonic()
            for offset in range(rounds):
                transport.send(topic, {1: [b"%d" % offset]})
                (batch,) = transport.pull(topic, {2: offset, 3: 0}, limit=1, wait=DEADLINE)
                assert list(batch.bodies) == [b"%d" % offset]
            answer.result()
        assert time.monotonic() - started < DEADLINE  # none of the 80 waits reached its timeout

    # Answers

    def test_answers_reach_their_inbox_in_order(self, transport: Transport, another: Transport) -> None:
        one, two = transport.open_inbox(), another.open_inbox()
        assert one.address != two.address
        transport.reply([(one.address, b"1"), (two.address, b"x"), (one.address, b"2")])
        another.reply([(one.address, b"")])
        transport.reply([])
        assert _received(one.receive, 3) == [b"1", b"2", b""]
        assert _received(two.receive, 1) == [b"x"]
        assert list(one.receive(0)) == []
        transport.reply([(one.address, b"3")])
        assert _received(one.receive, 1) == [b"3"]
        one.close()
        two.close()

    def test_many_answers_are_received_once(self, transport: Transport) -> None:
        inbox = transport.open_inbox()
        bodies = [b"%d" % number for number in range(2_500)]
        transport.reply([(inbox.address, body) for body in bodies])
        assert _received(inbox.receive, len(bodies)) == bodies
        assert list(inbox.receive(0)) == []
        inbox.close()

    def test_waiting_inbox_is_answered_the_moment_an_answer_arrives(
        self, transport: Transport, another: Transport
    ) -> None:
        asked, answered = transport.open_inbox(), another.open_inbox()
        rounds = 40

        def echo() -> None:
            for _ in range(rounds):
                (body,) = asked.receive(DEADLINE)
                transport.reply([(answered.address, body)])

        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(echo)
            started = time.monotonic()
            for number in range(rounds):
                another.reply([(asked.address, b"%d" % number)])
                assert list(answered.receive(DEADLINE)) == [b"%d" % number]
            answer.result()
        assert time.monotonic() - started < DEADLINE

    def test_answer_to_nobody_is_swallowed(self, transport: Transport) -> None:
        closed, listening = transport.open_inbox(), transport.open_inbox()
        closed.close()
        closed.close()
        transport.reply([(closed.address, b"x"), ("no such inbox", b"x"), ("", b"x"), (listening.address, b"y")])
        assert _received(listening.receive, 1) == [b"y"]
        listening.close()

    def test_close_can_be_repeated(self, another: Transport) -> None:
        another.close()
        another.close()


def _received(receive: Callable[[float], Sequence[bytes]], count: int) -> list[bytes]:
    received: list[bytes] = []
    while len(received) < count and (more := receive(DEADLINE)):
        received += more
    return received
