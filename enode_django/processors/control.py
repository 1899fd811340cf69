"""Messages between supervisor and worker through their pipe: msgpack, one message a frame."""

from __future__ import annotations

from enum import StrEnum
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from enode_django.serialization.plain import pack, unpack


class Role(StrEnum):
    """The work of a worker: to handle commands, or to let the subscribers follow the events."""

    COMMAND = "command"
    EVENT = "event"


class Stop(NamedTuple):
    """Drain and end; ``grace`` in seconds."""

    grace: float


class Beat(NamedTuple):
    """A worker is alive, and has done so much."""

    report: dict[str, Any]


Message = Stop | Beat
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Stop, Beat)}


def send(connection: Connection, message: Message) -> None:
    """Raises `OSError` when the other side is gone."""
    connection.send_bytes(pack((type(message).__name__, list(message))))


def receive(connection: Connection) -> Message:
    """Blocks; raises `EOFError` or `OSError` when the other side is gone."""
    kind, values = unpack(connection.recv_bytes())
    message: Message = _KINDS[kind](*values)
    return message
