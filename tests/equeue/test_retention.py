from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from enode_django.equeue.broker.deletion import SURVEYED_AT_ONCE, Survey
from enode_django.equeue.broker.queues import VIEWED_AT_ONCE
from enode_django.equeue.broker.retention import Notices, QueuePart, QueueParts, Retention, by_own_ages
from enode_django.equeue.broker.store import MessageStore
from tests.equeue.storing import chunks, delete_due, messages, offset_at, opened, send

BODY = b"x" * 900


def everything(topic: str, queue: int) -> int:
    return 1 << 60


def take_all(survey: Survey) -> None:
    while survey.take():
        pass


def no_group(topic: str, queue: int) -> None:
    return None


@pytest.mark.parametrize(
    ("retention", "due"),
    [
        (Retention(), False),
        (Retention(max_age=10), True),
        (Retention(max_age=11), False),
        (Retention(max_bytes=99), True),
        (Retention(max_bytes=100), False),
        (Retention(max_messages=4), True),
        (Retention(max_messages=5), False),
        (Retention(max_age=10, max_bytes=100), True),
        (Retention(max_age=10, max_bytes=100, all_limits=True), False),
        (Retention(max_age=10, max_bytes=99, all_limits=True), True),
        (Retention(all_limits=True), False),
    ],
)
def test_limits_say_what_is_due(retention: Retention, due: bool) -> None:
    assert retention.is_due(age=10.5, size=100, messages=5) is due


def test_what_a_group_needs_is_spared() -> None:
    parts = [QueuePart("orders", 0, 10, 0.0), QueuePart("orders", 1, 5, 0.0)]
    notices = Notices()
    assert Retention().spares(parts, lambda topic, queue: (10, 4)[queue], notices, now=1.0)
    assert not Retention().spares(parts, lambda topic, queue: (10, 5)[queue], notices, now=1.0)
    assert Retention().spares(parts, no_group, notices, now=1e9)
    assert not Retention(delete_unconsumed=True).spares(parts, no_group, notices, now=1.0)


def test_what_nobody_consumes_goes_by_its_age_after_a_notice(caplog: pytest.LogCaptureFixture) -> None:
    """This happens if a broker was away for longer than the age, or did not delete such messages before."""
    rule, notices, day = Retention(max_age=3 * 86_400), Notices(), 86_400.0
    old, young = QueuePart("audit", 0, 10, 0.0), QueuePart("lonely", 0, 10, 9 * day)
    for now in (1.9 * day, 2.1 * day, 2.9 * day):
        assert rule.spares([old], no_group, notices, now=now)
    assert caplog.text.count("nobody consumes topic 'audit'") == 1
    assert "24 hours" in caplog.text
    assert not rule.spares([old], no_group, notices, now=3.2 * day)
    assert rule.spares([young], no_group, notices, now=20 * day), "nobody was told yet"
    assert "nobody consumes topic 'lonely'" in caplog.text
    assert not rule.spares([young], no_group, notices, now=21.1 * day)
    assert rule.spares([QueuePart("lonely", 1, 10, 19 * day)], no_group, notices, now=21.1 * day), "it is too young"
    assert rule.spares([old], everything_but_the_last, notices, now=99 * day), "a group needs it"


def everything_but_the_last(topic: str, queue: int) -> int:
    return 9


def filled(directory: Path, *, count: int = 40) -> tuple[MessageStore, list[float]]:
    """Fill a store with one message per second, in two queues by turns, four to a file. Return it with its clock."""
    now = [1000.0]
    store, _ = opened(directory, clock=lambda: now[0], monotonic=lambda: now[0])
    for number in range(count):
        send(store, number % 2, b"%03d" % number + BODY)
        now[0] += 1
    store.checkpoint(b"")
    return store, now


def left(store: MessageStore) -> list[int]:
    found = messages(store, "orders", 0) + messages(store, "orders", 1)
    return sorted(int(body[:3]) for _, body in found)


def test_files_above_an_age_are_deleted(tmp_path: Path) -> None:
    store, now = filled(tmp_path)
    assert now[0] == 1040
    assert delete_due(store, Retention(max_age=20), everything) == 5  # the newest in them were taken at 1003 … 1019
    assert left(store) == list(range(20, 40))
    assert store.bounds("orders", 0) == (10, 20)
    assert store.bounds("orders", 1) == (10, 20)
    assert delete_due(store, Retention(max_age=20), everything) == 0
    store.abandon()


