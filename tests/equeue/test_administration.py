from __future__ import annotations

import time
from datetime import UTC, datetime
from itertools import islice

import pytest

from enode_django.equeue import administration
from enode_django.equeue.administration import OffsetMove, PeekedMessage
from enode_django.equeue.messages import Commit, Start
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.exceptions import QueueError, UnknownTopic
from tests.equeue.consuming import eventually, texts


@pytest.fixture
def served(memory: MemoryTransport) -> MemoryTransport:
    """A transport with five messages in queue 0. The group "billing" has committed two; its member "one" owns the
    queue."""
    memory.send("orders", {0: texts("a", "b", "c", "d", "e")})
    memory.join("billing", "orders", "one", 60)
    lease = memory.acquire("billing", "orders", 0, "one", 60)
    memory.commit("billing", "orders", {0: Commit(lease.epoch, 2)})
    return memory


def test_groups_are_shown_with_owners_and_backlog(served: MemoryTransport) -> None:
    (info,) = administration.list_groups(served)
    assert (info.topic, info.group, info.backlog, info.counts) == ("orders", "billing", 3, True)
    assert list(info.members) == ["one"]
    first, second = info.shares
    assert (first.committed, first.end, first.backlog, first.owner, first.shall_own) == (2, 5, 3, "one", "one")
    assert (second.committed, second.backlog, second.owner, second.shall_own) == (None, 0, None, "one")
    assert administration.list_groups(served, group="another") == []
    with pytest.raises(UnknownTopic):
        administration.list_groups(served, ["payments"])


def test_what_was_trimmed_is_no_backlog(served: MemoryTransport) -> None:
    served.trim("orders")
    served.join("late", "orders", "two", 60)
    late = next(info for info in administration.list_groups(served) if info.group == "late")
    assert [share.backlog for share in late.shares] == [3, 0]
    assert administration.list_topics(served)[0].messages == 3


def test_topic_of_another_size_is_not_created(memory: MemoryTransport) -> None:
    administration.create_topic(memory, "payments", 3)
    administration.create_topic(memory, "payments", 3)
    with pytest.raises(QueueError, match="exists, with 2 queues"):
        administration.create_topic(memory, "orders", 3)


@pytest.mark.parametrize(("to", "after"), [(Start.FIRST, 0), (Start.LAST, 5), (4, 4), (99, 5)])
def test_offset_is_set_and_the_owner_loses_the_queue(served: MemoryTransport, to: Start | int, after: int) -> None:
    moves = administration.set_offsets(served, "billing", "orders", to, [0])
    assert moves == [OffsetMove("orders", "billing", 0, 2, after)]
    assert served.committed("billing", "orders")[0] == after
    assert served.groups("orders")["billing"].claims[0].owner is None


def test_offset_is_set_to_a_time(served: MemoryTransport) -> None:
    before = time.time()
    eventually(lambda: time.time() > before)
    moment = datetime.fromtimestamp(time.time(), UTC)
    served.send("orders", {0: texts("f")})
    moves = administration.set_offsets(served, "billing", "orders", moment)
    assert [(move.queue, move.after) for move in moves] == [(0, 5), (1, 0)]
    with pytest.raises(ValueError, match="needs a time zone"):
        administration.set_offsets(served, "billing", "orders", datetime(2030, 1, 1))


def test_offset_of_an_unknown_group_or_queue_is_refused(served: MemoryTransport) -> None:
    with pytest.raises(QueueError, match="no group 'biling'; it has 'billing'"):
        administration.set_offsets(served, "biling", "orders", Start.LAST)
    with pytest.raises(QueueError, match="no queue 2"):
        administration.set_offsets(served, "billing", "orders", Start.LAST, [0, 2])
    assert served.committed("billing", "orders")[0] == 2
    moves = administration.set_offsets(served, "new", "orders", Start.LAST, new_group=True)
    assert [(move.before, move.after) for move in moves] == [(None, 5), (None, 0)]


