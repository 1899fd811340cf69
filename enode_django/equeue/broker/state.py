"""The broker's state besides the messages: topics, groups, and the sends it has stored.

The state is in memory, changed by calls of the `Coordinator`. Every call that changes something is written to the
store's log as a control record, behind the messages it depends on, and repeated when the broker starts. So one flush
makes both safe, and after a crash both are from the same moment. A checkpoint holds the whole state and replaces the
records before it.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import msgpack

from enode_django.equeue.assignment import Allocate, divide
from enode_django.equeue.broker.checkpoint import PendingCheckpoint
from enode_django.equeue.broker.index_files import IndexFile, delete_index_files, directory_name
from enode_django.equeue.broker.packing import Packed
from enode_django.equeue.broker.recovery import Sent
from enode_django.equeue.broker.store import MessageStore, Opened
from enode_django.equeue.broker.timelines import Copies, run_after_copy
from enode_django.equeue.coordination import EPOCHS_PER_RUN, Coordinator
from enode_django.equeue.known_sends import KnownSends
from enode_django.equeue.membership import Group, joined, left
from enode_django.equeue.messages import Commit, GroupState, Lease, Membership, Receipt
from enode_django.equeue.refusals import check_age, check_deletable_queue, check_new_topic, check_unused
from enode_django.equeue.retrying import group_of_letters
from enode_django.equeue.topic_records import Bounds
from enode_django.exceptions import QueueError, QueueFull

logger = logging.getLogger(__name__)


_FORMAT = 4
_TO_CLAIMS = 6
"""The depth at which `Coordinator.plain` has the claims of queues, with their receipts."""
NOTHING_NEEDED = 1 << 63
"""Above every offset."""
_REPLAYED = frozenset(
    (
        *("create_topic", "add_queues", "show", "leave", "bury", "release", "lengthen"),
        *("set_offset", "retire_group", "delete_group", "pause_group", "set_retention"),
    )
)


class BrokerState:
    """The state of a broker. All calls come from one thread. Methods that change something write a record first; if
    there is no room for that, they raise `QueueFull` and change nothing.

    ``run`` rises with every start of the broker in this directory. ``timeline`` identifies the messages that offsets
    stand for. It changes with each start that may follow a loss of messages that somebody had seen. (A store that shows
    only what is safe loses none of those.)
    """

    def __init__(
        self,
        store: MessageStore,
        *,
        patience: float,
        allocate: Allocate = divide,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allocate = allocate
        self.coordinator = Coordinator(allocate)
        self.sends = KnownSends()
        self.run = 0
        self.timeline = ""
        self.copies = Copies()
        self._may_have_lost = True
        self._store = store
        store.deletion.own_age = self._own_age
        self._patience = patience
        self._clock = clock
        self._behind = False
        self._pending: PendingCheckpoint | None = None

    def open(self) -> Opened:
        """Open the store, and restore the state from it. Blocks; raises what the store raises."""
        opened = self._store.open(restore=self._restore, replay=self._replay, sent=self._remember)
        bounds = {name: self.bounds(name) for name in self.coordinator.topics}
        self._begin_run(bounds)
        if self._may_have_lost or self._store.has_lost:
            self.timeline = uuid.uuid4().hex
        self.coordinator.restarted(self.run, now=self._clock(), patience=self._patience, bounds=bounds)
        self._behind = True
        try:
            self.checkpoint()
        except QueueFull as error:
            logger.error("nothing can be changed until there is room: %s", error)
        return opened

    def _begin_run(self, bounds: Mapping[str, Bounds]) -> None:
        if self.timeline or not self.run:
            self.run += 1
            return
        self.run = run_after_copy(self.run)
        self.copies = self.copies.begin({name: {q: end for q, (_, end) in of.items()} for name, of in bounds.items()})
        logger.warning("the directory is a copy: consumers that broadcast go back to where it ended")

    # -- topics ---------------------------------------------------------------------------------------------------

    def bounds(self, topic: str) -> Bounds:
        return {queue: self._store.bounds(topic, queue) for queue in range(self.coordinator.topic(topic).queues)}

    def create_topic(self, name: str, queues: int) -> int:
        if name in self.coordinator.topics:
            return self.coordinator.create_topic(name, queues)
        check_new_topic(name, queues)
        directory_name(name)  # raises
        return int(self._changed("create_topic", name, queues))

    def add_queues(self, topic: str, queues: int, unordered: bool) -> int:
        known = self.coordinator.topic(topic)
        if queues <= known.queues:
            return known.queues
        if not unordered:
            known.check_no_backlog(self.bounds(topic))
        return int(self._changed("add_queues", topic, queues, unordered=True, bounds={}))

    def show(
        self, topic: str, queue: int, to_producers: bool | None, to_consumers: bool | None, unordered: bool
    ) -> None:
        known = self.coordinator.topic(topic, (queue,))
        if to_producers is (queue in known.hidden_from_producers):
            known.turned(queue)
            if not unordered:
                known.check_no_backlog(self.bounds(topic))
        shown = {"to_producers": to_producers, "to_consumers": to_consumers}
        self._changed("show", topic, queue, **shown, unordered=True, bounds={})

    def delete_topic(self, topic: str, force: bool) -> list[IndexFile]:
        """Delete a topic; returns its index files, which nobody needs any longer (see `Queues.empty`)."""
        bounds = self.bounds(topic)
        if not force:
            check_unused(topic, self.shown_groups(topic), bounds)
        self._write("delete_topic", (topic,))
        return self._delete_topic(topic)

    def _delete_topic(self, topic: str) -> list[IndexFile]:
        self.coordinator.delete_topic(topic)
        self.sends.forget_topic(topic)
        return self._store.empty(topic)

    def delete_queue(self, topic: str, queue: int, force: bool) -> list[IndexFile]:
        """Delete a queue; returns its index files, which nobody needs any longer (see `Queues.empty`)."""
        state = self.coordinator.topic(topic, (queue,)).shown({queue: self._store.bounds(topic, queue)})[queue]
        check_deletable_queue(topic, queue, state, self.shown_groups(topic), force=force)
        self._write("delete_queue", (topic, queue, state.end))
        return self._delete_queue(topic, queue, state.end)

    def _delete_queue(self, topic: str, queue: int, end: int) -> list[IndexFile]:
        self.coordinator.delete_queue(topic, queue, end)
        return self._store.empty(topic, queue)

    def route_version(self, topic: str) -> int:
        return self.coordinator.topic(topic).version

    def set_retention(self, topic: str, max_age: float | None) -> None:
        check_age(max_age)
        if self.coordinator.topic(topic).max_age != max_age:
            self._changed("set_retention", topic, max_age)

    def retention(self, topic: str) -> float | None:
        return self.coordinator.topic(topic).max_age

    def _own_age(self, topic: str) -> float | None:
        known = self.coordinator.topics.get(topic)
        return known.max_age if known is not None else None

    def announce(self, topic: str, producer: str) -> None:
        """Writes no record: after a restart producers announce themselves again."""
        self.coordinator.topic(topic).producers.hear(producer, now=self._clock())

    def producers(self, topic: str) -> Mapping[str, float]:
        return self.coordinator.topic(topic).producers.seconds(now=self._clock())

    # -- groups ---------------------------------------------------------------------------------------------------

    def join(self, group: str, topic: str, member: str, session: float) -> Membership:
        """A member that only stays writes no record: after a restart all members have time to return anyway."""
        self.ensure_written()
        before, queues = self._group(group, topic), self.coordinator.topic(topic).given(group)
        after = joined(before, member, now=self._clock(), session=session, queues=queues, allocate=self._allocate)
        self._write_division(group, topic, before, after)
        self.coordinator.topic(topic).record(group).group = after
        return after.membership(member)

    def leave(self, group: str, topic: str, member: str) -> None:
        record = self.coordinator.topic(topic).groups.get(group)
        if record is not None and record.knows(member):
            self._end(group, topic, member, "leave", (group, topic, member))

    def bury(self, group: str, topic: str, member: str, deaths: Collection[tuple[int, int]]) -> None:
        self.coordinator.topic(topic, [queue for queue, _ in deaths])
        self._end(group, topic, member, "bury", (group, topic, member, deaths))

    def _end(self, group: str, topic: str, member: str, name: str, arguments: Any) -> None:
        """Write a member's end and the new division down; then call the coordinator's method ``name``."""
        before, now = self._group(group, topic), self._clock()
        queues = self.coordinator.topic(topic).given(group)
        after = left(before, member, now=now, queues=queues, allocate=self._allocate)
        self._write(name, arguments, {"now": now})
        self._write_division(group, topic, before, after)
        getattr(self.coordinator, name)(*arguments, now=now)
        self.coordinator.topic(topic).record(group).group = after

    def acquire(self, group: str, topic: str, queue: int, owner: str, lease: float, start: int) -> Lease:
        now = self._clock()
        self.coordinator.check_free(group, topic, queue, owner, now=now)
        bounds = self._store.bounds(topic, queue)
        arguments = group, topic, queue, owner, lease, start
        self._write("acquire", (*arguments, bounds, self.coordinator.next_epoch))
        return self.coordinator.acquire(*arguments, bounds=bounds, now=now)

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        """Writes no record, as in `join`, unless a lease becomes longer, which must be known after a restart."""
        if longer := self.coordinator.longer(group, topic, owner, epochs, lease):
            self._write("lengthen", (group, topic, longer, lease))
        return self.coordinator.renew(group, topic, owner, epochs, lease, now=self._clock())

    def release(self, group: str, topic: str, owner: str, epochs: Mapping[int, int]) -> None:
        self.coordinator.topic(topic, epochs)
        self._changed("release", group, topic, owner, epochs)

    def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> AbstractSet[int]:
        self.ensure_written()
        refused = self.coordinator.refused(group, topic, commits)
        if taken := {queue: commit for queue, commit in commits.items() if queue not in refused}:
            self._write("commit", (group, topic, taken))
            self.coordinator.commit(group, topic, taken)
        return refused

    def set_offset(self, group: str, topic: str, queue: int, offset: int) -> None:
        self.coordinator.topic(topic, (queue,))
        self._changed("set_offset", group, topic, queue, offset, bounds=self._store.bounds(topic, queue))

    def retire_group(self, group: str, topic: str) -> None:
        if group in self.coordinator.topic(topic).groups:
            self._changed("retire_group", group, topic)

    def delete_group(self, group: str, topic: str) -> None:
        if group in self.coordinator.topic(topic).groups:
            self._changed("delete_group", group, topic)

    def pause_group(self, group: str, topic: str, paused: bool) -> None:
        self.coordinator.check_group(group, topic)
        self._changed("pause_group", group, topic, paused)

    def shown_groups(self, topic: str) -> Mapping[str, GroupState]:
        return self.coordinator.groups(topic, now=self._clock())

    def consumed(self, topic: str, queue: int) -> int | None:
        """Return the lowest offset that a group still needs, `NOTHING_NEEDED` for a deleted topic. Return None for a
        topic that nobody consumes, and for dead letters while some are not settled: otherwise settling one would keep
        the others for ever."""
        if self.coordinator.is_deleted(topic):
            return NOTHING_NEEDED
        known = self.coordinator.topics.get(topic)
        needed = known.needed(queue) if known is not None else None
        if needed is None or group_of_letters(topic) is None:
            return needed
        return needed if needed >= self._store.bounds(topic, queue)[1] else None

    # -- records and checkpoints ----------------------------------------------------------------------------------

    def _changed(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Write a record of a call of the coordinator, and make the call. The caller knows that it will not raise."""
        self._write(name, arguments, named)
        return getattr(self.coordinator, name)(*arguments, **named)

    def _write(self, name: str, arguments: Any, named: Mapping[str, Any] | None = None) -> None:
        """Write a record before its change is made: nobody may see a change that could not be written."""
        self.ensure_written()
        self._store.append_control(msgpack.packb([name, arguments, named or {}], default=list))

    def _write_division(self, group: str, topic: str, before: Group, after: Group) -> None:
        """Write a new division itself: it depends on who was silent for too long, which records do not say."""
        if after.generation != before.generation or after.sessions.keys() != before.sessions.keys():
            self._write("divided", (group, topic, after.generation, after.sessions, after.division))

    def _group(self, group: str, topic: str) -> Group:
        record = self.coordinator.topic(topic).groups.get(group)
        return record.group if record is not None else Group()

    def ensure_written(self) -> None:
        """Raise `QueueFull` until a checkpoint holds what the start found: all that follows builds on it."""
        if self._behind:
            raise QueueFull("the broker's disk has no room for a checkpoint, which comes first; make room on it")

    def plain(self, *, is_last: bool = False) -> bytes:
        """Return the state as bytes. ``is_last``: nothing will be written behind it before the next start."""
        return b"".join(self._packed(is_last))

    def _packed(self, is_last: bool = False) -> Packed:
        """Return the current state. It is copied now, and packed when the pieces are iterated over."""
        known, sends = self.coordinator.plain(), self.sends.plain()
        may_lose = not (is_last or self._store.shows_safe)
        return Packed(
            *((_FORMAT, 0), (self.run, 0), (known, _TO_CLAIMS), (sends, 1)),
            *((self.timeline, 0), (may_lose, 0), (self.copies.plain(), 3)),
        )

    def checkpoint(self) -> None:
        """Write a checkpoint. Blocks until it is safe on the disk."""
        self._store.checkpoint(self.plain())
        self._behind = False

    def begin_checkpoint(self, *, again: bool = False) -> PendingCheckpoint | None:
        """Return a checkpoint for another thread to write, and then for `finish_checkpoint`. Return None if another one
        is pending, or if nothing is new and it is not to be written ``again``."""
        if self._pending is not None or not (again or self._behind or self._store.since_checkpoint):
            return None
        self._pending = self._store.begin_checkpoint(self._packed())
        return self._pending

    def finish_checkpoint(self, written: bool) -> None:
        pending, self._pending = self._pending, None
        if written and pending is not None:
            self._store.finish_checkpoint(pending)
            self._behind = False

    def forget_producers(self) -> None:
        self.sends.forget(self._store.now())

    def _restore(self, state: bytes) -> None:
        version, *fields = msgpack.unpackb(state, strict_map_key=False)
        if version != _FORMAT:
            raise QueueError(f"the checkpoint has format {version!r}, not {_FORMAT!r}; use the version that wrote it")
        self.run, coordinator, sends, self.timeline, self._may_have_lost, copies = fields
        self.coordinator = Coordinator.restore(coordinator, self._allocate)
        self.sends = KnownSends.restore(sends, now=self._store.now())
        self.copies = Copies(*copies)

    def _replay(self, record: bytes, position: int) -> None:
        name, arguments, named = msgpack.unpackb(record, strict_map_key=False)
        try:
            if name == "divided":
                self._divided(*arguments)
            elif name == "commit":
                group, topic, commits = arguments
                self.coordinator.commit(group, topic, {queue: commit_of(values) for queue, values in commits.items()})
            elif name == "acquire":
                self._acquired(*arguments)
            elif name == "delete_topic":
                delete_index_files(self._delete_topic(*arguments))
            elif name == "delete_queue":
                delete_index_files(self._delete_queue(*arguments))
            elif name in _REPLAYED:
                if "now" in named:
                    named["now"] = -math.inf  # members that were silent for too long are in a record of their own
                getattr(self.coordinator, name)(*arguments, **named)
            else:
                logger.error("the record at %d is of a later version: %s is not known", position, name)
        except QueueError as error:  # it builds on a batch that is damaged
            logger.error("the record at %d cannot be used: %s", position, error)

    def _acquired(
        self, group: str, topic: str, queue: int, owner: str, lease: float, start: int, bounds: Any, epoch: int
    ) -> None:
        """Repeat an acquisition whatever the state of the lease, which may have changed without a record."""
        self.run = max(self.run, epoch // EPOCHS_PER_RUN)
        self.coordinator.go_on_with(epoch)
        self.coordinator.acquire(group, topic, queue, owner, lease, start, bounds=bounds, now=math.inf)

    def _divided(self, group: str, topic: str, generation: int, sessions: Any, division: Any) -> None:
        record = self.coordinator.topic(topic).record(group)
        record.group = Group(generation, sessions, {member: frozenset(queues) for member, queues in division.items()})

    def _remember(self, sent: Sent) -> None:
        self.sends.add(sent.topic, sent.producer, sent.sequence, sent.offsets, min(sent.time, self._store.now()))


def commit_of(values: Any) -> Commit:
    """Return the commit that was packed to ``values``."""
    epoch, offset, receipts, keep = values
    return Commit(epoch, offset, [Receipt(*receipt) for receipt in receipts], keep)
