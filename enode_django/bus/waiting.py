"""One sender's wait for one command, without a thread of its own: what has come, and what is missing."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial

from enode_django.bus.notices import Notice
from enode_django.bus.results import CommandResult
from enode_django.equeue.messages import SendResult
from enode_django.exceptions import TransportUnavailable

logger = logging.getLogger("enode_django.commands")

AwaitedSubscribers = Callable[[Sequence[str]], Mapping[str, str]]
"""Return the names, by key, of the subscribers to be waited for, given the stored names of a command's events."""


class Wait:
    """One sender's wait. ``future`` is done when the answer and a notice of each of ``awaited`` (None: of none) have
    come, in any order. Called by the receiving thread; the sender's thread may call `progress` at any time."""

    def __init__(self, awaited: AwaitedSubscribers | None = None) -> None:
        self.future: Future[CommandResult] = Future()
        self._find_awaited = awaited
        self._answer: CommandResult | None = None
        self._awaited: Mapping[str, str] = {}
        self._errors: dict[str, str] = {}

    def take_sent(self, sending: Future[SendResult]) -> None:
        """End the wait if the command could not be sent. Called by the thread that has sent, or has closed the bus."""
        if sending.cancelled():
            error: BaseException | None = TransportUnavailable("the bus was closed before it was sent; send it again")
        else:
            error = sending.exception()
        if error is not None:
            self._settle(partial(self.future.set_exception, error))

    def take_answer(self, answer: CommandResult) -> None:
        if self._answer is not None:
            return
        if self._find_awaited is not None and answer.event_types:
            try:
                self._awaited = self._find_awaited(answer.event_types)
            except Exception as error:  # ``awaited`` failed: the receiving thread goes on
                self._settle(partial(self.future.set_exception, error))
                return
        self._answer = answer
        self._settle_if_complete()

    def take_notice(self, notice: Notice) -> None:
        """Take in a notice. One that comes before the answer is kept."""
        if self._errors.get(notice.subscriber) == "":
            return
        self._errors[notice.subscriber] = notice.error
        self._settle_if_complete()

    def progress(self) -> tuple[CommandResult | None, tuple[str, ...]]:
        """Return the answer so far, and the subscribers whose notices are missing (none before the answer, which names
        them)."""
        answer, errors = self._answer, dict(self._errors)
        if answer is None:
            return None, ()
        parked = tuple(sorted(name for key, name in self._awaited.items() if errors.get(key)))
        missing = tuple(sorted(name for key, name in self._awaited.items() if key not in errors))
        return dataclasses.replace(answer, parked=parked) if parked else answer, missing

    def _settle_if_complete(self) -> None:
        executed, missing = self.progress()
        if executed is not None and not missing:
            self._settle(partial(self.future.set_result, executed))

    @staticmethod
    def _settle(settle: Callable[[], None]) -> None:
        try:
            settle()
        except InvalidStateError:
            logger.debug("what is missing came twice, or for somebody who waits no longer")
