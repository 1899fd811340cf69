"""Messages between supervisor and worker through their pipe: msgpack, one message a frame."""

from __future__ import annotations

from enum import StrEnum
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from enode_django.serialization.plain import pack, unpack


class Role(StrEnum):
    """The work of a worker: handling commands, or letting the subscribers follow the events."""

    COMMAND = "command"
    EVENT = "event"


Grace: TypeAlias = float
"""A supervisor's message: the seconds in which the worker must drain and end."""
Report: TypeAlias = dict[str, Any]
"""A worker's message: its figures. Each one also shows that the worker is alive."""


def send(connection: Connection, message: Grace | Report) -> None:
    """Send a message. Raises `OSError` if the other side is gone."""
    connection.send_bytes(pack(message))


def receive(connection: Connection) -> Any:
    """Receive a message. Blocks; raises `EOFError` or `OSError` if the other side is gone."""
    return unpack(connection.recv_bytes())
