"""What broker and client say to each other beside the requests: the handshake, and errors. No I/O.

The client begins: ``[1, "hello", [MAGIC, VERSION, nonce]]``. The broker answers with its run and a nonce of its own. If
it has a secret, it expects ``[2, "prove", [proof]]`` next, and proves itself in its answer: nobody sends the secret,
and a proof is of no use in another connection.

A request is ``[number, name, arguments]``, its answer ``[number, True, value]`` or ``[number, False, error, text,
details]``, with the name of an exception of this package.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from enode_django.exceptions import (
    BadRequest,
    ConfigurationError,
    EnodeError,
    MalformedFrame,
    MalformedRecords,
    QueueBacklog,
    QueueError,
    QueueFull,
    QueueHeld,
    StaleRoute,
    StorageFailed,
    TopicDeleted,
    TransportUnavailable,
    UnknownTopic,
)

MAGIC = "equeue"
VERSION = 1
NONCE_BYTES = 16
MAX_HANDSHAKE_FRAME = 4096
HELLO = "hello"
PROVE = "prove"

_ERRORS: Mapping[str, type[EnodeError]] = {
    error.__name__: error
    for error in (
        *(BadRequest, ConfigurationError, MalformedFrame, MalformedRecords, QueueBacklog, QueueError, QueueFull),
        *(StaleRoute, StorageFailed, TopicDeleted, TransportUnavailable, UnknownTopic),
    )
}


def proof(secret: str, side: str, first_nonce: bytes, second_nonce: bytes) -> bytes:
    """What only who knows the secret can say about two nonces, the client's and the broker's."""
    return hmac.digest(secret.encode(), side.encode() + b"\0" + first_nonce + second_nonce, hashlib.sha256)


def is_proof(claimed: object, expected: bytes) -> bool:
    return isinstance(claimed, bytes) and hmac.compare_digest(claimed, expected)


def error_values(error: EnodeError) -> tuple[str, str, Any]:
    """Name, text and details of an error, for a frame."""
    if isinstance(error, QueueHeld):
        return "QueueHeld", str(error), [error.owner, error.seconds]
    name = type(error).__name__
    return (name if name in _ERRORS else "QueueError"), str(error), None


def error_of(name: str, text: str, details: Any) -> EnodeError:
    """The error that `error_values` was given, or the nearest that this version knows."""
    if name == "QueueHeld":
        owner, seconds = details
        return QueueHeld(text, owner=owner, seconds=seconds)
    return _ERRORS.get(name, QueueError)(text)
