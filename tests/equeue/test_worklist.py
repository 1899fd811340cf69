from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from enode_django.equeue.consumer.worklist import Task, Worklist
from enode_django.equeue.offsets import OffsetWindow
from enode_django.equeue.retrying import Message


def test_a_queue_has_one_lane_whichever_of_its_windows_a_message_was_pulled_for() -> None:
    worklist = Worklist(linear=True, clock=lambda: 0.0)
    before, after = (OffsetWindow("orders", 0, epoch=epoch, committed=0, deadline=0) for epoch in (1, 2))
    other = OffsetWindow("orders", 1, epoch=1, committed=0, deadline=0)
    tasks = [Task(window, 0, Message("orders", window.queue, 0, b"")) for window in (before, after, other)]
    worklist.post(tasks)
    assert worklist.take() == tasks[0]
    assert worklist.take() == tasks[2]
    worklist.done(tasks[0])
    assert worklist.take() == tasks[1]


class WorklistMachine(RuleBasedStateMachine):
    """No task is lost or handed out twice, the tasks left in each window are counted, and a linear list hands out a
    window's tasks in order."""

    @initialize(linear=st.booleans())
    def make(self, linear: bool) -> None:
        self.now = 0.0
        self.linear = linear
        self.worklist = Worklist(linear=linear, clock=lambda: self.now)
        self.windows = [OffsetWindow("orders", queue, epoch=1, committed=0, deadline=0) for queue in range(3)]
        self.next = Counter[OffsetWindow]()
        self.open: list[Task] = []
        self.at_work: list[Task] = []
        self.left = Counter[OffsetWindow]()
        self.withdrawn: set[OffsetWindow] = set()
        self.closed = False

    def ready(self) -> list[Task]:
        busy = {task.window.queue for task in self.at_work} if self.linear else set()
        return [task for task in self.open if task.due <= self.now and task.window.queue not in busy]

    @rule(queue=st.integers(0, 2), delays=st.lists(st.sampled_from([0.0, 0.0, 5.0, 9.0]), max_size=4))
    def post(self, queue: int, delays: list[float]) -> None:
        window = self.windows[queue]
        tasks = []
        for delay in delays:
            offset = self.next[window]
            self.next[window] += 1
            tasks.append(Task(window, offset, Message("orders", queue, offset, b""), self.now + delay if delay else 0))
        self.worklist.post(tasks)
        self.enter(tasks)

    def enter(self, tasks: list[Task]) -> None:
        for task in tasks:
            if self.closed or task.window in self.withdrawn:
                self.left[task.window] += 1
            else:
                self.open.append(task)

    @precondition(lambda self: self.closed or self.ready())
    @rule()
    def take(self) -> None:
        task = self.worklist.take()
        if self.closed:
            assert task is None
            return
        assert task in self.ready()
        if self.linear and not task.due:
            mates = [one.offset for one in self.open if one.window is task.window and not one.due]
            assert task.offset == min(mates)
        self.open.remove(task)
        self.at_work.append(task)

    @precondition(lambda self: self.at_work)
    @rule(data=st.data(), again=st.sampled_from([None, None, 0.0, 3.0]))
    def end(self, data: st.DataObject, again: float | None) -> None:
        task = data.draw(st.sampled_from(self.at_work))
        self.at_work.remove(task)
        if again is None:
            self.worklist.done(task)
        else:
            later = task._replace(due=self.now + again or 0.1)
            self.worklist.again(later)
            self.enter([later])

    @rule(queue=st.integers(0, 2))
    def withdraw(self, queue: int) -> None:
        window = self.windows[queue]
        waiting = [task for task in self.open if task.window is window and self.waits(task)]
        self.worklist.withdraw(window)
        self.withdrawn.add(window)
        for task in waiting:
            self.open.remove(task)
            self.left[window] += 1

    def waits(self, task: Task) -> bool:
        """Return True if the list counts the task as waiting. It checks the clock only when a task is posted or
        taken."""
        return any(one is task for _, _, one in self.worklist._waiting) or task.due > self.now

    @rule()
    def time_passes(self) -> None:
        self.now += 4

    @precondition(lambda self: not self.closed)
    @rule(really=st.sampled_from([False, False, True]))
    def close(self, really: bool) -> None:
        if really:
            self.worklist.close()
            self.closed = True
            self.left.update(task.window for task in self.open)
            self.open.clear()

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "worklist"):
            assert {window: self.worklist.left(window) for window in self.windows} == {
                window: self.left[window] for window in self.windows
            }
            if not self.open and not self.at_work:
                assert self.worklist.wait_idle(0)
            if self.at_work:
                assert not self.worklist.wait_idle(0)


TestWorklist = WorklistMachine.TestCase
TestWorklist.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
