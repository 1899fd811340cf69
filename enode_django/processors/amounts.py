"""Limits in bytes for what goes between a worker's threads at once. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from enode_django.commanding.decisions import Decision

HANDLE_BYTES = 4 * 1024 * 1024
"""Bytes of events after which a command mailbox hands its entries over and releases what is stored."""
LOOKUP_BYTES = 16 * 1024 * 1024
"""Bytes of stored streams that one lookup is meant to find, estimated from the lookups before."""
FIRST_LOOKUP = 32
"""Commands of the first lookup in a backlog, before any sizes are known."""


def size_of_entry(entry: Decision) -> int:
    return len(entry.record.events) if entry.record is not None else 0


def size_of_entries(entries: Sequence[Decision]) -> int:
    # For every command again, so without a call for each.
    return sum([len(entry.record.events) for entry in entries if entry.record is not None])
