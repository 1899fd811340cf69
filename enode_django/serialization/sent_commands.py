"""The commands that a handler sends, stored in one row with its events.

The result is stored as ``{SENT: [result, [[aggregate root id, command], …], SENT]}``, with the commands as encoded for
the queue. Code that does not know this form takes it for the result, and reads the events like those of any row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from enode_django.exceptions import MalformedMessage
from enode_django.serialization.plain import pack

SENT = b"\x00sent"
_END = pack(SENT)

SentCommand = tuple[str, bytes]
"""The aggregate root id and the encoded body of a command."""


def with_sent(result: Any, sent: Sequence[SentCommand]) -> Any:
    """Return the value that is stored instead of ``result``."""
    return {SENT: [result, sent, SENT]}


def looks_sent(value: Any) -> bool:
    """Return True if a handler's result would be read as one of `with_sent`. It must then be stored by `with_sent`."""
    return type(value) is dict and SENT in value


def may_have_sent(stored: bytes) -> bool:
    """Return False if an events value holds no sent commands. Looks at the last bytes only."""
    return stored.endswith(_END)


def result_and_sent(value: Any) -> tuple[Any, Sequence[SentCommand]]:
    """Return the arguments of `with_sent`; another value has no sent commands. Raises `MalformedMessage`."""
    if not looks_sent(value):
        return value, ()
    try:
        result, sent, _ = value[SENT]
        found = [(id, body) for id, body in sent]
    except (TypeError, ValueError) as error:
        raise MalformedMessage(f"sent commands have another shape than ours: {error}") from error
    if not all(type(id) is str and type(body) is bytes for id, body in found):
        raise MalformedMessage("sent commands have another shape than ours")
    return result, found
