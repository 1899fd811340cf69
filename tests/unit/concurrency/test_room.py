from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from enode_django.concurrency.room import Room

SOON = 60.0


@pytest.fixture
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2)


def test_who_waits_goes_on_when_others_have_given_back(pool: ThreadPoolExecutor) -> None:
    room = Room(10)
    room.take(9)
    room.wait()  # some room is left, and the next take may exceed it
    room.take(9)
    began = threading.Event()

    def wait() -> int:
        began.set()
        room.wait()
        return room.taken

    waiting = pool.submit(wait)
    assert began.wait(SOON)
    room.give(8)
    assert not waiting.done()
    room.give(1)
    assert waiting.result(SOON) == 9


def test_nobody_waits_when_it_is_closed(pool: ThreadPoolExecutor) -> None:
    room = Room(0)
    assert room.is_full
    waiting = pool.submit(room.wait)
    room.close()
    waiting.result(SOON)
    room.wait()
    assert not room.is_full
