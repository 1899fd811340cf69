"""A proxy that cuts a connection at an exact byte."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class LossyProxy:
    """Forwards to a server. `cut` ends one connection at an exact byte; ``passed`` counts the bytes by direction."""

    def __init__(self, location: str) -> None:
        parts = urlsplit(location)
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.location = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._left: dict[str, int | None] = {"up": None, "down": None}
        self._lock = threading.Lock()
        self.cuts = 0
        self.passed = {"up": 0, "down": 0}

    def cut(self, direction: str, after: int) -> None:
        """Cut the connection, once, that would pass more than ``after`` bytes. Bytes are counted from now on, over all
        connections, in one ``direction``: "up" is from clients to the server, "down" the other one."""
        with self._lock:
            self._left[direction] = after

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True, name="proxy accept").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _close(self._listener, *self._sockets)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                for pair, direction in (((client, server), "up"), ((server, client), "down")):
                    threading.Thread(target=self._forward, args=(*pair, direction), daemon=True, name="proxy").start()

    def _forward(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                passing = self._passing(direction, len(data))
                sink.sendall(data[:passing])
                if passing < len(data):
                    break
        _close(source, sink)

    def _passing(self, direction: str, count: int) -> int:
        with self._lock:
            self.passed[direction] += count
            left = self._left[direction]
            if left is None:
                return count
            if count > left:
                self._left[direction] = None
                self.cuts += 1
                return left
            self._left[direction] = left - count
            return count


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
