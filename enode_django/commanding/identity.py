"""Tell a repeated command from another command that has the same ids.

(command id, aggregate root id) names a command. Two commands with the same ids but different types or fields are a
mistake of their sender, or an attack. To answer the second with the outcome of the first would lose it silently, so it
fails with `CommandIdReused` if enough is known of the first one: a row has its type, the recent commands have its
message, the remembered answers a digest. Commands are compared only when ids repeat: others pay nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from hashlib import blake2b
from typing import Any

from enode_django.bus.results import Crash, crash
from enode_django.commanding.decisions import STORED, Decision, Envelope
from enode_django.commanding.outcomes import ids_of
from enode_django.domain.declarations import plain_of, schema_of
from enode_django.domain.messages import Command
from enode_django.eventstore.base import CommandKey, StreamRecord
from enode_django.exceptions import CommandIdReused, EnodeError, MalformedMessage, UnknownMessageType
from enode_django.serialization.codec import decode_command, decode_metadata, restore_command
from enode_django.serialization.plain import pack
from enode_django.serialization.registry import types

logger = logging.getLogger("enode_django.commands")

_DERIVED = "5"
"""The version of the UUIDs that `derived_id` makes."""


def content_of(body: bytes | None) -> str:
    """Return the content of a command's message, as ``"<oldest type name>/<schema version>/<digest of the fields>"``,
    or an empty string for a message that cannot be read here.

    Fields that have their default are left out, so that a field added to the class does not change the content. The
    order of items and keys does not matter: that of a set differs between processes. Equal numbers are the same, as
    ``Decimal("5")`` and ``Decimal("5.00")``: a sender may read one of them from a column.
    """
    if body is None:
        return ""
    try:
        command = restore_command(decode_command(body))
        usual = schema_of(type(command)).names_at_default(command.__dict__)
        fields = {name: value for name, value in plain_of(command).items() if name not in usual}
        digest = blake2b(pack(_settled(fields)), digest_size=8).hexdigest()
        return f"{types.first_name_of(type(command))}/{command.schema_version}/{digest}"
    except EnodeError:
        return ""


_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)


def _settled(value: Any) -> Any:
    if type(value) is list:
        return sorted(pack(_settled(each)) for each in value)
    if type(value) is dict:
        return sorted(pack((_settled(key), _settled(each))) for key, each in value.items())
    if type(value) is Decimal:
        return _EXACT.normalize(value) if value else Decimal(0)
    return value + 0.0 if type(value) is float else value  # -0.0 equals 0.0


def divided(
    envelopes: Iterable[Envelope], found: Mapping[CommandKey, StreamRecord]
) -> tuple[list[Decision], list[Envelope]]:
    """Return the decisions on those commands whose outcome is ``found`` in the store, and the other commands."""
    entries: list[Decision] = []
    left: list[Envelope] = []
    for envelope in envelopes:
        record = found.get((envelope.id, envelope.aggregate_root_id))
        if record is None:
            left.append(envelope)
        else:
            conflict, id = conflict_with_row(envelope, record), envelope.aggregate_root_id
            entries.append(Decision(STORED, id, 0, envelope, None, None if conflict else record, conflict))
    return entries, left


def conflict_with_message(envelope: Envelope, known: bytes | None) -> Crash | None:
    """Return the failure of a command that has the ids of another one, whose message is ``known``. Return None if it is
    the same command, or if the other one cannot be compared."""
    if known is None or known == envelope.body:
        return None
    return conflict_with_content(envelope, content_of(known))


def conflict_with_content(envelope: Envelope, known: str) -> Crash | None:
    """Return the failure as `conflict_with_message` does. ``known`` is the `content_of` the other command."""
    if not known:
        return None
    content = content_of(envelope.body)
    if not content or content == known:
        return None
    (name, version, _), (known_name, known_version, _) = content.rsplit("/", 2), known.rsplit("/", 2)
    if name != known_name:
        return _conflict(envelope, f"a {known_name}")
    if version != known_version:
        return None  # the digests are of different schemas
    if _is_derived(envelope):
        text = "command %s %r comes again with other fields: its process manager must yield the same for the same event"
        logger.warning(text, envelope.type_name, envelope.id, extra=ids_of(envelope))
        return None
    return _conflict(envelope, f"a {known_name} with other fields")


def conflict_with_row(envelope: Envelope, stored: StreamRecord) -> Crash | None:
    """Return the failure of a command that has the ids of a stored one of another type. Return None if the types are
    the same, or if it is not known here whether one name is an alias of the other."""
    name, other = envelope.type_name, stored.command_type
    if name == other or not name:
        return None
    try:
        if types.class_of(Command, name) is types.class_of(Command, other):
            return None
    except UnknownMessageType:
        text = "command %s %r is stored as %s, which is unknown here: it is taken for the same one"
        logger.warning(text, name, envelope.id, other, extra=ids_of(envelope))
        return None
    return _conflict(envelope, f"a {other}")


def is_conflict(result: object) -> bool:
    """Return True for a failure made by the functions above. It says nothing about the command that has the ids."""
    return isinstance(result, Crash) and result.is_conflict


def _is_derived(envelope: Envelope) -> bool:
    """Return True for a process manager's command. Its id names its event, so its fields need not be the same."""
    try:
        return envelope.id[14:15] == _DERIVED and decode_metadata(envelope.metadata).causation_id is not None
    except MalformedMessage:
        return False


def _conflict(envelope: Envelope, other: str) -> Crash:
    id, root = envelope.id, envelope.aggregate_root_id
    error = CommandIdReused(
        f"the id {id!r} stands for {other} on {root!r} already; send this {envelope.type_name} with an id of its own"
    )
    logger.error("command %s: %s", envelope.type_name, error, extra=ids_of(envelope))
    return replace(crash(id, root, error, with_traceback=False, is_told=bool(envelope.reply_to)), is_conflict=True)
