"""The handshake and the errors of the protocol between broker and client. No I/O.

The client begins: ``[1, "hello", [MAGIC, version, nonce]]``, with the oldest version that it speaks. The broker
answers with its run, a nonce of its own, and the versions that it speaks. If it has a secret, it expects ``[2,
"prove", [proof]]`` next, and proves itself in its answer: neither side sends the secret, and a proof is useless in
another connection. If both speak a newer version than that of the hello, the client selects it: ``[3, "speak",
[version]]``.

A request is ``[number, name, arguments]``, its answer ``[number, True, value]`` or ``[number, False, error, text,
details]``, with the name of an exception of this package. A side ignores what a later version adds at the end of the
arguments, of the answer, or of the lists within the answer.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any, NamedTuple

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
    RoleMissing,
    StaleRoute,
    StorageFailed,
    TopicDeleted,
    TransportUnavailable,
    UnknownQueue,
    UnknownRequest,
    UnknownTopic,
)

MAGIC = "equeue"
VERSION = 1
OLDEST_VERSION = 1
"""The oldest version that is spoken besides `VERSION`: that of the previous release if it differs."""
NONCE_BYTES = 16
MAX_HANDSHAKE_FRAME = 4096
HELLO = "hello"
PROVE = "prove"
SPEAK = "speak"


class Versions(NamedTuple):
    """The versions of the protocol that one side speaks."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        if self.oldest == self.newest:
            return f"version {self.newest}"
        return f"versions {self.oldest} to {self.newest}"


SPOKEN = Versions(OLDEST_VERSION, VERSION)

_ERRORS: Mapping[str, type[EnodeError]] = {
    error.__name__: error
    for error in (
        *(BadRequest, ConfigurationError, MalformedFrame, MalformedRecords, QueueBacklog, QueueError, QueueFull),
        *(RoleMissing, StaleRoute, StorageFailed, TopicDeleted, TransportUnavailable, UnknownTopic),
    )
}
_LATER: Mapping[str, type[EnodeError]] = {error.__name__: error for error in (UnknownQueue, UnknownRequest)}
"""Errors that clients of the first release know by the names of their bases. Their own names are the details."""


def proof(secret: str, side: str, first_nonce: bytes, second_nonce: bytes) -> bytes:
    """Return the proof of the client's and the broker's nonce, which only a holder of the secret can compute."""
    return hmac.digest(secret.encode(), side.encode() + b"\0" + first_nonce + second_nonce, hashlib.sha256)


def is_proof(claimed: object, expected: bytes) -> bool:
    return isinstance(claimed, bytes) and hmac.compare_digest(claimed, expected)


def check_newest(version: int, spoken: Versions) -> None:
    """Raise `ConfigurationError` if a client's oldest version is newer than all versions of the broker."""
    if version > spoken.newest:
        raise ConfigurationError(
            f"the client speaks version {version} of the protocol or later, and the broker {spoken}; upgrade "
            "enode_django on the broker's host first"
        )


def check_oldest(version: int, spoken: Versions) -> None:
    """Raise `ConfigurationError` if a client's version is older than all versions of the broker."""
    if version < spoken.oldest:
        raise ConfigurationError(
            f"the client speaks version {version} of the protocol, and the broker {spoken}; upgrade enode_django on "
            "the client's host"
        )


def chosen_version(own: Versions, told: Any) -> int:
    """Return the newest version that both sides speak. ``told`` are the broker's versions; a broker of the first
    release sends none, and speaks the version of the hello. Raises `ConfigurationError` if they have none."""
    theirs = Versions(*told[:2]) if told else Versions(own.oldest, own.oldest)
    version = min(own.newest, theirs.newest)
    check_oldest(version, theirs)
    check_newest(own.oldest, theirs)
    return version


def error_values(error: EnodeError) -> tuple[str, str, Any]:
    """Return name, text and details of an error, for a frame."""
    if isinstance(error, QueueHeld):
        return "QueueHeld", str(error), [error.owner, error.seconds]
    name = type(error).__name__
    if name in _LATER:
        return type(error).__bases__[0].__name__, str(error), [name]
    return (name if name in _ERRORS else "QueueError"), str(error), None


def error_of(name: str, text: str, details: Any = None, *_: Any) -> EnodeError:
    """Return the error that was given to `error_values`, or the nearest one that this version knows."""
    if name == "QueueHeld":
        owner, seconds, *_ = details
        return QueueHeld(text, owner=owner, seconds=seconds)
    match details:
        case [str() as later, *_] if later in _LATER:
            return _LATER[later](text)
    return _ERRORS.get(name, QueueError)(text)
