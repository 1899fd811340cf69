"""The part of the transport contract about deleting topics and queues, for transports that support it (see
`DeletesTopics` and `DeletesQueues`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from enode_django.equeue.messages import Commit, Once, Receipt, Start
from enode_django.equeue.producer import Producer
from enode_django.equeue.transport import DeletesQueues, DeletesTopics, Transport
from enode_django.exceptions import QueueError, StaleRoute, TopicDeleted
from enode_django.testing.transport_lease_contract import DEADLINE, QUEUES, messages

SENDS = 20


def delete(transport: Transport, topic: str, *, force: bool = False) -> None:
    if not isinstance(transport, DeletesTopics):
        pytest.skip("it deletes no topics: see DeletesTopics")
    transport.delete_topic(topic, force=force)


def delete_queue(transport: Transport, topic: str, queue: int, *, force: bool = False) -> None:
    if not isinstance(transport, DeletesQueues):
        pytest.skip("it deletes no queues: see DeletesQueues")
    transport.delete_queue(topic, queue, force=force)


def hide(transport: Transport, topic: str, queue: int) -> None:
    transport.show(topic, queue, to_producers=False, to_consumers=False, unordered=True)


class TransportDeletionContract:
    def test_deleted_topic_is_gone_for_all(self, transport: Transport, another: Transport, topic: str) -> None:
        another.announce(topic, "a process")
        another.send(topic, {0: [b"a"]})
        another.acquire("group", topic, 0, "one", 60)
        delete(transport, topic, force=True)
        for each in (transport, another):
            assert topic not in each.topics()
            with pytest.raises(TopicDeleted, match="was deleted"):
                each.queue_count(topic)

    @pytest.mark.parametrize(
        "use",
        [
            lambda transport, topic: transport.route(topic),
            lambda transport, topic: transport.send(topic, {0: [b"x"]}),
            lambda transport, topic: transport.send(topic, {1: [b"x"]}, route=1),
            lambda transport, topic: transport.send(topic, {3: [b"x"]}, route=1, once=Once("0" * 32, 7)),
            lambda transport, topic: transport.pull(topic, {0: 0}, limit=1, wait=0),
            lambda transport, topic: transport.join("group", topic, "one", 60),
            lambda transport, topic: transport.acquire("group", topic, 0, "one", 60),
            lambda transport, topic: transport.set_offset("group", topic, 0, 0),
            lambda transport, topic: transport.committed("group", topic),
            lambda transport, topic: transport.groups(topic),
            lambda transport, topic: transport.announce(topic, "a process"),
            lambda transport, topic: transport.trim(topic),
            lambda transport, topic: transport.add_queues(topic, QUEUES + 1),
            lambda transport, topic: delete(transport, topic),
        ],
    )
    def test_who_goes_on_using_a_deleted_topic_hears_of_it_and_leaves_nothing_behind(
        self, transport: Transport, another: Transport, topic: str, use: Callable[[Transport, str], object]
    ) -> None:
        another.send(topic, {queue: [b"a"] for queue in range(QUEUES)})  # so that it knows the topic
        delete(transport, topic, force=True)
        with pytest.raises(TopicDeleted, match="create it anew"):
            use(another, topic)
        assert topic not in another.topics()
        transport.create_topic(topic, QUEUES)
        assert transport.groups(topic) == {}
        assert [messages(transport, topic, queue) for queue in range(QUEUES)] == [[]] * QUEUES

    def test_topic_in_use_is_deleted_by_force_only(self, transport: Transport, another: Transport, topic: str) -> None:
        transport.send(topic, {1: [b"a", b"b"]})
        with pytest.raises(QueueError, match="no group consumes its 2 messages"):
            delete(transport, topic)
        lease = transport.acquire("group", topic, 1, "one", 60)
        transport.commit("group", topic, {1: Commit(lease.epoch, 1)})
        with pytest.raises(QueueError, match=r"'group' has members \(one\); group 'group' has 1 messages left"):
            delete(another, topic)
        transport.commit("group", topic, {1: Commit(lease.epoch, 2)})
        transport.release("group", topic, "one", {1: lease.epoch})
        transport.join("group", topic, "two", 60)
        with pytest.raises(QueueError, match=r"'group' has members \(two\)"):
            delete(another, topic)
        assert transport.send(topic, {0: [b"it"], 3: [b"goes on"]}, route=transport.route(topic).version)
        assert transport.acquire("other group", topic, 0, "one", 60)
        delete(another, topic, force=True)
        assert topic not in transport.topics()

    def test_topic_that_every_group_has_finished_is_deleted(self, transport: Transport, topic: str) -> None:
        transport.send(topic, {0: [b"a"]})
        transport.join("group", topic, "one", 60)
        lease = transport.acquire("group", topic, 0, "one", 60)
        transport.commit("group", topic, {0: Commit(lease.epoch, 1)})
        transport.release("group", topic, "one", {0: lease.epoch})
        transport.leave("group", topic, "one")
        delete(transport, topic)
        assert topic not in transport.topics()

    def test_topic_created_anew_has_nothing_of_the_old_one_and_its_offsets_go_on(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        transport.send(topic, {0: [b"old"] * 3, QUEUES - 1: [b"old"]})
        lease = transport.acquire("group", topic, 0, "one", 60)
        transport.commit("group", topic, {0: Commit(lease.epoch, 1, [Receipt(0, b"r")], 5)})
        transport.show(topic, 1, to_consumers=False)
        route = another.route(topic)
        delete(transport, topic, force=True)
        assert transport.create_topic(topic, 2) == 2
        assert {q: tuple(state) for q, state in another.queues(topic).items()} == {
            0: (3, 3, True, True),
            1: (0, 0, True, True),
        }
        with pytest.raises(StaleRoute):
            another.send(topic, {0: [b"by the old route"]}, route=route.version)
        assert another.send(topic, {0: [b"new"]}, route=another.route(topic).version) == {0: 3}
        assert messages(transport, topic, 0) == [(3, b"new")]
        assert another.commit("group", topic, {0: Commit(lease.epoch, 2)}) == {0}
        assert another.renew("group", topic, "one", {0: lease.epoch}, 60) == {0}
        assert another.receipts("group", topic, 0) == []
        again = another.acquire("group", topic, 0, "one", 60, start=Start.FIRST)
        assert (again.committed, again.end) == (3, 4)
        assert again.epoch > lease.epoch
        with pytest.raises(QueueError, match="no queue"):
            another.send(topic, {QUEUES - 1: [b"x"]})

    def test_waiting_pull_hears_of_a_deletion(self, transport: Transport, another: Transport, topic: str) -> None:
        begun = threading.Event()

        def pull() -> None:
            until = time.monotonic() + DEADLINE
            while time.monotonic() < until:
                begun.set()
                another.pull(topic, {0: 0, 1: 0}, limit=1, wait=0.5)

        with ThreadPoolExecutor(1) as threads:
            pulling = threads.submit(pull)
            assert begun.wait(DEADLINE)
            delete(transport, topic)
            with pytest.raises(TopicDeleted):
                pulling.result(DEADLINE)

    def test_producer_does_not_create_a_deleted_topic_and_goes_on_when_it_is_there_again(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        producer = Producer(another, queues=QUEUES)
        producer.send(topic, "ada", b"old")
        delete(transport, topic, force=True)
        for each in (producer, producer, Producer(another, queues=QUEUES)):
            with pytest.raises(TopicDeleted):
                each.send(topic, "ada", b"lost")
        assert topic not in transport.topics()
        transport.create_topic(topic, 2)
        sent = producer.send(topic, "ada", b"new")
        assert [body for _, body in messages(transport, topic, sent.queue)] == [b"new"]

    def test_messages_sent_while_a_topic_is_deleted_are_in_it_or_refused(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        """Everything is committed at each attempt to delete: a send either comes first and prevents it, or fails."""

        def send() -> int:
            for sent in range(SENDS):
                try:
                    another.send(topic, {0: [b"x"]})
                except TopicDeleted:
                    return sent
            return SENDS

        with ThreadPoolExecutor(1) as threads:
            sending = threads.submit(send)
            lease = transport.acquire("group", topic, 0, "one", 60)
            transport.release("group", topic, "one", {0: lease.epoch})
            committed = self._deleted_when_finished(transport, topic, lease.epoch)
            assert sending.result(DEADLINE) == committed

    def test_queue_that_is_not_hidden_from_all_is_not_deleted(self, transport: Transport, topic: str) -> None:
        for seen in ({"to_producers": False}, {"to_consumers": False}, {"to_producers": True}):
            transport.show(topic, 1, **seen)
            if not all(transport.queues(topic)[1][2:]):
                with pytest.raises(QueueError, match="hide it first"):
                    delete_queue(transport, topic, 1, force=True)
            transport.show(topic, 1, to_producers=True, to_consumers=True)
        with pytest.raises(QueueError, match="no queue"):
            delete_queue(transport, topic, QUEUES)

    @pytest.mark.parametrize("force", [True, False])
    def test_queue_of_a_topic_created_anew_is_deleted_before_its_first_message(
        self, transport: Transport, another: Transport, topic: str, force: bool
    ) -> None:
        transport.send(topic, {1: [b"old"]})
        delete(transport, topic, force=True)
        another.create_topic(topic, QUEUES)
        hide(another, topic, 1)
        delete_queue(another, topic, 1, force=force)
        assert tuple(transport.queues(topic)[1]) == (1, 1, False, False)

    def test_queue_in_use_is_deleted_by_force_only(self, transport: Transport, another: Transport, topic: str) -> None:
        transport.send(topic, {1: [b"a", b"b"]})
        hide(transport, topic, 1)
        with pytest.raises(QueueError, match="no group consumes its 2 messages"):
            delete_queue(transport, topic, 1)
        lease = transport.acquire("group", topic, 1, "one", 60)
        transport.commit("group", topic, {1: Commit(lease.epoch, 1)})
        with pytest.raises(QueueError, match="'one' has a lease for group 'group'; group 'group' has 1 messages left"):
            delete_queue(another, topic, 1)
        assert messages(another, topic, 1, 1) == [(1, b"b")]
        delete_queue(another, topic, 1, force=True)
        assert messages(another, topic, 1) == []
        assert transport.commit("group", topic, {1: Commit(lease.epoch, 2)}) == {1}
        assert transport.renew("group", topic, "one", {1: lease.epoch}, 60) == {1}

    def test_deleted_queue_keeps_its_number_and_goes_on_at_its_end_when_it_is_shown(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        transport.send(topic, {0: [b"other"], 1: [b"old"] * 3})
        for queue, receipt in ((0, b"other"), (1, b"old")):
            lease = transport.acquire("group", topic, queue, "one", 60)
            transport.commit("group", topic, {queue: Commit(lease.epoch, 1, [Receipt(0, receipt)], 5)})
            transport.release("group", topic, "one", {queue: lease.epoch})
        hide(transport, topic, 1)
        delete_queue(transport, topic, 1, force=True)
        delete_queue(transport, topic, 1)
        assert another.queue_count(topic) == QUEUES
        assert tuple(another.queues(topic)[1]) == (3, 3, False, False)
        assert [another.committed("group", topic)[queue] for queue in (0, 1)] == [1, 3]
        assert [another.receipts("group", topic, queue) for queue in (0, 1)] == [[b"other"], []]
        assert messages(another, topic, 0) == [(0, b"other")]
        assert another.offsets_at(topic, 0.0)[1] == 3
        transport.show(topic, 1, to_producers=True, to_consumers=True, unordered=True)
        assert another.send(topic, {1: [b"new"]}, route=another.route(topic).version) == {1: 3}
        again = another.acquire("group", topic, 1, "two", 60, start=Start.LAST)
        assert (again.committed, again.end, again.previous_owner) == (3, 4, None)
        assert again.epoch > lease.epoch
        assert messages(another, topic, 1) == [(3, b"new")]

    @staticmethod
    def _deleted_when_finished(transport: Transport, topic: str, epoch: int) -> int:
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            end = transport.end_offsets(topic)[0]
            transport.commit("group", topic, {0: Commit(epoch, end)})
            try:
                delete(transport, topic)
            except QueueError:
                continue
            return end
        raise AssertionError(f"it was never finished within {DEADLINE} seconds")