def test_peeking_shows_the_newest_or_those_from_an_offset(served: MemoryTransport) -> None:
    def bodies(**options: int) -> list[bytes]:
        return [message.body for message in administration.peek(served, "orders", 0, **options)]

    assert administration.peek(served, "orders", 0, 1, 1) == [PeekedMessage("orders", 0, 1, b"b")]
    assert bodies(limit=2) == texts("d", "e")
    assert bodies(offset=3, limit=9) == texts("d", "e")
    assert bodies(offset=17) == []
    served.trim("orders")
    assert bodies(offset=0, limit=1) == texts("c")
    assert bodies(limit=99) == texts("c", "d", "e")
    assert administration.peek(served, "orders", 1) == []
    with pytest.raises(QueueError, match="no queue 7"):
        administration.peek(served, "orders", 7)
    with pytest.raises(ValueError, match="-1"):
        administration.peek(served, "orders", 0, -1)
    assert [info.group for info in administration.list_groups(served)] == ["billing"]


def test_reading_a_long_queue_gives_all_of_it_once(memory: MemoryTransport) -> None:
    memory.send("orders", {0: texts(*range(350))})
    read = administration.read_queue(memory, "orders", 0, 20, 330)
    assert [message.offset for message in read] == list(range(20, 330))


def test_tail_follows(served: MemoryTransport) -> None:
    subscription = administration.tail(served, "orders", wait=0.01)
    assert next(subscription) is None
    served.send("orders", {0: texts("f"), 1: texts("g")})
    assert [(m.queue, m.offset, m.body) for m in islice(subscription, 2) if m] == [(0, 5, b"f"), (1, 0, b"g")]
    from_first = administration.tail(served, "orders", [0], Start.FIRST, wait=0.01)
    assert [message.offset for message in islice(from_first, 6) if message] == list(range(6))
    with pytest.raises(QueueError, match="no queue 2"):
        next(administration.tail(served, "orders", [2]))


def test_group_with_members_is_not_deleted_by_mistake(served: MemoryTransport) -> None:
    with pytest.raises(QueueError, match="has members: one"):
        administration.delete_group(served, "billing")
    assert administration.delete_group(served, "billing", living=True) == ["orders"]
    assert served.groups("orders") == {}
    assert administration.delete_group(served, "billing") == []


@pytest.fixture
def failed(memory: MemoryTransport) -> MemoryTransport:
    """A transport whose group "billing" has finished the topics "orders" and "payments". One message waits in its
    retries, and one is a dead letter."""
    memory.create_topic("payments", 1)
    for topic in ("orders", "payments"):
        memory.acquire("billing", topic, 0, "one", 0)
    for topic in ("retry.billing", "dead.billing"):
        memory.create_topic(topic, 1)
        memory.send(topic, {0: [b"a message"]})
    memory.join("billing", "retry.billing", "one", 0)
    return memory


def test_retries_and_dead_letters_go_with_the_last_topic_of_their_group(failed: MemoryTransport) -> None:
    assert administration.delete_group(failed, "billing", ["orders"]) == ["orders"]
    assert failed.topics() == ["dead.billing", "orders", "payments", "retry.billing"]
    deleted = administration.delete_group(failed, "billing", living=True)
    assert deleted == ["dead.billing", "payments", "retry.billing"]
    assert failed.topics() == ["orders", "payments"]


def test_topic_whose_group_has_failures_left_is_deleted_by_force_only(failed: MemoryTransport) -> None:
    assert administration.delete_topic(failed, "orders") == ["orders"]
    with pytest.raises(QueueError, match=r"'dead.billing' is in use: no group consumes its 1 messages"):
        administration.delete_topic(failed, "payments")
    assert failed.topics() == ["dead.billing", "payments", "retry.billing"]
    deleted = administration.delete_topic(failed, "payments", force=True)
    assert deleted == ["payments", "dead.billing", "retry.billing"]
    assert failed.topics() == []


def test_peek_is_from_an_offset_or_from_a_time(served: MemoryTransport) -> None:
    long_ago = datetime(2001, 1, 31, tzinfo=UTC)
    assert [one.offset for one in administration.peek(served, "orders", 0, limit=2, at=long_ago)] == [0, 1]
    served.trim("orders")
    assert [one.offset for one in administration.peek(served, "orders", 0, limit=2, at=long_ago)] == [2, 3]
    assert administration.peek(served, "orders", 0, at=datetime(2999, 1, 31, tzinfo=UTC)) == []
    with pytest.raises(ValueError, match="time zone"):
        administration.peek(served, "orders", 0, at=datetime(2001, 1, 31))
    with pytest.raises(ValueError, match="not from both"):
        administration.peek(served, "orders", 0, 1, at=long_ago)
