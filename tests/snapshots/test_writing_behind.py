from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from enode_django.concurrency.threads import join_threads, start_thread
from enode_django.repository.states import MemoryStates
from enode_django.repository.store import Snapshot
from enode_django.repository.writing_behind import WriteBehind
from enode_django.testing.shared_states_contract import state

SOON = 60.0


class Slow(MemoryStates):
    """Saves when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_save = threading.Event()
        self.is_saving = threading.Event()
        self.threads: set[str] = set()
        self.is_closed = False

    def save(self, states: Sequence[Snapshot]) -> None:
        self.is_saving.set()
        assert self.may_save.wait(SOON)
        self.threads.add(threading.current_thread().name)
        super().save(states)

    def delete(self, aggregate_root_id: str) -> None:
        self.threads.add(threading.current_thread().name)
        super().delete(aggregate_root_id)

    def close(self) -> None:
        self.is_closed = True


class Written:
    def __init__(self, most_waiting: int = 1_000) -> None:
        self.slow = Slow()
        self.behind = WriteBehind(self.slow, most_waiting=most_waiting)
        self._thread = start_thread(self.behind.name, self.behind.run)

    def end(self) -> dict[str, int]:
        """Write everything. Return the stored versions."""
        self.slow.may_save.set()
        self.behind.close()
        assert join_threads([self._thread], SOON) == []
        return {id: one.version for id, one in self.slow.states.items()}


@pytest.fixture
def written() -> Iterator[Written]:
    written = Written()
    yield written
    written.slow.may_save.set()
    written.behind.close()


def test_nobody_waits_for_a_write_and_a_read_does_not_wait_for_writes(written: Written) -> None:
    written.behind.save([state("a")])
    assert written.slow.is_saving.wait(SOON)
    written.behind.delete("b")
    written.behind.save([state("c")])
    assert written.behind.load("abc") == {}
    assert written.end() == {"a": 7, "c": 7}
    assert written.slow.threads == {"enode-states"}


def test_what_is_saved_and_deleted_comes_in_that_order(written: Written) -> None:
    """The order also holds for a state that is being written when it is deleted."""
    written.behind.save([state("a", 1), state("b", 1), state("c", 1)])
    assert written.slow.is_saving.wait(SOON)
    written.behind.save([state("a", 2), state("b", 2)])
    written.behind.delete("a")
    written.behind.discard(state("b"))
    written.behind.save([state("b", 3)])
    written.behind.save([state("b", 4)])
    assert written.end() == {"b": 4, "c": 1}


def test_what_waits_is_bounded_and_what_comes_on_top_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    written = Written(most_waiting=30)
    written.behind.save([state("a", payload=b"x" * 20)])
    assert written.slow.is_saving.wait(SOON)
    for n in range(3):
        written.behind.save([state(f"b{n}", payload=b"x" * 11)])
    written.behind.save([state("c", payload=b"x" * 10)])
    written.behind.delete("d")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert set(written.end()) == {"a", "c"}


def test_there_is_room_again_when_what_waited_is_written() -> None:
    written = Written(most_waiting=30)
    written.slow.may_save.set()
    for n in range(50):
        written.behind.save([state("a", n, b"x" * 20)])
        written.behind.save([state("b", n, b"x" * 20)])
    versions = written.end()
    assert versions["a"] >= 0
    assert written.behind._waiting == 0


def test_nothing_to_save_is_not_handed_on(written: Written) -> None:
    written.behind.save([])
    assert not written.slow.is_saving.is_set()
    assert written.end() == {}
    assert written.slow.is_closed
