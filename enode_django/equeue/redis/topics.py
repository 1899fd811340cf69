"""Topics on Redis: their queues, which of them are visible, changes of both while others send, and deletion.

Each queue has a copy of the version of its topic's route, which sends are checked against, since it may be on another
server than the topic. A change closes the old route at every queue, then checks the backlog, then decides at the topic
in one step, and then updates the queues. Senders that find a closed queue wait. If the maker of the change has died,
they update the queue from the topic themselves: any process may do so, as long as the update is not older than the
queue's last one.

A deletion marks the queues as deleted first, which refuses sends and owners. Then it checks whether the topic is used,
decides at the topic in one step, and deletes the rest. If its process dies, the next one that creates or deletes the
topic continues. A small rest stays: the version and round of the topic; the end, epoch and round of each queue. So
nothing that was issued for the deleted topic is valid for a later one of the same name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from enode_django.equeue.messages import GroupState, QueueState
from enode_django.equeue.redis import topic_scripts
from enode_django.equeue.redis.batches import milliseconds, parse_queues
from enode_django.equeue.redis.connection import RedisConnection, ScriptCall
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.redis.partly import ByQueue, raise_failure
from enode_django.equeue.redis.scripts import BOUNDS, HAZARDS, MEMORY_USED
from enode_django.equeue.redis.topic_scripts import CLOSED, DELETED
from enode_django.equeue.refusals import (
    check_age,
    check_deletable_queue,
    check_new_topic,
    check_queues,
    check_unused,
    topic_deleted,
    unknown_topic,
)
from enode_django.equeue.topic_records import Bounds, GroupRecord, QueueClaim, Topic
from enode_django.exceptions import EnodeError, TransportUnavailable, UnknownTopic

logger = logging.getLogger("enode_django.equeue")

NEARLY_FULL = 90
"""Percent of a server's memory. Above it consumed messages are deleted regardless of their age."""
CHANGE_SECONDS = 5.0
"""Seconds after which the maker of a change of a topic's queues counts as dead."""
LOOK_AGAIN = 0.01
"""Seconds between two checks whether another process has finished its change."""