def test_messages_that_come_too_rarely_to_fill_a_file_are_deleted_by_their_age(tmp_path: Path) -> None:
    """A file has room for a hundred thousand of them, and one comes each hour."""
    hour, now = 3600.0, [1_000_000.0]
    store, _ = opened(tmp_path, chunk_size=1 << 27, clock=lambda: now[0], monotonic=lambda: now[0])
    for number in range(60):
        send(store, 0, b"%03d" % number + BODY)
        store.checkpoint(b"")
        now[0] += hour
        delete_due(store, Retention(max_age=24 * hour), everything)
    assert 60 - left(store)[0] in range(24, 35), "they are kept for the age, and for a third of it at most"
    store.close(b"")
    now[0] += 25 * hour
    store, _ = opened(tmp_path, chunk_size=1 << 27, clock=lambda: now[0], monotonic=lambda: now[0])
    store.checkpoint(b"")
    store.checkpoint(b"")
    assert delete_due(store, Retention(max_age=24 * hour), everything)
    assert delete_due(store, Retention(max_age=24 * hour), everything) == 1, "it was closed after the start"
    assert left(store) == []
    assert send(store, 0, b"060" + BODY) == 60
    store.close(b"")


def test_a_file_whose_first_message_has_a_time_far_ahead_is_closed_in_time(tmp_path: Path) -> None:
    now = [2_000_000.0]
    store, _ = opened(tmp_path, chunk_size=1 << 20, clock=lambda: now[0], monotonic=lambda: now[0])
    send(store, 0, BODY)
    store.close(b"")
    now[0] = 1_000_000.0
    store, _ = opened(tmp_path, chunk_size=1 << 20, clock=lambda: now[0], monotonic=lambda: now[0])
    deleted = []
    for _ in range(3):
        now[0] += 101
        store.checkpoint(b"")
        deleted.append(delete_due(store, Retention(max_age=100), everything))
    assert deleted == [0, 1, 0]
    store.close(b"")


def test_files_above_a_size_or_a_count_are_deleted(tmp_path: Path) -> None:
    store, _ = filled(tmp_path)
    size = store.size
    assert delete_due(store, Retention(max_bytes=size), everything) == 0
    assert delete_due(store, Retention(max_bytes=size - 1), everything) == 1
    assert store.size < size
    assert delete_due(store, Retention(max_messages=30), everything) == 2
    assert left(store) == list(range(12, 40))
    store.abandon()


def test_all_limits_together_delete_less(tmp_path: Path) -> None:
    store, _ = filled(tmp_path)
    assert delete_due(store, Retention(max_age=20, max_messages=30, all_limits=True), everything) == 3
    assert delete_due(store, Retention(max_age=20, max_messages=30), everything) == 2
    store.abandon()


@pytest.mark.parametrize(
    ("consumed", "deleted"),
    [
        (lambda topic, queue: 0, 0),
        (lambda topic, queue: 2, 1),
        (lambda topic, queue: 3, 1),
        (lambda topic, queue: (20, 5)[queue], 2),
        (everything, 9),
    ],
)
def test_what_a_group_has_not_consumed_stays(
    tmp_path: Path, consumed: Callable[[str, int], int | None], deleted: int
) -> None:
    store, now = filled(tmp_path)
    now[0] += 1000
    assert delete_due(store, Retention(max_age=1), consumed) == deleted
    assert left(store) == list(range(4 * deleted, 40))
    assert delete_due(store, Retention(max_age=1, delete_unconsumed=True), consumed) == 10 - deleted
    store.abandon()


def test_letters_and_topics_that_nobody_consumes_hold_back_no_file_longer_than_the_age(tmp_path: Path) -> None:
    store, now = filled(tmp_path)
    rule = Retention(max_age=90)
    assert delete_due(store, rule, no_group) == 0
    now[0] += 65
    assert delete_due(store, rule, no_group) == 0, "the oldest are 105 s old, and nobody was told before"
    now[0] += 31
    assert delete_due(store, rule, no_group) == 10
    assert left(store) == []
    store.abandon()


