"""Checks for every driver: ids and type names that the columns of the store cannot hold are refused."""

from __future__ import annotations

from enode_django.eventstore.base import StreamRecord
from enode_django.ids import MAX_ID_LENGTH

_TEXT_FIELDS = ("aggregate_root_id", "command_id", "aggregate_root_type", "command_type")


def unstorable(record: StreamRecord) -> str:
    """Return why no driver can store this record; empty if one can."""
    for field in _TEXT_FIELDS:
        value = getattr(record, field)
        if not holds(value):
            shown = value if len(value) <= 40 else value[:40] + "…"
            return (
                f"{field} {shown!r} has {len(value)} characters;"
                f" the store holds up to {MAX_ID_LENGTH}, of UTF-8 without NUL"
            )
    if record.version is not None and not -(2**63) <= record.version < 2**63:
        return f"version {record.version!r} does not fit into 64 bits"
    return ""


def holds(text: str) -> bool:
    """Return True if an id or a type name fits into its column. If it does not, no row has it."""
    if len(text) > MAX_ID_LENGTH or "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
