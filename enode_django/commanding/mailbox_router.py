"""The choice of a worker's mailboxes for an aggregate."""

from __future__ import annotations

from collections.abc import Callable

import mmh3

MAILBOX_SEED = 0x3A11B0
"""Not the seed that chooses queues: otherwise a worker that owns some of the queues would use only some of its
mailboxes."""


class MailboxRouter:
    """Assigns aggregates to mailboxes. Each shard has ``command_mailboxes`` and ``event_mailboxes`` of its own: a
    mailbox that waits for its shard does not block the others. ``place_of`` returns the index of an aggregate's shard.

    Both mailboxes are chosen by one hash, but by different bits: aggregates of one command mailbox spread over the
    event mailboxes.
    """

    def __init__(
        self,
        command_mailboxes: int,
        event_mailboxes: int,
        shards: int = 1,
        place_of: Callable[[str], int] = lambda aggregate_root_id: 0,
    ) -> None:
        self._per_shard = (command_mailboxes, event_mailboxes)
        self._place_of = place_of
        self.command_mailboxes = shards * command_mailboxes
        self.event_mailboxes = shards * event_mailboxes
        self._has_choice = self.command_mailboxes > 1 or self.event_mailboxes > 1

    def mailboxes(self, aggregate_root_id: str) -> tuple[int, int]:
        """Return (command mailbox, event mailbox), each counted from 0, those of the first shard first."""
        if not self._has_choice:
            return 0, 0
        hashed = mmh3.hash(aggregate_root_id, MAILBOX_SEED, signed=False)
        place = self._place_of(aggregate_root_id)
        commands, events = self._per_shard
        return place * commands + (hashed & 0xFFFF) % commands, place * events + (hashed >> 16) % events

    def event_mailbox_beside(self, command_mailbox: int, aggregate_root_id: str) -> int:
        """Return the event mailbox to which this command mailbox sends its decisions on the aggregate, even if another
        shard has the aggregate now."""
        _, events = self._per_shard
        own = self.mailboxes(aggregate_root_id)[1] % events
        return self.shard_of(command_mailbox) * events + own

    def shard_of(self, command_mailbox: int) -> int:
        """Return the index of the shard whose aggregates are handled in this mailbox."""
        return command_mailbox // self._per_shard[0]

    def shard_beside(self, event_mailbox: int) -> int:
        """Return the index of the shard whose streams are stored in this mailbox."""
        return event_mailbox // self._per_shard[1]
