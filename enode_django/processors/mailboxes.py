"""The mailboxes between the threads of a worker, and the routing of items to them. Any thread may post."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from enode_django.commanding.dead_letters import kept_and_answered
from enode_django.commanding.decisions import Decision, Envelope, Finished, Recovery
from enode_django.commanding.intake import Received
from enode_django.commanding.mailbox_router import MailboxRouter
from enode_django.concurrency.mailbox import Mailbox
from enode_django.concurrency.room import Room
from enode_django.processors.mail import (
    CommandItem,
    Commands,
    Outcomes,
    Sized,
    command_weight,
    size_of_decisions,
    weight,
)


class Mailboxes:
    """The mailboxes of a worker. ``max_bytes`` limits the bytes of decisions that are on their way to the publisher."""

    def __init__(self, router: MailboxRouter, shards: int, max_bytes: int) -> None:
        self.router = router
        self.commands: list[Mailbox[CommandItem]] = [
            Mailbox(f"enode-commands-{n}", command_weight) for n in range(router.command_mailboxes)
        ]
        self.events: list[Mailbox[Sized[Decision]]] = [
            Mailbox(f"enode-events-{n}", weight) for n in range(router.event_mailboxes)
        ]
        self.finished: Mailbox[Sized[Finished]] = Mailbox("enode-publisher", weight)
        # One for each shard, so that an unavailable shard does not stop the others.
        self.rooms = [Room(max(1, max_bytes // shards)) for _ in range(shards)]

    def __iter__(self) -> Iterator[Mailbox[Any]]:
        return iter([*self.commands, *self.events, self.finished])

    def room_of(self, command_mailbox: int) -> Room:
        return self.rooms[self.router.shard_of(command_mailbox)]

    def close_rooms(self) -> None:
        """End all waiting for room, from now on. Safe to call twice."""
        for room in self.rooms:
            room.close()

    def post_received(self, received: Received) -> Collection[int]:
        """Post pulled commands. Return the indexes of the shards whose aggregates the commands are for."""
        if received.finished:
            self._post_finished(received.finished)
        if len(self.commands) == 1:
            if received.commands:
                self.commands[0].post(Commands(received.commands, received.is_backlog))
            return (0,)
        shares: list[list[Envelope]] = [[] for _ in self.commands]
        for envelope in received.commands:
            shares[envelope.command_mailbox].append(envelope)
        for box, share in zip(self.commands, shares, strict=True):
            if share:
                box.post(Commands(share, received.is_backlog))
        return {self.router.shard_of(number) for number, share in enumerate(shares) if share}

    def _post_finished(self, finished: Sequence[Finished]) -> None:
        """Post broken commands to the first event mailbox, which makes them dead letters; answers to the publisher."""
        broken, answered = kept_and_answered(finished)
        room = self.rooms[self.router.shard_beside(0)]
        if broken:
            self.events[0].post(Sized(broken, 0, room))
        if answered:
            self.finished.post(Sized(answered, 0, room))

    def post_decisions(self, decisions: Sequence[Decision], command_mailbox: int) -> int:
        """Post decisions to the event mailboxes of their aggregates. Return the bytes that they take."""
        if not decisions:
            return 0
        size, room = size_of_decisions(decisions), self.room_of(command_mailbox)
        room.take(size)
        if len(self.events) == 1:
            self.events[0].post(Sized(decisions, size, room))
            return size
        shares: list[list[Decision]] = [[] for _ in self.events]
        for decision in decisions:
            envelope = decision.envelope
            if envelope is not None:
                shares[envelope.event_mailbox].append(decision)
            else:
                shares[self.router.event_mailbox_beside(command_mailbox, decision.aggregate_root_id)].append(decision)
        for box, share in zip(self.events, shares, strict=True):
            if share:
                box.post(Sized(share, size_of_decisions(share), room))
        return size

    def post_outcomes(self, released: Sequence[Decision], recoveries: Sequence[Recovery]) -> None:
        """Post outcomes ahead of the commands that wait: until they are taken, the command mailbox holds what is
        finished, and its aggregates cannot leave the cache."""
        if len(self.commands) == 1:
            if released or recoveries:
                self.commands[0].post_urgent(Outcomes(released, recoveries))
            return
        shares: list[tuple[list[Decision], list[Recovery]]] = [([], []) for _ in self.commands]
        for decision in released:
            if decision.envelope is not None:
                shares[decision.envelope.command_mailbox][0].append(decision)
        for recovery in recoveries:
            shares[recovery.command_mailbox][1].append(recovery)
        for box, share in zip(self.commands, shares, strict=True):
            if share[0] or share[1]:
                box.post_urgent(Outcomes(*share))
