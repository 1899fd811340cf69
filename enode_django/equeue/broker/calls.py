"""A request, until it is answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from enode_django.exceptions import EnodeError, QueueError, TransportUnavailable

if TYPE_CHECKING:
    from enode_django.equeue.broker.sessions import Session

logger = logging.getLogger(__name__)


class Later:
    """The type of `LATER`, which a handler returns if it has not answered yet."""


LATER: Final = Later()


WhenSafe = Callable[[Callable[[BaseException | None], None]], None]
"""Calls a function when everything stored so far is safe on the disk, or with the error if it never will be."""


class Call:
    """A request that is answered once, by `answer` or `fail`. Further answers, and answers after its connection is
    gone, are ignored.

    ``on_end`` is called when the call ends, however it ends, and ``on_room`` when `has_room` is true again. Large
    answers must wait for that: otherwise all of them are in memory until the client reads them.
    """

    __slots__ = ("_session", "number", "on_end", "on_room", "when_safe")

    def __init__(self, session: Session, number: int) -> None:
        self._session: Session | None = session
        self.number = number
        self.when_safe: WhenSafe | None = None
        """Set if the answer has to wait for the disk."""
        self.on_end: Callable[[], None] | None = None
        self.on_room: Callable[[], None] | None = None

    @property
    def has_room(self) -> bool:
        """Return False while the client does not read its answers."""
        return self._session is not None and self._session.has_room

    @property
    def is_over(self) -> bool:
        return self._session is None

    def answer(self, value: Any) -> None:
        session = self.drop()
        if session is not None:
            session.answer(self, value)

    def answer_when_safe(self, value: Any) -> None:
        if self.when_safe is None:
            self.answer(value)
        else:
            self.when_safe(lambda error: self.answer(value) if error is None else self.fail(_unsafe(error)))

    def fail(self, error: EnodeError) -> None:
        session = self.drop()
        if session is not None:
            session.fail(self, error)

    def fail_by_defect(self, name: str) -> None:
        """Fail a request of this name, and log the exception that is being handled: the client must get an answer."""
        logger.exception("request %s failed", name)
        self.fail(QueueError(f"the broker failed at {name}; its log says why"))

    def drop(self) -> Session | None:
        """End without an answer; returns the session that would have sent it, None if the call was over."""
        session, self._session = self._session, None
        on_end, self.on_end, self.on_room = self.on_end, None, None  # they may hold a large send
        if session is not None and on_end is not None:
            on_end()
        return session


class Background:
    """Tasks of the event loop, which itself keeps no task."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def answer(self, call: Call, name: str, value: Coroutine[Any, Any, Any]) -> Later:
        """Answer a request of this name with what ``value`` returns or raises."""
        self.start(_answer(call, name, value))
        return LATER


async def _answer(call: Call, name: str, value: Coroutine[Any, Any, Any]) -> None:
    try:
        call.answer(await value)
    except EnodeError as error:
        call.fail(error)
    except Exception:
        call.fail_by_defect(name)


def _unsafe(error: BaseException) -> EnodeError:
    return TransportUnavailable(f"the broker's disk does not keep what is written ({error}); it stops")
