"""Ids of commands that follow from something stored: handling that again sends the same commands again."""

from __future__ import annotations

import uuid

from enode_django.domain.messages import AnyCommand

_NAMESPACE = uuid.UUID("6f0c3a52-5f0b-5d0c-9a3e-0e8f3d6b7c11")


def derived_id(cause: str, sender: str, command_type: str, aggregate_root_id: str, number: int) -> str:
    """Return the id of a command: the ``number``-th (from 1) of its class for that aggregate that ``sender`` sends
    because of ``cause``. ``command_type`` is the oldest name of the class. The id is a UUID (version 5, RFC 9562)."""
    # Each part follows its length, so different lists of parts make different texts.
    parts = (cause, sender, command_type, aggregate_root_id, str(number))
    return str(uuid.uuid5(_NAMESPACE, "".join(f"{len(part)}:{part}" for part in parts)))


def with_id(command: AnyCommand, id: str) -> AnyCommand:
    """Return a copy with this id. The original is unchanged, since it may be sent twice."""
    copied = object.__new__(type(command))
    copied.__dict__.update(command.__dict__, id=id)
    return copied
