"""The threads that call a user's function with messages."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from enode_django.equeue.consumer.failing import FailureTopics
from enode_django.equeue.consumer.topic_consumer import TopicConsumer
from enode_django.equeue.consumer.worklist import Task, Worklist
from enode_django.equeue.leases import begin_handling
from enode_django.equeue.retrying import Message, error_text

logger = logging.getLogger("enode_django.equeue")

LOOK_AGAIN = 0.05
"""Seconds between checks of a lease that was not renewed in time."""


class Handling:
    """The work of the handling threads: each calls `run`, which returns when the worklist is closed. An `Exception` of
    ``handle`` fails the message; any other exception leaves `run`, and the message is delivered again."""

    def __init__(
        self,
        handle: Callable[[Message], object],
        worklist: Worklist,
        consumers: Mapping[str, TopicConsumer],
        failures: FailureTopics,
    ) -> None:
        self._handle = handle
        self._worklist = worklist
        self._consumers = consumers
        self._failures = failures
        self._closed = threading.Event()

    def run(self) -> None:
        while (task := self._worklist.take()) is not None:
            again = self._work(task)
            if again is None:
                self._worklist.done(task)
            else:
                self._worklist.again(again)

    def close(self) -> None:
        """Let the threads end after their current tasks."""
        self._closed.set()
        self._worklist.close()

    def _work(self, task: Task) -> Task | None:
        """Return the task to be handled again; None when it is done."""
        if not self._is_ours(task):
            return None if task.window.closed else task
        if task.broken:
            return self._set_aside(task, task.broken, for_good=True)
        try:
            begin_handling(task.window)
            self._handle(task.message)
        except Exception as error:
            message = task.message
            logger.warning(
                "%s/%d: the handler failed at offset %d, attempt %d",
                *(message.topic, message.queue, message.offset, message.attempt),
                exc_info=error,
            )
            return self._set_aside(task, error_text(error))
        self._consumers[task.window.topic].finish(task)
        return None

    def _is_ours(self, task: Task) -> bool:
        """Return True if the lease of the task's queue holds. Block while that is uncertain."""
        window = task.window
        while not window.closed and not window.holds:
            if self._closed.wait(LOOK_AGAIN):
                return False
        return not window.closed

    def _set_aside(self, task: Task, error: str, *, for_good: bool = False) -> Task | None:
        due = self._failures.set_aside(task.message, error, for_good=for_good)
        if due is None:
            self._consumers[task.window.topic].finish(task)
            return None
        return task._replace(due=due, message=task.message._replace(attempt=task.message.attempt + 1))
