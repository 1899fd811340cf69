"""Messages between supervisor and worker through their pipe: msgpack, one message a frame."""

from __future__ import annotations

from enum import StrEnum
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from enode_django.serialization.plain import pack, unpack


class Role(StrEnum):
    """The work of a worker: handling commands, or letting the subscribers follow the events."""

    COMMAND = "command"
    EVENT = "event"


class Stop(NamedTuple):
    """Tells a worker to drain and end. ``grace`` is in seconds."""

    grace: float


class Beat(NamedTuple):
    """Says that a worker is alive, and how much it has done."""

    report: dict[str, Any]


Message = Stop | Beat
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Stop, Beat)}


def send(connection: Connection, message: Message) -> None:
    """Send a message. Raises `OSError` if the other side is gone."""
    connection.send_bytes(pack((type(message).__name__, list(message))))


def receive(connection: Connection) -> Message:
    """Receive a message. Blocks; raises `EOFError` or `OSError` if the other side is gone."""
    kind, values = unpack(connection.recv_bytes())
    message: Message = _KINDS[kind](*values)
    return message
