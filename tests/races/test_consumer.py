"""Leases of queues: owned, waited for, and lost without the owner's knowledge."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from enode_django.equeue.consumer.queue_consumer import RETRY_ACQUIRE, QueueConsumer
from enode_django.equeue.consumer.topic_consumer import Beginner, Starts
from enode_django.equeue.messages import Commit, Lease, Membership, PulledBatch, Receipt, Start
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.exceptions import PartlyUnavailable, TransportUnavailable
from tests.races.harness import Clock

LEASE = 10.0


class Setting:
    def __init__(self) -> None:
        self.clock = Clock()
        self.transport = MemoryTransport(clock=self.clock)
        self.transport.create_topic("t", 3)
        self.one, self.two = self.consumer("one"), self.consumer("two")

    def consumer(self, owner: str) -> QueueConsumer:
        return QueueConsumer(self.transport, group="g", topic="t", owner=owner, lease=LEASE, clock=self.clock)

    def send(self, count: int, queue: int = 0) -> None:
        self.transport.send("t", {queue: [b"%d" % n for n in range(count)]})

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    def committed(self) -> int:
        return self.transport.committed("g", "t")[0]


@pytest.fixture
def setting() -> Setting:
    return Setting()


def take(consumer: QueueConsumer, *queues: int) -> list[str | None]:
    consumer.assign(queues)
    return [acquired.previous_owner for acquired in consumer.acquire_missing()]


def pulled(consumer: QueueConsumer, limit: int = 100) -> list[int]:
    return [offset for batch in consumer.pull(limit, 0) for offset in batch.offsets]


def finish(consumer: QueueConsumer, *offsets: int, queue: int = 0) -> None:
    consumer._windows[queue].finish_many(offsets)


def test_held_queue_is_waited_for_and_its_holder_named_once_it_lasts(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    assert take(setting.one, 0, 1) == [None, None]
    assert take(setting.two, 0, 2) == [None]
    assert setting.two.owned == {2}
    assert "holds it" not in caplog.text
    for _ in range(60):
        setting.pass_time(0.1)
        setting.one.renew()
        setting.two.acquire_missing()
    assert caplog.text.count("t/0 is to be ours, but one holds it") == 1


def test_what_is_acquired_at_once_is_said_in_one_line(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    take(setting.two, 1)
    take(setting.one, 0, 1, 2)
    setting.one.acquire_missing()
    assert caplog.messages == ["acquired t/1 for g", "acquired t/0, 2 for g"]


def test_queue_of_an_owner_known_to_be_dead_is_taken_at_once(setting: Setting) -> None:
    take(setting.one, 0)
    setting.transport.bury("g", "t", "one", [(0, 1)])
    setting.two.assign([0])
    ((window, previous, deaths),) = setting.two.acquire_missing()
    assert (previous, window.epoch, deaths) == ("one", 2, {1: 1})


def test_expired_lease_is_taken_and_the_old_owner_finds_out_by_committing(setting: Setting) -> None:
    setting.send(3)
    take(setting.one, 0)
    assert pulled(setting.one) == [0, 1, 2]
    setting.pass_time(LEASE)
    assert take(setting.two, 0) == ["one"]
    finish(setting.one, 0, 1, 2)
    (window,) = setting.one._all_windows()
    setting.one.commit()
    assert (window.closed, window.committed, setting.committed()) == (True, 0, 0)
    assert setting.one.unfinished == 0
    assert pulled(setting.one) == []
    assert pulled(setting.two) == [0, 1, 2]


def test_old_owner_finds_out_by_renewing(setting: Setting) -> None:
    take(setting.one, 0, 1)
    setting.pass_time(LEASE)
    take(setting.two, 0)
    setting.one.renew()
    windows = {window.queue: window for window in setting.one._all_windows()}
    assert (windows[0].closed, windows[1].closed) == (True, False)
    assert windows[1].deadline == setting.clock.now + LEASE
    setting.one.acquire_missing()
    assert setting.one.owned == {1}


def test_deadline_counts_from_before_the_transport_was_asked(setting: Setting) -> None:
    acquire, renew = setting.transport.acquire, setting.transport.renew

    def acquire_slowly(*arguments: Any, **options: Any) -> Lease:
        setting.pass_time(3)
        return acquire(*arguments, **options)

    def renew_slowly(*arguments: Any) -> object:
        setting.pass_time(3)
        return renew(*arguments)

    setting.transport.acquire = acquire_slowly  # type: ignore[method-assign]
    setting.transport.renew = renew_slowly  # type: ignore[assignment]
    before = setting.clock.now
    take(setting.one, 0)
    (window,) = setting.one._all_windows()
    assert (window.deadline, setting.clock.now) == (before + LEASE, before + 3)
    setting.one.renew()
    assert window.deadline == before + 3 + LEASE


def test_leases_that_some_servers_have_renewed_hold_though_others_are_away(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def partly(*arguments: object) -> None:
        raise PartlyUnavailable("a server is away", answers={0: True, 1: False})

    take(setting.one, 0, 1, 2)
    windows = {window.queue: window for window in setting.one.open_windows}
    monkeypatch.setattr(setting.transport, "renew", partly)
    setting.pass_time(LEASE / 2)
    with pytest.raises(PartlyUnavailable):
        setting.one.renew()
    setting.pass_time(LEASE / 2)
    assert [(window.holds, window.closed) for _, window in sorted(windows.items())] == [
        (True, False),
        (False, True),
        (False, False),
    ]


def test_an_unusable_server_of_a_missing_queue_stops_no_pull_or_release_of_others(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> Lease:
        raise TransportUnavailable("its server is away")

    take(setting.one, 0)
    monkeypatch.setattr(setting.transport, "acquire", fail)
    assert take(setting.one, 0, 1) == []
    assert setting.one.owned == {0}
    assert take(setting.one, 1) == [], "the other is to be released"
    setting.one.release_drained()
    setting.one.assign([1])
    with pytest.raises(TransportUnavailable):
        setting.one.acquire_missing()


def test_a_group_whose_first_member_died_while_it_began_begins_everywhere_where_it_shall(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire, calls = setting.transport.acquire, iter(range(1))

    def acquire_once(*arguments: Any, **options: Any) -> Lease:
        if next(calls, None) is None:
            raise TransportUnavailable("the member is dead")
        return acquire(*arguments, **options)

    def begin() -> None:
        Starts(setting.transport, "t", Start.LAST, Beginner("g", "one", LEASE)).ask()

    for queue in range(3):
        setting.send(2, queue)
    with monkeypatch.context() as dying:
        dying.setattr(setting.transport, "acquire", acquire_once)
        with pytest.raises(TransportUnavailable):
            begin()
    begin()
    assert setting.transport.committed("g", "t") == {0: 2, 1: 2, 2: 2}


def test_a_pull_of_several_routes_has_the_version_of_the_newest(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [PulledBatch(queue, range(1), [b"x"], route) for queue, route in enumerate((3, 5, 4))]
    monkeypatch.setattr(setting.transport, "pull", lambda *arguments, **options: batches)
    take(setting.one, 0, 1, 2)
    setting.one.pull(1, 0)
    assert setting.one.route_version() == 5


def test_receipts_of_all_queues_are_those_of_other_owners_too(setting: Setting) -> None:
    take(setting.one, 0)
    lease = setting.transport.acquire("g", "t", 2, "two", LEASE)
    setting.transport.commit("g", "t", {2: Commit(lease.epoch, 1, [Receipt(0, b"of two")], 1)})
    assert setting.one.receipts_of_all() == [b"of two"]


def test_queue_lost_and_acquired_anew_starts_from_what_was_committed(setting: Setting) -> None:
    setting.send(4)
    take(setting.one, 0)
    pulled(setting.one)
    finish(setting.one, 0, 1)
    setting.one.commit()
    finish(setting.one, 3)
    (old,) = setting.one._all_windows()
    old.close()
    setting.pass_time(0.2)
    ((fresh, previous, _),) = setting.one.acquire_missing()
    assert previous is None
    assert (fresh.epoch, fresh.next_offset, fresh.backlog_end, fresh.closed) == (old.epoch + 1, 2, 4, False)
    assert pulled(setting.one) == [2, 3]
    setting.one.commit()
    assert setting.committed() == 2


def test_unassigned_queue_is_drained_then_released_and_goes_on_elsewhere(setting: Setting) -> None:
    setting.send(3)
    take(setting.one, 0)
    take(setting.two, 0)
    assert pulled(setting.one) == [0, 1, 2]
    (window,) = setting.one._all_windows()
    take(setting.one)
    assert (setting.one.owned, setting.one.is_idle, setting.one.unfinished) == (frozenset(), False, 3)
    assert pulled(setting.one) == []
    window.finish_many([0, 1])
    setting.one.release_drained()
    assert not setting.one.is_idle
    window.finish(2)
    setting.one.release_drained()
    assert setting.one.is_idle
    assert window.closed
    setting.pass_time(0.2)
    ((fresh, previous, _),) = setting.two.acquire_missing()
    assert (previous, fresh.next_offset) == (None, 3)


def test_drained_queue_is_kept_until_what_it_has_finished_is_committed(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise PartlyUnavailable("its server is away", answers={})

    setting.send(2)
    take(setting.one, 0)
    finish(setting.one, *pulled(setting.one))
    take(setting.one)
    with monkeypatch.context() as away:
        away.setattr(setting.transport, "commit", fail)
        setting.one.release_drained()
    assert take(setting.two, 0) == []
    setting.one.release_drained()
    setting.pass_time(0.2)
    assert [acquired.window.next_offset for acquired in setting.two.acquire_missing()] == [2]


def test_queue_assigned_again_while_it_drains_is_taken_again_only_after_that(setting: Setting) -> None:
    setting.send(1)
    take(setting.one, 0)
    pulled(setting.one)
    (old,) = setting.one._all_windows()
    take(setting.one)
    assert take(setting.one, 0) == []
    assert setting.one.owned == frozenset()
    old.finish(0)
    setting.one.release_drained()
    setting.pass_time(0.2)
    assert [acquired.window.next_offset for acquired in setting.one.acquire_missing()] == [1]


def test_leases_are_renewed_while_draining(setting: Setting) -> None:
    setting.send(1)
    take(setting.one, 0)
    pulled(setting.one)
    take(setting.one)
    for _ in range(5):
        setting.pass_time(LEASE / 2)
        setting.one.renew()
    assert take(setting.two, 0) == []


def test_abandon_commits_what_is_finished_and_gives_everything_back_at_once(setting: Setting) -> None:
    setting.send(3)
    take(setting.one, 0, 1)
    pulled(setting.one)
    finish(setting.one, 0)
    windows = setting.one._all_windows()
    setting.one.abandon()
    assert all(window.closed for window in windows)
    assert setting.one.is_idle
    assert take(setting.two, 0, 1) == [None, None]
    assert pulled(setting.two) == [1, 2]


def test_stale_release_leaves_the_new_owner_alone(setting: Setting) -> None:
    take(setting.one, 0)
    setting.pass_time(LEASE)
    take(setting.two, 0)
    setting.one.abandon()
    third = setting.consumer("three")
    assert take(third, 0) == []


def test_message_pulled_after_the_window_closed_is_not_taken(setting: Setting) -> None:
    setting.send(2)
    take(setting.one, 0)
    (window,) = setting.one._all_windows()
    original = setting.transport.pull

    def closing(*arguments: object, **options: object) -> object:
        window.close()
        return original(*arguments, **options)  # type: ignore[arg-type]

    setting.transport.pull = closing  # type: ignore[method-assign,assignment]
    assert pulled(setting.one) == []
    assert window.unfinished == 0


def test_commit_moves_only_to_the_lowest_unfinished_offset_and_is_not_repeated(setting: Setting) -> None:
    setting.send(5)
    take(setting.one, 0)
    pulled(setting.one)
    finish(setting.one, 1, 2, 4)
    setting.one.commit()
    assert setting.committed() == 0
    finish(setting.one, 0)
    setting.one.commit()
    assert setting.committed() == 3
    setting.one.trim()
    assert setting.transport.pull("t", {0: 0}, limit=9, wait=0)[0].offsets[0] == 3


# -- members ------------------------------------------------------------------------------------------------------


def test_a_queue_that_moves_is_handled_by_its_next_owner_only_when_the_one_before_has_released_it(
    setting: Setting,
) -> None:
    setting.send(3)
    setting.one.join()
    setting.one.acquire_missing()
    assert setting.one.owned == {0, 1, 2}
    assert pulled(setting.one) == [0, 1, 2]
    setting.two.join()
    setting.two.acquire_missing()
    setting.one.join()
    setting.one.acquire_missing()
    assert len(setting.one.owned) == 2
    moved = ({0, 1, 2} - setting.one.owned).pop()
    setting.pass_time(RETRY_ACQUIRE)
    assert setting.two.acquire_missing() == []
    for window in setting.one.open_windows:
        window.finish_many([0, 1, 2])
    setting.one.release_drained()
    setting.pass_time(RETRY_ACQUIRE)
    assert [one.window.queue for one in setting.two.acquire_missing()] == [moved]


class JoinsLate(MemoryTransport):
    """Calls ``first`` before each join, as if that had overtaken the join."""

    first: Callable[[], None]

    def join(self, group: str, topic: str, member: str, session: float) -> Membership:
        self.first()
        return super().join(group, topic, member, session)


def test_a_member_that_leaves_owns_nothing_new_though_its_joining_answers_late(setting: Setting) -> None:
    late = JoinsLate()
    late.create_topic("t", 3)
    leaver = QueueConsumer(late, group="g", topic="t", owner="leaver", lease=LEASE)
    late.first = leaver.leave
    leaver.join()
    assert leaver.acquire_missing() == []
    assert late.groups("t")["g"].members == {}
    leaver.join()
    assert late.groups("t")["g"].members == {}
