"""Tell a repeated command from another command that was given the same ids.

(command id, aggregate root id) names a command. Two commands that share them and have different types or fields are a
mistake of their sender, or an attack. To answer the second with the outcome of the first would lose it without a word,
so it fails by `CommandIdReused`, as far as it is known what the first one was: a row has its type, the recent commands
have its message, the remembered answers a digest. It is compared when the same ids come again: others pay nothing.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from enode_django.bus.results import Crash, crash
from enode_django.commanding.decisions import Envelope
from enode_django.domain.declarations import plain_of, schema_of
from enode_django.domain.messages import Command
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import CommandIdReused, EnodeError, MalformedMessage, UnknownMessageType
from enode_django.serialization.codec import decode_command, decode_metadata, restore_command
from enode_django.serialization.plain import pack
from enode_django.serialization.registry import types

logger = logging.getLogger("enode_django.commands")

_DERIVED = "5"
"""The version of the UUIDs that process managers derive."""


def content_of(body: bytes | None) -> str:
    """Return what a command's message says, as ``"<oldest type name>/<schema version>/<digest of the fields>"``; empty
    for a message that cannot be read here.

    Fields that have their default are left out, so that one which is added to the class makes no other content. Nor
    does another order of items or keys: that of a set is another in each process.
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


def _settled(value: Any) -> Any:
    if type(value) is list:
        return sorted(pack(_settled(each)) for each in value)
    if type(value) is dict:
        return sorted(pack((key, _settled(each))) for key, each in value.items())
    return value


def conflict_with_message(envelope: Envelope, known: bytes | None) -> Crash | None:
    """Return the failure of a command that has the ids of another one, whose message is ``known``. Return None if it is
    the same command, or if nothing is known of the other one."""
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
        logger.warning(text, envelope.type_name, envelope.id, extra=_extra(envelope))
        return None
    return _conflict(envelope, f"a {known_name} with other fields")


def conflict_with_row(envelope: Envelope, stored: StreamRecord) -> Crash | None:
    """The failure of a command with the ids of a stored one that has another type; None for the same type, and while it
    is not known whether one name is an alias of the other."""
    name, other = envelope.type_name, stored.command_type
    if name == other or not name:
        return None
    try:
        if types.class_of(Command, name) is types.class_of(Command, other):
            return None
    except UnknownMessageType:
        text = "command %s %r is stored as %s, which is unknown here: it is taken for the same one"
        logger.warning(text, name, envelope.id, other, extra=_extra(envelope))
        return None
    return _conflict(envelope, f"a {other}")


def is_conflict(result: object) -> bool:
    """Return True for what the functions above return: it says nothing about the command that the ids stand for."""
    return isinstance(result, Crash) and result.is_conflict


def _is_derived(envelope: Envelope) -> bool:
    """Return True for the command of a process manager: its id says which event it follows from, so that it is the same
    one whatever it says."""
    try:
        return envelope.id[14:15] == _DERIVED and decode_metadata(envelope.metadata).causation_id is not None
    except MalformedMessage:
        return False


def _conflict(envelope: Envelope, other: str) -> Crash:
    id, root = envelope.id, envelope.aggregate_root_id
    error = CommandIdReused(
        f"the id {id!r} stands for {other} on {root!r} already; send this {envelope.type_name} with an id of its own"
    )
    logger.error("command %s: %s", envelope.type_name, error, extra=_extra(envelope))
    return replace(crash(id, root, error, with_traceback=False, is_told=bool(envelope.reply_to)), is_conflict=True)


def _extra(envelope: Envelope) -> dict[str, str]:
    return {"command_id": envelope.id, "aggregate_root_id": envelope.aggregate_root_id}
