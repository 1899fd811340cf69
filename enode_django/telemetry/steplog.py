"""Log records of the steps of a command: sent, handled, committed, followed.

The logger ``enode_django.flow`` is silent unless its level is DEBUG, as set by `enodedev`. Callers call `enabled` once
per batch, so that a silent log costs nothing per command.
"""

from __future__ import annotations

import logging
from typing import Any

from enode_django.exceptions import MessageError
from enode_django.serialization.codec import decode_metadata

logger = logging.getLogger("enode_django.flow")

FIELDS = ("part", "flow_id", "command_id", "subject", "aggregate_root_id", "version", "outcome", "seconds")
"""The attributes of each log record. ``flow_id`` is the correlation id, or the id of the first command without one;
``subject`` is a type name, a subscriber or a request; ``version`` and ``seconds`` may be None."""


def enabled() -> bool:
    return logger.isEnabledFor(logging.DEBUG)


def log(
    part: str,
    subject: str,
    *,
    flow_id: str,
    outcome: str,
    command_id: str = "",
    aggregate_root_id: str = "",
    version: int | None = None,
    seconds: float | None = None,
) -> None:
    fields: dict[str, Any] = {
        "part": part,
        "flow_id": flow_id,
        "command_id": command_id,
        "subject": subject,
        "aggregate_root_id": aggregate_root_id,
        "version": version,
        "outcome": outcome,
        "seconds": seconds,
    }
    logger.debug("%s %s %s: %s", part, subject, aggregate_root_id, outcome, extra=fields)


def flow_id_of(metadata: bytes, command_id: str) -> str:
    """Return the id that all steps of one request share: the correlation id, or the command id without one."""
    try:
        return decode_metadata(metadata).correlation_id or command_id
    except MessageError:
        return command_id