class RedisTopics:
    def __init__(self, keys: Keys, connection: RedisConnection, timeout: float) -> None:
        self._keys = keys
        self._connection = connection
        self._timeout = timeout
        self._counts: dict[str, int] = {}

    def names(self) -> list[str]:
        return sorted(name.decode() for name in self._connection.execute("SMEMBERS", self._keys.topics()))

    def create(self, topic: str, queues: int) -> int:
        check_new_topic(topic, queues)
        key = self._keys.topic(topic)
        while (count := self._connection.run(topic_scripts.CREATE, (key,), (queues,), confirmed=True)) < 0:
            self._finish(topic)
        self._connection.run(topic_scripts.REGISTER, (self._keys.topics(),), (topic,))
        self._counts[topic] = count
        return int(count)

    def count(self, topic: str) -> int:
        return self.read(topic).queues

    def check(self, topic: str, queues: Collection[int]) -> None:
        # Queues are only ever added: a cached count is sufficient unless it is too small. Queues of a deleted topic
        # refuse calls themselves.
        count = self._counts.get(topic, 0)
        if not queues or min(queues) < 0 or max(queues) >= count:
            check_queues(topic, queues, self.count(topic))

    def read(self, topic: str) -> Topic:
        """Read a topic without its groups."""
        fields = ("queues", "version", "max_age", "unproduced", "unconsumed")
        queues, version, max_age, *hidden = self._connection.execute("HMGET", self._keys.topic(topic), *fields)
        if queues is None:
            self._counts.pop(topic, None)
            raise unknown_topic(topic) if version is None else topic_deleted(topic)
        self._counts[topic] = int(queues)
        unproduced, unconsumed = (set(parse_queues(text or b"")) for text in hidden)
        own_age = None if max_age is None else float(max_age)
        return Topic(topic, int(queues), int(version), unproduced, unconsumed, max_age=own_age)

    def announce(self, topic: str, producer: str) -> None:
        keys = (self._keys.topic(topic), self._keys.producers(topic))
        if not self._connection.run(topic_scripts.ANNOUNCE, keys, (producer,)):
            self.read(topic)  # raises

    def producers(self, topic: str) -> Mapping[str, float]:
        self.read(topic)
        now, found = self._connection.run(topic_scripts.ANNOUNCED, (self._keys.producers(topic),))
        heard = dict(zip(found[::2], found[1::2], strict=True))
        return {name.decode(): max(0.0, (now - float(at)) / 1000) for name, at in sorted(heard.items())}

    def set_retention(self, topic: str, max_age: float | None) -> None:
        check_age(max_age)
        seconds = "" if max_age is None else repr(float(max_age))
        if not self._connection.run(topic_scripts.SET_AGE, (self._keys.topic(topic),), (seconds,), confirmed=True):
            self.read(topic)  # raises

    def bounds(self, topic: str, count: int) -> Bounds:
        bounds, failures = self.bounds_each(topic, count)
        raise_failure(failures, {})
        return {queue: (first, end) for queue, ((first, end),) in bounds.items()}

    def bounds_each(self, topic: str, count: int) -> ByQueue:
        calls = [
            ScriptCall(BOUNDS, (self._keys.log(topic, queue), self._keys.queue(topic, queue))) for queue in range(count)
        ]
        return ByQueue.sorted_out(range(count), self._connection.run_each(calls))

    def states(self, topic: str) -> Mapping[int, QueueState]:
        known = self.read(topic)
        return known.shown(self.bounds(topic, known.queues))

    def committed(self, topic: str, count: int, groups: Sequence[str]) -> list[list[int]]:
        """Return the committed offset of each queue, by group."""
        found = self._committed(topic, count, groups)
        raise_failure(found.failures, {})
        return [[int(found.answers[queue][place] or 0) for queue in range(count)] for place in range(len(groups))]

    def consumed(self, topic: str, count: int, groups: Sequence[str]) -> tuple[dict[int, int], dict[int, EnodeError]]:
        """Return by queue the lowest offset that all groups have committed, and the errors of the other queues."""
        answers, failures = self._committed(topic, count, groups)
        return {queue: min(int(offset or 0) for offset in offsets) for queue, offsets in answers.items()}, failures

    def _committed(self, topic: str, count: int, groups: Sequence[str]) -> ByQueue:
        queues = [queue for _ in groups for queue in range(count)]
        commands = [
            ("HGET", self._keys.claim(topic, queue, group), "offset") for group in groups for queue in range(count)
        ]
        return ByQueue.sorted_out(queues, self._connection.execute_each(commands) if commands else [])

    def counting(self, topic: str) -> list[str]:
        """Return the groups that trimming waits for."""
        found = self._connection.execute("HGETALL", self._keys.groups(topic))
        return [group.decode() for group, state in found.items() if state == b"counts"]

    def short_of_memory(self, topic: str, queues: Sequence[int]) -> Collection[int]:
        """Return the queues on servers whose memory is nearly full. Servers that do not answer are left out."""
        calls = [ScriptCall(MEMORY_USED, (self._keys.log(topic, queue),)) for queue in queues]
        found = ByQueue.sorted_out(queues, self._connection.run_each(calls))
        short = [queue for queue, (percent,) in found.answers.items() if percent >= NEARLY_FULL]
        if short:
            logger.warning(
                "redis at %s is nearly full; what all groups have consumed of queues %s of topic %s is deleted now, "
                "whatever its age",
                *(self._connection.name, ", ".join(map(str, short)), topic),
            )
        return short

    def hazards(self) -> Sequence[str]:
        """Return how the servers of all topics may lose messages; see `TellsHazards`."""
        names = self.names()
        counts = self._connection.execute_each([("HGET", self._keys.topic(topic), "queues") for topic in names])
        known = [(topic, int(count)) for topic, count in zip(names, counts, strict=True) if isinstance(count, bytes)]
        logs = [self._keys.log(topic, queue) for topic, count in known for queue in range(count)]
        answers = self._connection.run_each([ScriptCall(HAZARDS, (key,)) for key in (self._keys.topics(), *logs)])
        found = [_hazards(*answer) for answer in answers if not isinstance(answer, Exception)]
        return [*dict.fromkeys(chain.from_iterable(found))]

    # -- changes --------------------------------------------------------------------------------------------------

    def add_queues(self, topic: str, queues: int, *, unordered: bool) -> int:
        def added(known: Topic) -> Mapping[str, Any]:
            return {"queues": queues} if queues > known.queues else {}

        return self._change(topic, added, unordered).queues

    def show_to_producers(self, topic: str, queue: int, shown: bool, *, unordered: bool) -> None:
        def changed(known: Topic) -> Mapping[str, Any]:
            if shown is (queue not in known.hidden_from_producers):
                return {}
            return {"unproduced": ",".join(map(str, sorted(known.turned(queue))))}

        self._change(topic, changed, unordered)

    def show_to_consumers(self, topic: str, queue: int, shown: bool) -> None:
        keys, arguments = (self._keys.topic(topic),), (queue, "0" if shown else "1")
        while not self._connection.run(topic_scripts.HIDE, keys, arguments, confirmed=True):
            check_queues(topic, (queue,), self.count(topic))  # raises, unless the topic has just got the queue

    def _change(self, topic: str, change: Callable[[Topic], Mapping[str, Any]], unordered: bool) -> Topic:
        known = self.read(topic)
        if not change(known):
            return known
        round_ = self._begin(topic)
        known = self.read(topic)
        try:
            fields = change(known)
            if fields:
                self._tell(topic, range(known.queues), round_, CLOSED)
                if not unordered:
                    self._check_no_backlog(known)
                fields = {**fields, "version": known.version + 1}
        except BaseException:
            self._decide(topic, round_, {})
            raise
        self._decide(topic, round_, fields)
        return self.read(topic)

    def _begin(self, topic: str) -> int:
        return int(self._until(topic, lambda: self._begun(topic)))

    def _begun(self, topic: str) -> int | None:
        keys, longest = (self._keys.topic(topic),), milliseconds(CHANGE_SECONDS)
        round_: int | None = self._connection.run(topic_scripts.BEGIN, keys, (longest,))
        if round_ is None:
            self.read(topic)  # raises, unless the topic has just been created again
        return round_ or None

    def _check_no_backlog(self, known: Topic) -> None:
        groups = self.counting(known.name)
        for group, offsets in zip(groups, self.committed(known.name, known.queues, groups), strict=True):
            known.groups[group] = GroupRecord(claims={q: QueueClaim(offset=at) for q, at in enumerate(offsets)})
        known.check_no_backlog(self.bounds(known.name, known.queues))

    def _decide(self, topic: str, round_: int, fields: Mapping[str, Any]) -> None:
        arguments = [round_, *(word for field in fields.items() for word in field)]
        if not self._connection.run(topic_scripts.DECIDE, (self._keys.topic(topic),), arguments, confirmed=True):
            raise TransportUnavailable(f"the change of topic {topic!r} took too long and was called off; try again")
        known = self.read(topic)
        self._catch_up(topic, self._tell(topic, range(known.queues), round_, known.version))

    def _tell(self, topic: str, queues: Collection[int], round_: int, version: int | str) -> list[Any]:
        """Write to the queues. Return the answers of queues with later rounds; raise `TransportUnavailable` instead if
        the queues were to be closed or deleted."""
        calls = [
            ScriptCall(topic_scripts.TELL, (self._keys.queue(topic, queue),), (round_, version)) for queue in queues
        ]
        later = [answer for answer in self._connection.run_all(calls, confirmed=True) if answer]
        if later and version in (CLOSED, DELETED):
            raise TransportUnavailable(f"another change of topic {topic!r} came first; try again")
        return later

    # -- deletion -------------------------------------------------------------------------------------------------

    def delete(self, topic: str, groups: Callable[[], Mapping[str, GroupState]], *, force: bool) -> None:
        """Delete a topic. ``groups`` is called once nobody can begin to use the topic."""
        try:
            self.read(topic)
        except UnknownTopic:
            if self._finish(topic):
                return
            raise
        round_ = self._begin(topic)
        try:
            known = self.read(topic)
            self._tell(topic, range(known.queues), round_, DELETED)
            if not force:
                check_unused(topic, groups(), self.bounds(topic, known.queues))
        except UnknownTopic:
            raise
        except BaseException:
            self._decide(topic, round_, {})
            raise
        if not self._connection.run(topic_scripts.CONDEMN, (self._keys.topic(topic),), (round_,), confirmed=True):
            raise TransportUnavailable(f"the deletion of topic {topic!r} took too long and was called off; try again")
        self._finish(topic)

    def delete_queue(
        self, topic: str, queue: int, groups: Callable[[], Mapping[str, GroupState]], *, force: bool
    ) -> None:
        """Delete a queue, see `DeletesQueues.delete_queue`. Messages sent meanwhile are checked, too."""
        self.check(topic, (queue,))
        is_deleted = False
        while not is_deleted:
            state, known = self.states(topic)[queue], groups()
            check_deletable_queue(topic, queue, state, known, force=force)
            keys = self._keys_of(topic, queue, known)
            end = "" if force else state.end
            is_deleted = bool(self._connection.run(topic_scripts.DELETE_QUEUE, keys, (end,), confirmed=True))

    def _finish(self, topic: str) -> bool:
        """Delete the rest of a topic whose deletion is decided. Return False if there is no such deletion."""
        self._counts.pop(topic, None)
        count, round_ = self._connection.execute("HMGET", self._keys.topic(topic), "deleting", "round")
        if count is None:
            return False
        groups = [group.decode() for group in self._connection.execute("HKEYS", self._keys.groups(topic))]
        self._connection.execute("SREM", self._keys.topics(), topic)
        calls = [
            ScriptCall(topic_scripts.EMPTY, self._keys_of(topic, queue, groups), (round_,))
            for queue in range(int(count))
        ]
        self._connection.run_all(calls, confirmed=True)
        own = (self._keys.topic(topic), self._keys.producers(topic), self._keys.groups(topic))
        of_groups = (self._keys.group(topic, group) for group in groups)
        self._connection.run(topic_scripts.FINISH, (*own, *of_groups), (round_,), confirmed=True)
        if self._connection.execute("HEXISTS", self._keys.topic(topic), "queues"):  # another process was faster
            self._connection.run(topic_scripts.REGISTER, (self._keys.topics(),), (topic,))
        return True

    def _keys_of(self, topic: str, queue: int, groups: Collection[str]) -> tuple[str, ...]:
        """Return the keys of the queue, its log and its times, and for each group of the claim and the receipts."""
        log, itself, times = self._keys.of_queue(topic, queue)
        of_groups = (key(topic, queue, group) for group in groups for key in (self._keys.claim, self._keys.receipts))
        return (itself, log, times, *of_groups)

    # -- healing --------------------------------------------------------------------------------------------------

    def settle(self, topic: str, queues: Collection[int], route: int) -> bool:
        """Return True if queues that refused a send by ``route`` accept it now; False if the topic has another route.

        Waits for a change that is under way.
        """
        return bool(self._until(topic, lambda: self._settled(topic, queues, route)))

    def revive(self, topic: str, queues: Collection[int]) -> None:
        """Reopen queues that are marked as deleted although their topic exists. Raises `TopicDeleted` if it does not,
        and `UnknownQueue` for a queue that it does not have."""
        known = self.read(topic)
        check_queues(topic, queues, known.queues)
        self.settle(topic, queues, known.version)

    def check_kept(self, topic: str, queue: int) -> None:
        """Raise `TopicDeleted` if a queue without messages is marked as deleted. Reads the queue first, not the topic:
        it is on the server that was just read, and a pull should depend on no other."""
        with suppress(TransportUnavailable):
            if self._connection.execute("HGET", self._keys.queue(topic, queue), "route") == DELETED.encode():
                self.read(topic)

    def _settled(self, topic: str, queues: Collection[int], route: int) -> bool | None:
        answer = self._connection.run(topic_scripts.SETTLED, (self._keys.topic(topic),))
        if answer is None:
            self.read(topic)
            return None
        version, round_, is_pending = answer
        if version != route:
            return False
        if is_pending:
            return None
        later = self._tell(topic, queues, round_, version)
        self._catch_up(topic, later)
        return None if later else True

    def _catch_up(self, topic: str, later: Sequence[Any]) -> None:
        """Raise the round and version of a topic above those of its queues, after its server has lost writes."""
        if not later:
            return
        round_ = max(answer[0] for answer in later)
        version = max(int(answer[1]) if answer[1].isdigit() else 0 for answer in later)
        self._connection.run(topic_scripts.CATCH_UP, (self._keys.topic(topic),), (round_, version), confirmed=True)

    def _until(self, topic: str, attempt: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + CHANGE_SECONDS + self._timeout
        while (answer := attempt()) is None:
            if time.monotonic() > deadline:
                raise TransportUnavailable(f"the queues of topic {topic!r} are being changed; try again")
            time.sleep(LOOK_AGAIN)
        return answer


def _hazards(policy: bytes, appends: bytes) -> Iterator[str]:
    if policy not in (b"", b"noeviction"):
        yield f"deletes messages when its memory is full (maxmemory-policy {policy.decode()})"
    if appends == b"0":
        yield "writes no message to a file (appendonly no)"
