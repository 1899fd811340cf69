"""A proxy that understands enough of PostgreSQL's protocol to lose a connection at an exact message."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self


class Message(NamedTuple):
    """``kind`` is the protocol's type byte, empty for the startup message."""

    from_client: bool
    kind: bytes
    body: bytes


class PostgresProxy:
    """Forwards to a server until `lose_at` holds; it loses one connection, once. No TLS.

    With ``after_ready`` the message and what follows it is kept from the client, but the server gets the time to
    finish: the connection goes when the server is ready for the next statement. With ``keep_server`` the server's side
    stays open, as if the client had been stopped.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._condition: Callable[[Message], bool] = lambda message: False
        self._after_ready = self._keep_server = False
        self._sockets: list[socket.socket] = []
        self.lost = threading.Event()

    def lose_at(
        self, condition: Callable[[Message], bool], *, after_ready: bool = False, keep_server: bool = False
    ) -> None:
        """Takes effect with the next message that either side sends."""
        self._after_ready, self._keep_server = after_ready, keep_server
        self.lost.clear()
        self._condition = condition

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
                server = self._connect()
                self._sockets += [client, server]
                for source, sink, from_client in ((client, server, True), (server, client, False)):
                    arguments = (source, sink, from_client)
                    threading.Thread(target=self._forward, args=arguments, daemon=True, name="proxy").start()

    def _connect(self) -> socket.socket:
        host, port = self._target
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _forward(self, source: socket.socket, sink: socket.socket, from_client: bool) -> None:
        withheld = False
        try:
            with source.makefile("rb") as stream:
                first = from_client
                while message := _read(stream.read, from_client, first):
                    first = False
                    if self._condition(message):
                        self._condition = lambda message: False
                        if not self._after_ready:
                            self._lose(source, sink, from_client)
                            return
                        withheld = True
                    if withheld and message.kind == b"Z":
                        self._lose(source, sink, from_client)
                        return
                    if not withheld:
                        sink.sendall(_bytes_of(message))
        except (OSError, ValueError):
            pass
        if not self._keep_server:
            _close(source, sink)

    def _lose(self, source: socket.socket, sink: socket.socket, from_client: bool) -> None:
        self.lost.set()
        if self._keep_server:
            _close(source if from_client else sink)
        else:
            _close(source, sink)


def _read(read: Callable[[int], bytes], from_client: bool, startup: bool) -> Message | None:
    kind = b"" if startup else read(1)
    if not startup and not kind:
        return None
    length = read(4)
    return Message(from_client, kind, read(int.from_bytes(length, "big") - 4)) if len(length) == 4 else None


def _bytes_of(message: Message) -> bytes:
    return message.kind + (len(message.body) + 4).to_bytes(4, "big") + message.body


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
