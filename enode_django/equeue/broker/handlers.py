"""The handlers of requests: the methods of the transport port, as clients call them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from enode_django.equeue.broker.accepting import Accepting, Send
from enode_django.equeue.broker.answering import Answering
from enode_django.equeue.broker.backups import Backups
from enode_django.equeue.broker.calls import LATER, Background, Call, Later, WhenSafe
from enode_django.equeue.broker.index_files import IndexFile, delete_index_files
from enode_django.equeue.broker.index_loader import offsets_at
from enode_django.equeue.broker.measuring import Measuring
from enode_django.equeue.broker.pulling import Pulling
from enode_django.equeue.broker.requests import REQUESTS, checked
from enode_django.equeue.broker.state import BrokerState
from enode_django.equeue.broker.store import MessageStore
from enode_django.equeue.messages import Route
from enode_django.equeue.portions import portions
from enode_django.equeue.refusals import topic_deleted
from enode_django.exceptions import BadRequest


class Handlers:
    """Handles requests. A request without an entry below is a method of its name, of this class or else of the state.
    ``when_safe``: given if writes must be safe before their answers. ``trim`` deletes now."""

    def __init__(
        self,
        store: MessageStore,
        state: BrokerState,
        pulling: Pulling,
        accepting: Accepting,
        answering: Answering,
        *,
        when_safe: WhenSafe | None,
        trim: Callable[[Callable[[], None]], None],
        backups: Backups,
        measuring: Measuring,
    ) -> None:
        self._store = store
        self._state = state
        self._pulling = pulling
        self._background = Background()
        self._accepting = accepting
        self._answering = answering
        self._when_safe = when_safe
        self._trim = trim
        self._waiting: Mapping[str, Callable[..., Any]] = {
            "send": self.send,
            "pull": self.pull,
            "receive": answering.receive,
            "trim": self.trim,
            "offsets_at": self.offsets_at,
            "back_up": backups.begin,
            "figures": measuring.begin,
        }
        known = state.coordinator  # which is restored by now. Its changes are the state's, which writes them down
        self._plain: dict[str, Callable[..., Any]] = {
            "committed": known.committed,
            "paused_groups": known.paused_groups,
            "receipts": known.receipts,
            "groups": state.shown_groups,
            "status": measuring.status,
            "open_inbox": answering.open,
            "close_inbox": answering.close,
            "reply": answering.reply,
        }
        for name in REQUESTS.keys() - self._plain.keys() - self._waiting.keys():
            self._plain[name] = getattr(self if hasattr(self, name) else state, name)

    def handle(self, call: Call, name: str, values: Sequence[Any]) -> None:
        """Answer the call, now or later, or raise the error with which the caller answers it."""
        arguments = checked(name, values)
        if REQUESTS[name].when_safe:
            call.when_safe = self._when_safe
        plain = self._plain.get(name)
        value = plain(*arguments) if plain is not None else self._waiting[name](call, *arguments)
        if not isinstance(value, Later):
            call.answer_when_safe(value)

    # -- topics ---------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        return sorted(self._state.coordinator.topics)

    def queue_count(self, topic: str) -> int:
        return self._state.coordinator.topic(topic).queues

    def queues(self, topic: str) -> Mapping[int, Any]:
        return self._state.coordinator.topic(topic).shown(self._state.bounds(topic))

    def route(self, topic: str) -> Route:
        return self._state.coordinator.topic(topic).route

    def delete_topic(self, topic: str, force: bool) -> None:
        files = self._state.delete_topic(topic, force)
        self._pulling.refuse(topic, topic_deleted(topic))
        _delete_soon(files)

    def delete_queue(self, topic: str, queue: int, force: bool) -> None:
        _delete_soon(self._state.delete_queue(topic, queue, force))

    # -- messages -------------------------------------------------------------------------------------------------

    def send(self, call: Call, *values: Any) -> Mapping[int, int] | Later:
        return self._accepting.send(call, Send(*values))

    def pull(self, call: Call, topic: str, offsets: Mapping[int, int], limit: int, wait: float) -> list[Any] | Later:
        if limit < 1:
            raise BadRequest(f"limit must be at least 1, got {limit!r}")
        self._state.coordinator.topic(topic, offsets)
        return self._pulling.pull(call, topic, offsets, limit, wait)

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        return {queue: end for queue, (_, end) in self._state.bounds(topic).items()}

    def offsets_at(self, call: Call, topic: str, time: float) -> Later:
        queues = range(self._state.coordinator.topic(topic).queues)
        found = offsets_at(self._store, self._pulling.indexes, topic, queues, time)
        return self._background.answer(call, "offsets_at", found)

    def timelines(self, topic: str) -> Mapping[int, str]:
        name, copies = self._state.timeline, self._state.copies
        return {q: copies.timeline(name, topic, q) for q in range(self._state.coordinator.topic(topic).queues)}

    # -- groups ---------------------------------------------------------------------------------------------------

    def receipts_from(self, group: str, topic: str, queue: int, first: int) -> Sequence[bytes]:
        """Return receipts from index ``first`` on, as many as fit one answer; empty after the last one."""
        return next(portions(self._state.coordinator.receipts(group, topic, queue, first), len), [])

    def trim(self, call: Call, topic: str) -> Later:
        self._state.coordinator.topic(topic)
        self._trim(lambda: call.answer(None))
        return LATER


def _delete_soon(files: Sequence[IndexFile]) -> None:
    if files:
        asyncio.get_running_loop().run_in_executor(None, delete_index_files, files)
