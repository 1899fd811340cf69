"""Which mailbox of a worker an aggregate belongs to."""

from __future__ import annotations

import mmh3

MAILBOX_SEED = 0x3A11B0
"""Not the seed that chooses queues: else a worker that owns some of the queues would use some of its mailboxes only."""


class MailboxRouter:
    """One hash, two choices, from different bits: aggregates of one command mailbox spread over the event mailboxes."""

    def __init__(self, command_mailboxes: int, event_mailboxes: int) -> None:
        self.command_mailboxes = command_mailboxes
        self.event_mailboxes = event_mailboxes
        self._has_choice = command_mailboxes > 1 or event_mailboxes > 1

    def mailboxes(self, aggregate_root_id: str) -> tuple[int, int]:
        """(command mailbox, event mailbox), each counted from 0."""
        if not self._has_choice:
            return 0, 0
        hashed = mmh3.hash(aggregate_root_id, MAILBOX_SEED, signed=False)
        return (hashed & 0xFFFF) % self.command_mailboxes, (hashed >> 16) % self.event_mailboxes
