"""Answers between processes: the inboxes, and the requests that wait for answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from enode_django.equeue.broker.calls import LATER, Call, Later
from enode_django.equeue.broker.inboxes import RETURNING, Inbox, Inboxes


class Answering:
    def __init__(self, first_number: int, clock: Callable[[], float]) -> None:
        self._inboxes = Inboxes(first_number, clock() + RETURNING)
        self._clock = clock
        self._waiting: dict[str, Call] = {}

    def open(self, address: str) -> None:
        self._inboxes.open(address, self._clock())

    def close(self, address: str) -> None:
        waiting = self._waiting.get(address)
        if waiting is not None:
            waiting.answer((0, []))
        self._inboxes.close(address)

    def receive(self, call: Call, address: str, following: int, wait: float) -> tuple[int, Sequence[bytes]] | Later:
        """Return the number of the next answer, and the answers from ``following`` up to it. Waits ``wait`` seconds for
        one."""
        inbox = self._inboxes.open(address, self._clock(), following)
        inbox.arrived(following)
        earlier = self._waiting.get(address)
        if earlier is not None:  # its client has given up, or two clients receive from one inbox
            earlier.answer((following, []))
        if inbox.bodies or not wait:
            return inbox.given()
        timer = asyncio.get_running_loop().call_later(wait, lambda: call.answer(inbox.given()))
        self._waiting[address] = call
        call.on_end = lambda: self._end(address, inbox, timer)
        return LATER

    def reply(self, replies: Sequence[tuple[str, bytes]]) -> None:
        answered = {}
        for address, body in replies:
            inbox = self._inboxes.reply(address, body, self._clock())
            if inbox is not None:
                answered[address] = inbox
        for address, inbox in answered.items():
            waiting = self._waiting.get(address)
            if waiting is not None:
                waiting.answer(inbox.given())

    def answer_all(self) -> None:
        """Answer all waiting requests at once, with what their inboxes hold: nothing."""
        for address, waiting in list(self._waiting.items()):
            waiting.answer(self._inboxes.open(address, self._clock()).given())

    def __len__(self) -> int:
        """Return how many requests wait for answers."""
        return len(self._waiting)

    def forget(self) -> None:
        self._inboxes.forget(self._clock(), self._waiting)

    def _end(self, address: str, inbox: Inbox, timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        inbox.seen = self._clock()
        del self._waiting[address]
