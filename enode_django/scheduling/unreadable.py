"""Find scheduled commands that this code cannot read, long before they are due.

What is found goes into logs, so it names types and versions only: the values of a command may be personal data, and the
texts of errors quote them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from django.db import transaction

from enode_django.databases import execute
from enode_django.domain.messages import Command
from enode_django.eventstore.sqlstates import DATABASE_ERRORS, UNDEFINED_TABLE, sqlstate
from enode_django.exceptions import EnodeError, MalformedMessage, UnknownMessageType
from enode_django.scheduling.rows import TABLE
from enode_django.serialization.codec import WireCommand, decode_command, restore_command, way_out_of
from enode_django.serialization.registry import types

LOOKED_AT = 1_000
"""The most commands that are read, of one database."""
MOST_BYTES = 4 * 2**20
"""No more commands are read once their bodies reach this size."""

_DUE_NEXT = f"""
    SELECT due_at, body FROM (
        SELECT *, sum(octet_length(body)) OVER (ORDER BY due_at, id) - octet_length(body) AS bytes_before
        FROM (SELECT * FROM {TABLE} ORDER BY due_at, id LIMIT {LOOKED_AT}) AS first
    ) AS measured
    WHERE bytes_before < {MOST_BYTES} ORDER BY due_at, id
"""


class Unreadable(NamedTuple):
    """Scheduled commands of one type (empty: of none) and schema version that this code cannot read. ``way_out`` says
    what to do; ``first_due`` is the time at which the first of them is due."""

    type_name: str
    schema_version: int
    way_out: str
    commands: int
    first_due: datetime

    def __str__(self) -> str:
        kind = f"{self.type_name!r} of schema version {self.schema_version}" if self.type_name else "of no type"
        return f"{self.commands:,} scheduled commands {kind}, the first due at {self.first_due:%Y-%m-%d %H:%M %Z}"


def unreadable_in(alias: str) -> list[Unreadable]:
    """Return what cannot be read among the commands in the database that are due next: up to `LOOKED_AT`, and no more
    once `MOST_BYTES` are reached. Nothing if there is no table. Takes one query. Raises the driver's errors."""
    found: dict[tuple[str, int, str], list[datetime]] = {}
    for due_at, body in _due_next(alias):
        if (kind := _unreadable_kind(body)) is not None:
            found.setdefault(kind, []).append(due_at)
    return [Unreadable(*kind, len(times), times[0]) for kind, times in found.items()]


def _due_next(alias: str) -> Sequence[tuple[datetime, bytes]]:
    try:
        with transaction.atomic(using=alias):
            return execute(alias, _DUE_NEXT, None).fetchall()
    except DATABASE_ERRORS as error:
        if sqlstate(error) != UNDEFINED_TABLE:
            raise
        return ()


def _unreadable_kind(body: bytes) -> tuple[str, int, str] | None:
    """Return type name, schema version and way out of a command that cannot be read; None for one that can."""
    try:
        wire = decode_command(body)
    except EnodeError:
        return "", 0, "cancel them in the admin: their bodies are not commands"
    try:
        restore_command(wire)
    except EnodeError as error:
        return wire.type_name, wire.schema_version, _way_out(wire, error)
    return None


def _way_out(wire: WireCommand, error: EnodeError) -> str:
    if types.find(Command, wire.type_name) is None:
        return f"no command has this name; add {wire.type_name!r} to the aliases of the class that it was renamed to"
    cls = types.class_of(Command, wire.type_name)
    if isinstance(error, UnknownMessageType):
        return f"deploy newer code, which knows this version; that of {cls.__qualname__} is {cls.schema_version} here"
    if isinstance(error, MalformedMessage):
        return f"correct the upcasters of {cls.__qualname__}: one fails, or there is no such version"
    return f"their fields do not fit {cls.__qualname__}; {way_out_of(cls, wire.schema_version)}"
