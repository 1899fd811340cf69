from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace

import pytest

from enode_django.concurrency import backoff
from enode_django.concurrency.backoff import delays, once, until_it_works, within
from enode_django.concurrency.mailbox import Mailbox
from enode_django.concurrency.threads import THREAD_DIED, join_threads, start_thread
from enode_django.exceptions import StoreUnavailable, UnknownTopic


def test_mailbox_gives_batches_in_order_up_to_a_weight() -> None:
    box: Mailbox[list[int]] = Mailbox("box", len)
    for items in ([1, 2], [3], [4, 5, 6], [7]):
        box.post(items)
    assert box.max_offset == 7
    assert box.take(3) == [[1, 2], [3]]
    assert box.take(1) == [[4, 5, 6]]
    assert box.consume_offset == 6
    assert box.take(99) == [[7]]
    assert box.take(1, timeout=0.01) == []
    assert box.consume_offset == box.max_offset == 7


def test_closed_mailbox_gives_what_was_posted_before_and_then_none_for_ever() -> None:
    box: Mailbox[int] = Mailbox("box")
    box.post(1)
    box.close()
    box.post(2)
    assert box.take(10) == [1]
    assert box.take(10) is None
    assert box.take(10) is None


def test_mailbox_wakes_its_taker() -> None:
    box: Mailbox[int] = Mailbox("box")
    taken: list[int] = []
    thread = threading.Thread(target=lambda: taken.extend(box.take(1, timeout=240) or []))
    thread.start()
    box.post(5)
    thread.join(60)
    assert taken == [5]


def test_urgent_items_are_taken_before_what_waits_in_the_order_they_were_posted() -> None:
    box: Mailbox[int] = Mailbox("box")
    box.post(1)
    box.post(2)
    box.post_urgent(10)
    box.post_urgent(20)
    assert box.take(1) == [10, 20, 1]
    box.post_urgent(30)
    assert box.take(9) == [30, 2]
    assert box.take(1, timeout=0.01) == []


def test_urgent_item_that_comes_while_others_are_taken_stays_behind_the_earlier_one() -> None:
    weighed: list[str] = []

    def weigh(item: str) -> int:
        weighed.append(item)
        if weighed == ["posted", "posted"]:  # weighed by `post`, and now by `take`
            box.post_urgent("second")
        return 1

    box: Mailbox[str] = Mailbox("box", weigh)
    box.post_urgent("first")
    box.post("posted")
    assert box.take(2) == ["first", "second", "posted"]


@pytest.fixture
def switching_often() -> Iterator[None]:
    """Threads take turns in the middle of almost every call."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("switching_often")
def test_items_keep_their_order_while_others_post_in_the_middle_of_taking() -> None:
    box: Mailbox[tuple[str, int]] = Mailbox("box")
    count = 20_000
    posts = {"posted": box.post, "urgent": box.post_urgent}
    threads = [
        threading.Thread(target=lambda kind=kind: [posts[kind]((kind, n)) for n in range(count)]) for kind in posts
    ]
    for thread in threads:
        thread.start()
    taken: dict[str, list[int]] = {"posted": [], "urgent": []}
    while sum(map(len, taken.values())) < 2 * count:
        items = box.take(50, timeout=240)
        assert items, "all that was posted is taken"
        kinds = [kind for kind, _ in items]
        assert kinds == sorted(kinds, reverse=True), "what is urgent comes first"
        for kind, number in items:
            taken[kind].append(number)
    assert taken == {"posted": [*range(count)], "urgent": [*range(count)]}
    for thread in threads:
        thread.join()


def test_urgent_item_wakes_the_taker_of_an_empty_mailbox() -> None:
    box: Mailbox[int] = Mailbox("box")
    taken: list[int] = []
    thread = threading.Thread(target=lambda: taken.extend(box.take(1, timeout=240) or []))
    thread.start()
    box.post_urgent(5)
    thread.join(60)
    assert taken == [5]


def test_what_was_urgent_and_is_taken_does_not_wake_again() -> None:
    box: Mailbox[int] = Mailbox("box")
    box.post(1)
    box.post_urgent(10)
    assert box.take(1) == [10, 1]
    box.post(2)
    assert box.take(1) == [2]
    box.post_urgent(20)
    box.close()
    assert box.take(1) == [20]
    assert box.take(1) is None


def test_delays_double_up_to_the_longest() -> None:
    assert list(islice(delays(0.1, 0.5), 5)) == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_only_retriable_errors_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(backoff, "pause", slept.append)
    errors: list[Exception] = [StoreUnavailable("1"), StoreUnavailable("2")]

    def call() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    assert until_it_works(call) == "done"
    assert slept == [0.05, 0.1]
    for error in (UnknownTopic("t"), ValueError("v")):
        errors[:] = [error]
        with pytest.raises(type(error)):
            until_it_works(call)
    errors[:] = [StoreUnavailable("1")]
    with pytest.raises(StoreUnavailable):
        once(call)


@pytest.mark.parametrize(("seconds", "tries"), [(0.0, 1), (0.01, 2), (1.0, 6)])
def test_error_is_raised_by_the_first_try_that_begins_after_the_time_for_trying(
    monkeypatch: pytest.MonkeyPatch, seconds: float, tries: int
) -> None:
    began, now = list[float](), 0.0

    def sleep(pause: float) -> None:
        nonlocal now
        now += pause

    def fail() -> None:
        began.append(now)
        if len(began) > 10:
            raise AssertionError("it goes on for ever")
        raise StoreUnavailable("away")

    monkeypatch.setattr(backoff, "pause", sleep)
    monkeypatch.setattr(backoff, "time", SimpleNamespace(monotonic=lambda: now))
    with pytest.raises(StoreUnavailable):
        within(seconds)(fail)
    assert len(began) == tries
    assert began[-1] >= seconds


def test_threads_that_do_not_stop_are_named(caplog: pytest.LogCaptureFixture) -> None:
    stop = threading.Event()
    threads = [start_thread("stuck", stop.wait), start_thread("quick", lambda: None)]  # type: ignore[arg-type]
    threads[1].join(60)
    assert join_threads(threads, 0.05) == ["stuck"]
    assert "stuck" in caplog.text
    stop.set()
    assert join_threads(threads, 60) == []


DIES = """
import logging, threading
from enode_django.concurrency.threads import start_thread
logging.basicConfig()
def die():
    raise {error}
start_thread("the-vital-one", die, vital=True)
threading.Event().wait(60)
"""


@pytest.mark.parametrize("error", ["ValueError('because')", "KeyboardInterrupt('because')"])
def test_a_vital_thread_that_dies_ends_its_process_loudly(error: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DIES.format(error=error)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == THREAD_DIED
    assert "thread the-vital-one died" in done.stderr
    assert "because" in done.stderr


def test_a_vital_thread_says_with_which_status_its_process_ends() -> None:
    code = DIES.format(error="ValueError('because')").replace("vital=True", "vital=True, status=lambda: 77")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=240, check=False).returncode == 77
