"""The threads that call a user's function with messages, and the lease under which they do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar

from enode_django.equeue.consumer.failing import FailureTopics
from enode_django.equeue.consumer.topic_consumer import TopicConsumer
from enode_django.equeue.consumer.worklist import Task, Worklist
from enode_django.equeue.offsets import OffsetWindow
from enode_django.equeue.retrying import Message, error_text
from enode_django.exceptions import QueueError

logger = logging.getLogger("enode_django.equeue")

LOOK_AGAIN = 0.05
"""Seconds between checks of a lease that was not renewed in time."""

_window: ContextVar[OffsetWindow] = ContextVar("enode_window")


def lease_holds() -> bool:
    r"""Return True if no other consumer of the group can own the queue of the message that is being handled.

    For long-running handlers of a `Consumer`. False may become True again when the queue was only unreachable for a
    time; when the queue was lost it stays False, and another consumer gets the message. With `Mode.BROADCASTING` no
    other consumer shares the queue. Raises `QueueError` outside of a handler (or its `contextvars` context).

    For example::

        def print_pages(message: Message) -> None:
            for page in message.body.split(b"\f"):
                if not lease_holds():
                    return  # another consumer begins with the message again
                print(page)
    """
    window = _window.get(None)
    if window is None:
        raise QueueError("lease_holds() asks for the message that a handler is at; call it from a consumer's handler")
    return window.holds


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
            _window.set(task.window)  # for `lease_holds`; this thread does nothing else
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