def test_the_newest_file_and_what_no_checkpoint_counts_stay(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    for number in range(40):
        send(store, 0, b"%03d" % number + BODY)
    store.flush()
    rule = Retention(max_bytes=0, delete_unconsumed=True)
    assert delete_due(store, rule, no_group) == 0
    store.checkpoint(b"")
    assert delete_due(store, rule, no_group) == 9
    assert len(chunks(tmp_path)) == 1
    assert left(store) == list(range(36, 40))
    store.abandon()


@pytest.mark.parametrize("crash", [False, True])
def test_a_queue_goes_on_counting_after_all_its_messages_were_deleted(tmp_path: Path, crash: bool) -> None:
    store, _ = opened(tmp_path)
    for _ in range(5):
        send(store, 0, BODY, topic="old")
    for _ in range(20):
        send(store, 0, BODY)
    store.checkpoint(b"")
    index = tmp_path / "queues" / "old" / "0"
    assert list(index.iterdir())
    delete_due(store, Retention(max_bytes=0, delete_unconsumed=True), no_group)
    assert store.bounds("old", 0) == (5, 5)
    assert not list(index.iterdir())
    if crash:
        store.abandon()
    else:
        store.close(b"")
    store, _ = opened(tmp_path)
    assert store.bounds("old", 0) == (5, 5)
    assert offset_at(store, "old", 0, 0) == 5
    assert send(store, 0, b"next", topic="old") == 5
    assert messages(store, "old", 0) == [(5, b"next")]
    first, end = store.bounds("orders", 0)
    assert 0 < first < end == 20
    assert offset_at(store, "orders", 0, 0) == first
    assert messages(store, "orders", 0)[0][0] == first
    assert not store.reader.damaged
    store.abandon()


def test_a_damaged_index_of_a_queue_whose_beginning_was_deleted_is_read_from_what_is_left(tmp_path: Path) -> None:
    store, _ = filled(tmp_path)
    delete_due(store, Retention(max_messages=30), everything)
    store.close(b"")
    for index in tmp_path.glob("queues/orders/*/*.index"):
        index.write_bytes(b"")
    store, _ = opened(tmp_path)
    assert left(store) == list(range(12, 40))
    assert store.bounds("orders", 0) == (6, 20)
    assert send(store, 0, b"040") == 20
    store.close(b"")
    store, _ = opened(tmp_path)
    assert left(store) == list(range(12, 41))
    store.abandon()


def test_file_is_due_when_the_last_topic_in_it_is_by_its_own_age() -> None:
    rule, ages = Retention(max_age=100), {"audit": 1_000.0, "noise": 10.0}

    def is_due(now: float, *topics: str) -> bool:
        parts = by_own_ages([QueuePart(topic, 0, 10, 0.0) for topic in topics], rule.max_age, ages.get)
        return rule.is_due(age=now - max(part.newest for part in parts), size=1, messages=1)

    assert [is_due(now, "orders") for now in (99, 101)] == [False, True]
    assert [is_due(now, "noise") for now in (9, 11)] == [False, True]
    assert [is_due(now, "noise", "orders") for now in (11, 99, 101)] == [False, False, True]
    assert [is_due(now, "noise", "orders", "audit") for now in (999, 1_001)] == [False, True]


def test_store_keeps_a_file_for_the_age_of_its_topic(tmp_path: Path) -> None:
    now = [1_000_000.0]
    store, *_ = opened(tmp_path, chunk_size=4096, clock=lambda: now[0], monotonic=lambda: now[0])
    for _ in range(12):
        send(store, 0, BODY, topic="audit")
    store.checkpoint(b"")
    store.checkpoint(b"")
    ages: dict[str, float] = {"audit": 1_000.0}
    store.deletion.own_age = ages.get
    now[0] += 999
    assert delete_due(store, Retention(max_age=100), everything) == 0
    ages["audit"] = 998.0
    assert delete_due(store, Retention(max_age=100), everything) > 0
    store.abandon()


def test_files_are_looked_into_for_some_queues_at_a_time_even_if_a_topic_comes_in_between(tmp_path: Path) -> None:
    store, *_ = opened(tmp_path, chunk_size=4096)
    for queue in range(2 * VIEWED_AT_ONCE + 1):
        send(store, queue, BODY)
    survey = store.deletion.begin_survey()
    assert survey is not None
    assert survey.take()
    send(store, 0, BODY, topic="new")
    assert [survey.take(), survey.take(), survey.take()] == [True, True, False]
    survey.run()
    seen = {part.queue for contents in survey.contents.values() for part in contents.parts}
    assert len(survey.contents) == SURVEYED_AT_ONCE
    assert seen == set(range(max(seen) + 1)), "the oldest files hold the first messages"
    store.abandon()


def test_a_topic_that_is_deleted_while_files_are_looked_into_or_afterwards_holds_none_back(tmp_path: Path) -> None:
    store, *_ = opened(tmp_path, chunk_size=4096)
    for _ in range(12):
        send(store, 0, BODY, topic="deleted")
    store.checkpoint(b"")
    store.checkpoint(b"")
    first = store.deletion.begin_survey()
    assert first is not None
    take_all(first)
    first.run()
    store.empty("deleted")
    store.deletion.finish_survey(first)
    again = store.deletion.begin_survey()
    assert again is not None, "what the first one has seen does not count"
    take_all(again)
    again.run()
    store.deletion.finish_survey(again)
    assert again.contents
    assert not any(list(contents.parts) for contents in again.contents.values())
    send(store, 0, b"new", topic="deleted")
    assert delete_due(store, Retention(max_bytes=1), lambda topic, queue: 12) >= len(again.contents)
    assert store.bounds("deleted", 0) == (12, 13)
    store.abandon()


def test_parts_of_a_file_are_what_was_added_in_this_order() -> None:
    parts = QueueParts()
    parts.add(("orders", 1), 7, 1_500, None)
    parts.add(("billing", 0), 1 << 62, 2_000, 0)
    assert list(parts) == [QueuePart("orders", 1, 7, 1.5, None), QueuePart("billing", 0, 1 << 62, 2.0, 0)]


def test_commit_that_allows_a_deletion_is_safe_before_the_files_are_gone(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    for number in range(60):  # several files
        send(store, 0, b"%d" % number * 100)
    store.checkpoint(b"")
    store.checkpoint(b"")
    store.append_control(b"a commit")
    assert delete_due(store, Retention(max_bytes=0), lambda topic, queue: 60)
    assert store.flushed == store.position
    store.close(b"")
